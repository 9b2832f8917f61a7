import sys
from urllib.parse import urlsplit

from django.conf import settings

url = urlsplit(sys.argv[1])
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "HOST": url.hostname, "PORT": url.port, "USER": url.username, "NAME": url.path[1:],
}})

import django

django.setup()

from django.db import IntegrityError, models

class Order(models.Model):
    id = models.BigIntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "orders"
        managed = False

@PAGE@

place_order(7)
try:
    place_order(7)
except IntegrityError:
    sys.exit()
sys.exit("the second order was taken")
