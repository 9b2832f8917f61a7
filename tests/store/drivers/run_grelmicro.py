"""An application that uses grelmicro's outbox: makes its table, or publishes into it as it always did."""

import asyncio
import json
import sys

import asyncpg
from grelmicro.outbox import Outbox
from grelmicro.outbox.postgres import PostgresOutboxAdapter
from grelmicro.providers.postgres import PostgresProvider


async def main(socket, database, what):
    connection = await asyncpg.connect(host=socket, user="postgres", database=database)
    if what == "create":
        await connection.execute(PostgresOutboxAdapter.create_table_sql())
        return
    # The backend is not opened: its publish works on the caller's connection alone.
    provider = PostgresProvider("postgresql://unused@localhost/unused", env_load=False)
    outbox = Outbox(PostgresOutboxAdapter(provider=provider, auto_migrate=False))
    staged = []
    async with connection.transaction():
        for message in json.loads(what):
            staged.append(await outbox.publish(connection, message.pop("topic"), message.pop("payload"), **message))
    print(json.dumps(staged))


asyncio.run(main(*sys.argv[1:]))
