"""Tries the cases with asyncpg: `execute` is the simple protocol, `fetch` the extended one."""

import asyncio
import json
import sys

import asyncpg


async def attempt(connection, protocol, case):
    run = connection.execute if protocol == "simple" else connection.fetch
    if case["mode"] in ("autocommit", "batch"):
        for step in case["steps"]:
            await run(step)
        return
    transaction = connection.transaction()
    await transaction.start()
    try:
        for step in case["steps"]:
            await run(step)
    except BaseException:
        await transaction.rollback()
        raise
    await (transaction.rollback() if case["mode"] == "rollback" else transaction.commit())


async def main(socket, database, cases):
    connection = await asyncpg.connect(host=socket, user="postgres", database=database)
    for protocol in ("simple", "extended"):
        for case in cases:
            if protocol == "extended" and case["mode"] == "batch":
                continue
            await connection.execute("truncate shop.outbox, shop.orders, shop.watched")
            error = None
            try:
                await attempt(connection, protocol, case)
            except asyncpg.PostgresError as refusal:
                error = f"{refusal} {getattr(refusal, 'hint', None)}"
                if connection.is_in_transaction():
                    await connection.execute("rollback")
            rows = await connection.fetchval("select count(*) from shop.outbox")
            print(json.dumps({"protocol": protocol, "name": case["name"], "error": error, "rows": rows}))
    await connection.close()


asyncio.run(main(sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))))
