"""An application in another language: sells as producer.rs does, with psycopg, and tells the fate of each message it made.

producer.py URL TOPIC SEED, until its input ends. A line a message: committed, unknown or rolled_back, and the id.
"""

import random
import select
import signal
import sys
import time

import psycopg

# A transaction that takes longer is given up, its fate unknown.
ANSWERS_WITHIN_S = 6

url, topic, seed = sys.argv[1:]
draw = random.Random(int(seed))


class Sale:
    """What is known of a transaction while it runs."""

    def __init__(self):
        self.kept, self.undone, self.is_commit_sent = [], [], False


def give_up(*_):
    raise TimeoutError


def order(cursor):
    """A message and the row it tells about."""
    cursor.execute("select outbox_publish(%s, %s::json)::text", (topic, '{"article":"lamp","price":42.50}'))
    message = cursor.fetchone()[0]
    cursor.execute("insert into orders (message) values (%s)", (message,))
    return message


def transaction(connection, sale):
    end = draw.choices(["commit", "rollback", "vanish", "savepoint"], [70, 10, 5, 15])[0]
    cursor = connection.cursor()
    sale.kept.append(order(cursor))
    if end == "savepoint":
        cursor.execute("savepoint second")
        sale.undone.append(order(cursor))
        cursor.execute("rollback to savepoint second")
    if end in ("commit", "savepoint"):
        sale.is_commit_sent = True
        connection.commit()
    elif end == "rollback":
        connection.rollback()
    else:
        # The application dies: its connection goes away amid the transaction.
        connection.close()


def tell(fate, messages):
    for message in messages:
        print(fate, message, flush=True)


def sell(connection):
    """Makes one transaction; answers the connection if it can be used again."""
    sale, done = Sale(), False
    try:
        signal.setitimer(signal.ITIMER_REAL, ANSWERS_WITHIN_S)
        connection = connection or psycopg.connect(url, connect_timeout=ANSWERS_WITHIN_S)
        transaction(connection, sale)
        done = True
    except (psycopg.Error, TimeoutError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not sale.is_commit_sent:
        tell("rolled_back", sale.kept)
    else:
        tell("committed" if done else "unknown", sale.kept)
    tell("rolled_back", sale.undone)
    if done and not connection.closed:
        return connection
    if connection:
        connection.close()
    return None


signal.signal(signal.SIGALRM, give_up)
connection = None
while not select.select([sys.stdin], [], [], draw.uniform(0.02, 0.08))[0]:
    connection = sell(connection)
    if connection is None:
        time.sleep(0.05)
