import sys

import psycopg

@PAGE@

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    place_order(connection, 7)
    try:
        place_order(connection, 7)
    except psycopg.errors.UniqueViolation:
        sys.exit()
sys.exit("the second order was taken")
