"""A store under test, with helpers for the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    CreateBlock,
    Recovered,
    Write,
)
from pymq.core.types import BlockId
from pymq.errors import PymqError
from pymq.store.base import BlockStore

Make = Callable[[], BlockStore]
TOPIC = "5ca1ab1e" * 4


@contextmanager
def named(name: str) -> Iterator[None]:
    """Name the check in which an assertion failed."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


class StoreSuite:
    """A store under test, and helpers to use it."""

    def __init__(self, make: Make, durable: bool) -> None:
        self.make = make
        self.durable = durable
        self.partition = 0
        self.open()
        assert self.store.blocks() == [], "the store must begin empty"

    def open(self) -> None:
        self.store = self.make()

    def block(self, start: int = 0, number: int = 0) -> BlockId:
        """Create a block that no check has used before."""
        self.partition += number == 0
        block = BlockId(TOPIC, self.partition, number)
        self.write(CreateBlock(block, start, "topic", "partition"))
        return block

    def write(self, *writes: Write) -> None:
        failed = self.store.write(writes)
        assert not failed, f"{writes} failed with {failed[0].error!r}"

    def refused(self, *writes: Write) -> None:
        failed = self.store.write(writes)
        blocks = {write.block for write in writes}
        assert [f.block for f in failed] == list(blocks), f"{writes} must fail once a block"
        assert all(isinstance(f.error, PymqError) for f in failed), "errors must be pymq's own"
        assert not any(f.fatal for f in failed), f"{writes} must fail, but not fatally"

    def recovered(self, block: BlockId, start: int = 0, is_open: bool = True) -> Recovered:
        found = self.store.recover(block, start, is_open)
        assert isinstance(found, Recovered), f"recovering {block} gave {found}"
        return found

    def reopen(self, block: BlockId, start: int = 0, is_open: bool = True) -> Recovered:
        if self.durable:
            self.store.close()
            self.open()
        return self.recovered(block, start, is_open)

    def content(self, block: BlockId, start: int, end: int, max_bytes: int = 1 << 20) -> list[int]:
        """Read from *start* to *end* as a consumer does; return the base offsets of the batches."""
        found: list[int] = []
        while start < end:
            data = self.store.read(block, start, end, max_bytes)
            assert type(data) is bytes, "read must return bytes"
            batches = [batch.verify() for batch in split(data)]
            assert batches, f"nothing is read at {start}, before the end {end}"
            assert batches[0].base_offset <= start < batches[0].end_offset, (
                "the wrong batch is read"
            )
            found += [batch.base_offset for batch in batches]
            start = batches[-1].end_offset
        assert start == end, f"batches up to {start} were read, beyond {end}"
        return found


def make_batch(offset: int, count: int = 1, *, epoch: int = 1, size: int = 10) -> EncodedBatch:
    """Return a batch of *count* records with different times and values."""
    values = [b"%08d " % (offset + i) + bytes(size) for i in range(count)]
    times = [1_000 + 10 * (offset + i) for i in range(count)]
    batch = EncodedBatch.encode(values, timestamp_ms=times[0], timestamps=times)
    return batch.stamp(offset, epoch, 0)


def make_run(offset: int, count: int, **options: int) -> list[EncodedBatch]:
    """Return *count* batches with 3 records each."""
    return [make_batch(offset + 3 * i, 3, **options) for i in range(count)]
