"""The same queue for asyncio: many tasks send at once and share the fsyncs."""

from __future__ import annotations

import asyncio
import sys
import time

import pymq.aio


async def main(folder: str = "quickstart-data") -> None:
    """Let a hundred sensors send, and read their records."""
    async with pymq.aio.open(folder) as mq:
        await mq.create_topic("readings", fsync="always", exist_ok=True)

        async with mq.producer() as producer:

            async def sensor(number: int) -> int:
                for reading in range(20):
                    # ``await`` waits until the record is on the disk. Without awaiting, send
                    # returns at once, and the producer's close() or flush() waits.
                    sent = await producer.send("readings", f"{number}: {reading}".encode())
                return sent.offset

            start = time.perf_counter()
            await asyncio.gather(*(sensor(number) for number in range(100)))
            seconds = time.perf_counter() - start
            print(f"2000 durable readings in {seconds:.2f} s")

        async with mq.consumer("readings", group="dashboard") as consumer:
            count = 0
            async for record in consumer.until_end():
                consumer.ack(record)
                count += 1
            await consumer.commit()
            print(f"read {count} readings, the last of them {record.value.decode()!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
