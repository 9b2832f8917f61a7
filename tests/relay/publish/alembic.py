"""Runs the migration beside this file as Alembic does: in the transaction that its env.py begins."""

import pathlib
import sys

from alembic import command
from alembic.config import Config

here = pathlib.Path(__file__).parent
(here / "versions").mkdir()
(here / "versions" / "0001_orders.py").write_text("""
from alembic import op
revision = "0001"
down_revision = None
def upgrade():
    op.execute("create table orders (id bigint primary key)")
""")
(here / "versions" / "0002_outbox.py").write_text((here / "page.py").read_text())
(here / "versions" / "outbox.sql").write_text((here / "outbox.sql").read_text())
(here / "env.py").write_text("""
from alembic import context
from sqlalchemy import create_engine
with create_engine(context.config.get_main_option("sqlalchemy.url")).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
""")
config = Config()
config.set_main_option("script_location", str(here))
config.set_main_option("sqlalchemy.url", sys.argv[1].replace("postgres://", "postgresql+psycopg://"))
command.upgrade(config, "head")
