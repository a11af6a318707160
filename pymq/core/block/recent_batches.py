"""The last batches of a log, in memory, for followers that are nearly up to date."""

from __future__ import annotations

from collections import deque

from pymq.core.batch.record import EncodedBatch

RECENT_BYTES = 4 << 20


class RecentBatches:
    """The last batches of a log, up to :data:`RECENT_BYTES`."""

    __slots__ = ("_batches", "_bytes", "joined")

    def __init__(self) -> None:
        # The last answer to a follower, by (offset, most bytes), because the other followers
        # request the same.
        self.joined: tuple[tuple[int, int], bytes] | None = None
        self._batches: deque[EncodedBatch] = deque()
        self._bytes = 0

    def append(self, batch: EncodedBatch) -> None:
        """Add the batch at the end of the log; drop the oldest batches if there are too many."""
        self.joined = None
        self._batches.append(batch)
        self._bytes += batch.header.length
        while self._bytes > RECENT_BYTES and len(self._batches) > 1:
            self._bytes -= self._batches.popleft().header.length

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole batches from *offset* on, at least one; None if *offset* is not cached."""
        wanted = offset, max_bytes
        if self.joined is not None and self.joined[0] == wanted:
            return self.joined[1]
        recent = self._batches
        if not recent or offset < recent[0].header.base_offset:
            return None
        index = len(recent) - 1  # Most followers need only the last few batches.
        while index and recent[index].header.base_offset > offset:
            index -= 1
        if recent[index].header.base_offset != offset:
            return None
        parts: list[bytes | memoryview] = []
        size = 0
        for position in range(index, len(recent)):
            batch = recent[position]
            size += batch.header.length
            if parts and size > max_bytes:
                break
            parts += (batch.head, batch.body)  # type: ignore[arg-type] # Buffer: bytes-like
        self.joined = wanted, b"".join(parts)
        return self.joined[1]

    def cut(self, end: int) -> None:
        """Drop the batches that end after *end*."""
        self.joined = None
        while self._batches and self._batches[-1].header.end_offset > end:
            self._bytes -= self._batches.pop().header.length

    def clear(self) -> bool:
        """Drop all batches; returns whether there were any."""
        had, self.joined = bool(self._batches), None
        self._batches.clear()
        self._bytes = 0
        return had
