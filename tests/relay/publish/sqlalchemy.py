import sys

from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)

@PAGE@

engine = create_engine(sys.argv[1].replace("postgres://", "postgresql+psycopg://"))
with Session(engine) as session:
    place_order(session, 7)
with Session(engine) as session:
    try:
        place_order(session, 7)
    except IntegrityError:
        sys.exit()
sys.exit("the second order was taken")
