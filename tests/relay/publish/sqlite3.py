import sqlite3
import sys

@PAGE@

connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:"))
place_order(connection, 7)
try:
    place_order(connection, 7)
except sqlite3.IntegrityError:
    sys.exit()
sys.exit("the second order was taken")
