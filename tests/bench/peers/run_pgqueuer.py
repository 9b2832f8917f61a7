"""Batches of 500 in its drain mode, which ends when the queue is empty."""

import asyncio
import json
import sys
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode


async def main(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await queries.enqueue(["noop"] * size, [b'{"order":1}'] * size, [0] * size)
    await connection.execute("vacuum analyze")
    await connection.execute("checkpoint")
    pgq = PgQueuer(driver)

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    begun = time.perf_counter()
    await pgq.run(batch_size=500, mode=QueueExecutionMode.drain)
    print(json.dumps({"per_second": count / (time.perf_counter() - begun)}))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
