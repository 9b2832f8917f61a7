"""Tries the cases with psycopg: simple, extended (asked by binary results) and pipelined."""

import json
import sys

import psycopg


def attempt(connection, protocol, case):
    cursor = connection.cursor(binary=protocol != "simple")

    def run():
        for step in case["steps"]:
            cursor.execute(step)

    def run_pipelined():
        refusal = None
        try:
            with connection.pipeline() as pipeline:
                run()
                try:
                    pipeline.sync()
                except psycopg.Error as error:
                    refusal = error
                    raise
        except psycopg.Error as error:
            # A commit that fails at the sync leaves the pipeline busy: the first error is the server's.
            raise refusal or error

    run_all = run_pipelined if protocol == "pipeline" else run
    if case["mode"] in ("autocommit", "batch"):
        run_all()
    else:
        with connection.transaction(force_rollback=case["mode"] == "rollback"):
            run_all()


def main(socket, database, cases):
    def connect():
        return psycopg.connect(host=socket, user="postgres", dbname=database, autocommit=True)

    for protocol in ("simple", "extended", "pipeline"):
        for case in cases:
            if protocol != "simple" and case["mode"] == "batch":
                continue
            with connect() as connection:
                connection.execute("truncate shop.outbox, shop.orders, shop.watched")
            error = None
            connection = connect()
            try:
                attempt(connection, protocol, case)
            except psycopg.Error as refusal:
                error = f"{refusal} {refusal.diag.message_hint}"
            connection.close()
            with connect() as connection:
                rows = connection.execute("select count(*) from shop.outbox").fetchone()[0]
            print(json.dumps({"protocol": protocol, "name": case["name"], "error": error, "rows": rows}))


main(sys.argv[1], sys.argv[2], json.load(open(sys.argv[3])))
