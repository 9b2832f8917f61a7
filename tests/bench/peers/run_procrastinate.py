"""Many jobs at once in one asynchronous worker; finished jobs are deleted."""

import asyncio
import json
import sys
import time

import procrastinate
import psycopg


async def main(url: str, count: int) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="noop")
    async def noop(order: int) -> None:
        pass

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await noop.batch_defer_async(*({"order": 1} for _ in range(count)))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("vacuum analyze")
            await connection.execute("checkpoint")
        begun = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=20, delete_jobs="always", install_signal_handlers=False)
        print(json.dumps({"per_second": count / (time.perf_counter() - begun)}))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
