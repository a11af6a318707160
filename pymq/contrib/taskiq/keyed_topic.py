"""A compacted topic as a table: the last value of each key.

A process that only writes reads nothing. For the first lookup, a process reads the whole topic; for
each later one, the records appended since the last lookup. The process remembers the offset of each
key's value, and keeps the newest values in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from attrs import define

from pymq.aio import AsyncConsumer, AsyncProducer
from pymq.client.option_types import TopicOptions
from pymq.contrib.connection import Connection, ensure_topic
from pymq.core.batch.record import Record
from pymq.errors import Closed

TOMBSTONE = "pymq.tombstone"  # the header of a record that deletes its key
FRESH_S = 0.02  # how old an answer of ``has`` may be, so that many waiting tasks share a read


@define
class KeyedValue:
    """The place of a key's value."""

    partition: str
    offset: int
    timestamp_ms: int


class KeyedTopic:
    """A table in the topic *name*, for one event loop.

    Args:
        expires_s: keys older than this are gone; None keeps all. The topic's retention removes old
            keys, so that no tombstones are needed.
        keys_max: how many of the newest keys this process knows.
        cache_bytes: how many bytes of the newest values this process keeps in memory.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        expires_s: float | None = None,
        keys_max: int = 100_000,
        cache_bytes: int = 16 << 20,
    ) -> None:
        self.name = name
        self._connection = connection
        self._partitions = partitions
        self._replicas = replicas
        self._expires_s = expires_s
        self._keys_max = keys_max
        self._cache_bytes = cache_bytes
        self._producer: AsyncProducer | None = None
        self._reader: AsyncConsumer | None = None
        self._entries: OrderedDict[str, KeyedValue] = OrderedDict()  # oldest first
        self._values: OrderedDict[str, bytes] = OrderedDict()  # oldest first
        self._value_bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._read_at = -FRESH_S  # when the last read was over

    async def open(self) -> None:
        """Connect, and create the topic if it does not exist; a second call does nothing."""
        mq = await self._connection.open()
        if self._producer is not None:
            return
        options: TopicOptions = {"cleanup_policy": "compact"}
        if self._expires_s is not None:
            # Retention removes whole blocks, so a block must cover less time than the retention.
            options["retention_ms"] = max(1, round(self._expires_s * 1000))
            options["block_ms"] = max(1000, round(self._expires_s * 250))
        await ensure_topic(mq, self.name, self._partitions, self._replicas, options)
        self._producer = await mq.producer()

    async def close(self) -> None:
        """Disconnect, and forget all keys and values."""
        reading, self._reading = self._reading, None
        if reading is not None:
            await asyncio.wait([reading])
        for handle in (self._producer, self._reader):
            if handle is not None:
                await handle.close()
        self._producer = self._reader = None
        self._entries.clear()
        self._values.clear()
        self._value_bytes = 0
        self._read_at = -FRESH_S
        await self._connection.close()

    # --- writing --------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key, and wait until it is durable."""
        await self._send(key, value, ())

    async def delete(self, key: str) -> None:
        """Delete a key, and wait until that is durable."""
        await self._send(key, b"", [(TOMBSTONE, b"")])
        self._drop(key)

    async def _send(
        self, key: str, value: bytes, headers: list[tuple[str, bytes]] | tuple[()]
    ) -> None:
        if self._producer is None:
            raise Closed(f"topic {self.name!r} is not open; 'await broker.startup()' opens it")
        await self._producer.send(self.name, value, key=key.encode(), headers=headers)
        self._read_at = -FRESH_S

    # --- reading --------------------------------------------------------------------------------

    async def has(self, key: str) -> bool:
        """Whether a key has a value; the answer may be 20 ms old."""
        if time.monotonic() - self._read_at >= FRESH_S:
            await self._read()
        return self._is_known(key)

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key at the time of this call, or None."""
        await self._read()
        return await self._value(key)

    async def values(self) -> list[bytes]:
        """Return the values of all keys at the time of this call."""
        await self._read()
        found = [await self._value(key) for key in list(self._entries)]
        return [value for value in found if value is not None]

    async def _value(self, key: str) -> bytes | None:
        while self._is_known(key):
            value = self._values.get(key)
            if value is None:
                value = await self._look_up(key, self._entries[key])
            if value is not None:
                return value
            # Compaction has removed the record, because its key has a newer value.
            await self._read()
        return None

    async def _look_up(self, key: str, entry: KeyedValue) -> bytes | None:
        """Read one record; None if compaction has removed it."""
        mq = self._connection.client
        partition, offset = entry.partition, entry.offset
        async with mq.consumer(
            self.name, mode="reader", partition=partition, offset=offset
        ) as reader:
            async for record in reader.until_end():
                found = record.offset == offset and record.key == key.encode()
                return record.value if found else None
        return None

    async def _read(self) -> None:
        """Read the records appended before this call."""
        before = self._reading
        if before is not None and not before.done():
            # The earlier read may have fetched the log's end before this call.
            await asyncio.wait([before])
        if self._reading is before:
            self._reading = asyncio.ensure_future(self._read_on())
        assert self._reading is not None  # only close() resets it
        await asyncio.shield(self._reading)

    async def _read_on(self) -> None:
        if self._reader is None:
            mq = self._connection.client
            self._reader = await mq.consumer(self.name, mode="reader", offset="begin")
        async for record in self._reader.until_end():
            self._take(record)
        self._read_at = time.monotonic()

    def _take(self, record: Record) -> None:
        if record.key is None:
            return  # Another program has sent this record.
        key = record.key.decode(errors="replace")
        self._drop(key)
        if any(name == TOMBSTONE for name, _ in record.headers) or self._is_over(
            record.timestamp_ms
        ):
            return
        self._entries[key] = KeyedValue(record.partition, record.offset, record.timestamp_ms)
        self._values[key] = record.value
        self._value_bytes += len(record.value)
        while self._value_bytes > self._cache_bytes:
            _, value = self._values.popitem(last=False)
            self._value_bytes -= len(value)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if len(self._entries) <= self._keys_max and not self._is_over(entry.timestamp_ms):
                return
            self._drop(key)

    def _is_known(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not self._is_over(entry.timestamp_ms)

    def _is_over(self, timestamp_ms: int) -> bool:
        return (
            self._expires_s is not None
            and timestamp_ms + self._expires_s * 1000 <= time.time() * 1000
        )

    def _drop(self, key: str) -> None:
        self._entries.pop(key, None)
        self._value_bytes -= len(self._values.pop(key, b""))
