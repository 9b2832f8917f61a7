"""Runs the migration beside this file as `django-admin migrate` does."""

import pathlib
import sys
from urllib.parse import urlsplit

from django.conf import settings

here = pathlib.Path(__file__).parent
migrations = here / "shop" / "migrations"
migrations.mkdir(parents=True)
(here / "shop" / "__init__.py").touch()
(migrations / "__init__.py").touch()
(migrations / "0001_initial.py").write_text("""
from django.db import migrations, models
class Migration(migrations.Migration):
    operations = [migrations.CreateModel("Order", [("id", models.BigIntegerField(primary_key=True))])]
""")
(migrations / "0002_outbox.py").write_text((here / "page.py").read_text())
(migrations / "outbox.sql").write_text((here / "outbox.sql").read_text())

url = urlsplit(sys.argv[1])
settings.configure(INSTALLED_APPS=["shop"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "HOST": url.hostname, "PORT": url.port, "USER": url.username, "NAME": url.path[1:],
}})

import django
from django.core.management import call_command

django.setup()
call_command("migrate", verbosity=0)
