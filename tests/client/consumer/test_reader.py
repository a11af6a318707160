"""When a reader fetches with its own positions, tested by its messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.client.consumer.reader import Reader
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Fetch, Fetched
from tests.client.helpers import router_to


class Bench:
    """A reader of one partition that knows where the log begins.

    The application polls for records.
    """

    def __init__(self) -> None:
        router = router_to("broker")
        driver: Any = SimpleNamespace()
        self.reader = Reader("client.r", "t", router, driver, ["0"], 0)
        self.reader.want(1, 0)
        (first,) = self.left()
        self.fetch = self.answer(first, end=3)
        assert self.fetch is not None

    def left(self) -> list[Fetch]:
        ready = self.reader.ready(0)
        return [m for _, m in ready.send if isinstance(m, Fetch)] if ready is not None else []

    def answer(self, fetch: Fetch, *, end: int, count: int = 0) -> Fetch | None:
        """Answer with *count* records of a log that ends at *end*; return the next fetch."""
        data = b""
        if count:
            batch = EncodedBatch.encode([b"x"] * count, timestamp_ms=0).stamp(fetch.offset, 1, 0)
            data = bytes(batch.head) + bytes(batch.body)
        self.reader.step("broker", Fetched(fetch.id, "t", "0", fetch.offset, 0, end, data), 0)
        return next(iter(self.left()), None)


def test_more_is_asked_for_before_what_came_is_handed_out() -> None:
    bench = Bench()
    assert bench.fetch is not None
    following = bench.answer(bench.fetch, end=3, count=2)
    assert following is not None
    assert following.offset == 2
    assert len(bench.reader.chunks) == 1


def test_at_the_end_of_the_log_what_came_is_handed_out_first() -> None:
    """In an earlier version the application had to wait until a fetch at the end of the log was
    answered.
    """
    bench = Bench()
    assert bench.fetch is not None
    assert bench.answer(bench.fetch, end=3, count=3) is None
    bench.reader.handed_out(bench.reader.chunks.popleft())
    bench.reader.want(1, 0)
    (following,) = bench.left()
    assert following.offset == 3
