import asyncio
import sys

import asyncpg

@PAGE@

async def main(url):
    connection = await asyncpg.connect(url)
    await place_order(connection, 7)
    try:
        await place_order(connection, 7)
    except asyncpg.UniqueViolationError:
        return
    raise SystemExit("the second order was taken")

asyncio.run(main(sys.argv[1]))
