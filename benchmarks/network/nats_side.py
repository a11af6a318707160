"""NATS JetStream with nats-py: its usual calls, and its fastest way found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any

from benchmarks.model import random_values
from benchmarks.network.roles import HandLoop
from benchmarks.network.servers import HOST

STREAM, SUBJECT = "bench", "bench.records"
PENDING = 10_000
BATCH = 1000


async def _connect(ports: list[int]) -> Any:
    import nats

    return await nats.connect([f"nats://{HOST}:{port}" for port in ports])


async def _make(ports: list[int], replicas: int) -> None:
    connection = await _connect(ports)
    js = connection.jetstream()
    deadline = time.monotonic() + 20
    while True:
        try:
            await js.add_stream(name=STREAM, subjects=[SUBJECT], num_replicas=replicas)
        except Exception:
            # A fresh cluster has no leader of its metadata yet, and sends no event once it has one.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            break
    await connection.close()


def make_stream(ports: list[int], replicas: int = 1) -> None:
    """Make the stream on files."""
    asyncio.run(_make(ports, replicas))


def produce(ports: list[int], count: int, size: int) -> Generator[None, None, None]:
    """``publish_async`` with 10,000 pending, as its documentation shows."""
    values, loop = random_values(count, size), HandLoop()
    connection = loop.run(_connect(ports))
    js = connection.jetstream(publish_async_max_pending=PENDING)

    async def send() -> None:
        for value in values:
            await js.publish_async(SUBJECT, value, wait_stall=30.0)
        await js.publish_async_completed()

    yield
    loop.run(send())


def consume(ports: list[int], count: int) -> Generator[None, None, int]:
    """``fetch(1000)`` of a pull consumer without acks."""
    from nats.js.api import AckPolicy, ConsumerConfig

    loop = HandLoop()
    connection = loop.run(_connect(ports))
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = loop.run(
        connection.jetstream().pull_subscribe(SUBJECT, stream=STREAM, config=config)
    )

    async def receive() -> int:
        import nats.errors

        seen = total = 0
        while seen < count:
            try:
                messages = await subscription.fetch(BATCH, timeout=1)
            except nats.errors.TimeoutError:
                continue
            seen += len(messages)
            total += sum([len(message.data) for message in messages])
        return total

    yield
    found: int = loop.run(receive())
    return found


def produce_fast(ports: list[int], count: int, size: int) -> Generator[None, None, None]:
    """``publish`` with one inbox for all answers, counted in a callback, 10,000 in flight."""
    values, loop = random_values(count, size), HandLoop()
    connection = loop.run(_connect(ports))

    async def send() -> None:
        inbox, acked, moved = connection.new_inbox(), 0, asyncio.Event()

        async def answered(_: Any) -> None:
            nonlocal acked
            acked += 1
            moved.set()

        await connection.subscribe(inbox, cb=answered)
        for sent, value in enumerate(values):
            await connection.publish(SUBJECT, value, reply=inbox)
            while sent - acked >= PENDING:
                moved.clear()
                await moved.wait()
        while acked < count:
            moved.clear()
            await moved.wait()

    yield
    loop.run(send())


def consume_fast(ports: list[int], count: int) -> Generator[None, None, int]:
    """A push consumer with a callback, without acks."""
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    loop = HandLoop()
    connection = loop.run(_connect(ports))
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)

    async def receive() -> int:
        seen, total, done = 0, 0, asyncio.Event()

        async def got(message: Any) -> None:
            nonlocal seen, total
            seen += 1
            total += len(message.data)
            if seen >= count:
                done.set()

        await connection.jetstream().subscribe(
            SUBJECT,
            stream=STREAM,
            cb=got,
            config=config,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        await done.wait()
        return total

    yield
    found: int = loop.run(receive())
    return found


def produce_paced(ports: list[int], count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Publish one message at a time; return the time of each answer."""
    loop = HandLoop()
    connection = loop.run(_connect(ports))
    js = connection.jetstream()

    async def send() -> list[int]:
        found = []
        due = time.monotonic()
        for _ in range(count):
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            start = time.monotonic_ns()
            await js.publish(SUBJECT, start.to_bytes(8, "big") + bytes(92))
            found.append(time.monotonic_ns() - start)
        return found

    yield
    found: list[int] = loop.run(send())
    return found


def consume_paced(ports: list[int], count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival at a push consumer."""
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    loop = HandLoop()
    connection = loop.run(_connect(ports))
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    found: list[int] = []
    done = asyncio.Event()

    async def got(message: Any) -> None:
        found.append(time.monotonic_ns() - int.from_bytes(message.data[:8], "big"))
        if len(found) >= count:
            done.set()

    loop.run(connection.jetstream().subscribe(SUBJECT, stream=STREAM, cb=got, config=config))
    yield
    loop.run(done.wait())
    return found
