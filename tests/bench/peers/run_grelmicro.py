"""Its relay with many handlers at once, claims as large as they may be, delivered messages deleted."""

import asyncio
import json
import sys
import time
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
from grelmicro import Grelmicro
from grelmicro.outbox import Message, Outbox
from grelmicro.outbox.postgres import PostgresOutboxAdapter
from grelmicro.providers.postgres import PostgresProvider


def with_host(url: str) -> str:
    """The URL as grelmicro takes it: the folder of a Unix socket stands where a host does."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if parts.netloc or "host" not in query:
        return url
    return f"postgresql://{query['user'][0]}@{quote(query['host'][0], safe='')}{parts.path}"


async def main(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(PostgresOutboxAdapter.create_table_sql())
    outbox = Outbox(PostgresProvider(url, env_load=False), batch_size=500, concurrency=500)
    done = 0

    @outbox.handler("noop")
    async def noop(message: Message) -> None:
        nonlocal done
        done += 1

    async with connection.transaction():
        for _ in range(count):
            await outbox.publish(connection, "noop", {"order": 1})
    await connection.execute("vacuum analyze")
    await connection.execute("checkpoint")
    begun = time.perf_counter()
    async with Grelmicro(uses=[outbox]):
        while done < count or await connection.fetchval("select count(*) from grelmicro_outbox") > 0:
            await asyncio.sleep(0.01)
        print(json.dumps({"per_second": count / (time.perf_counter() - begun)}))


asyncio.run(main(with_host(sys.argv[1]), int(sys.argv[2])))
