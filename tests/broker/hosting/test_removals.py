"""A broker removes a deleted topic in steps, and reports when the topic is removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pymq.broker.hosting.removals import FILE_COST, TURN_COST
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Produce, Produced, Stopped
from pymq.core.ready import RemoveBlock, Write, WriteFailed
from pymq.core.types import BlockId
from tests.broker.test_broker import PRODUCE, Bench, state, stop, tell

COUNT = 300
BATCH = EncodedBatch.encode([b"x"], timestamp_ms=0)


def hosting(count: int = COUNT, *, written: int = 0) -> Bench:
    """Return a broker with *count* partitions; the first *written* have records."""
    bench = Bench()
    bench.step("zk", tell(10, *(state("b0", index=index) for index in range(count))))
    for index in range(written):
        produce = Produce(index, "t", str(index), PRODUCE.acks, BATCH)
        bench.step("p", produce)
    bench.sent.clear()
    return bench


def turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BlockId]]:
    """Return the removals of each turn, until the topic is removed."""
    removed: list[BlockId] = []
    write = bench.store.write

    def spying(writes: Sequence[Write]) -> list[WriteFailed]:
        removed.extend(w.block for w in writes if isinstance(w, RemoveBlock))
        return write(writes)

    monkeypatch.setattr(bench.store, "write", spying)
    bench.step("zk", stop(11, ""))
    while True:
        yield list(removed)
        removed.clear()
        if bench.sent_to("zk", Stopped):
            return
        assert bench.broker.deadline <= bench.now + 1
        bench.tick(1)


def test_a_turn_removes_some_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn removes only some partitions: removing ten thousand would take a second, in which the
    broker sends no heartbeat.
    """
    bench = hosting()
    removed = list(turns(bench, monkeypatch))
    assert all(len(each) <= TURN_COST for each in removed)
    assert sorted(block.partition for each in removed for block in each) == list(range(COUNT))
    assert [m.id for m in bench.sent_to("zk", Stopped)] == [11]
    assert bench.broker.partitions.get(("t", "0")) is None


def test_a_turn_removes_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn removes few files, since each of them waits for the disk."""
    bench = hosting(100, written=100)
    removed = list(turns(bench, monkeypatch))
    assert max(map(len, removed)) <= TURN_COST // FILE_COST
    assert sum(map(len, removed)) == 100
    assert not bench.store.blocks()


def test_what_is_asked_again_meanwhile_is_answered_once() -> None:
    bench = hosting()
    bench.step("zk", stop(11, ""))
    bench.tick(1)
    bench.step("zk", stop(12, ""))
    assert not bench.sent_to("zk", Stopped)
    while bench.broker.partitions.get(("t", str(COUNT - 1))) is not None:
        bench.tick(1)
    bench.tick(1)
    assert [m.id for m in bench.sent_to("zk", Stopped)] == [12]
    bench.step("zk", stop(13, ""))
    assert [m.id for m in bench.sent_to("zk", Stopped)] == [12, 13]


def test_a_topic_of_that_name_is_made_anew_meanwhile() -> None:
    """Removing a deleted topic leaves all files of a new topic of its name."""
    bench = hosting()
    bench.step("zk", stop(11, ""))
    last = COUNT - 1
    bench.step("zk", tell(12, state("b0", topic_id="id-2", index=last)))
    bench.step("p", Produce(1, "t", str(last), PRODUCE.acks, BATCH))
    while not bench.sent_to("zk", Stopped):
        bench.tick(1)
    assert bench.store.blocks() == [BlockId("id-2", last, 0)]
    found = bench.broker.partitions.get(("t", str(last)))
    assert found is not None
    assert found.state.topic_id == "id-2"


def test_others_are_served_between() -> None:
    """A produce to another topic is answered in the turn of its arrival."""
    bench = hosting()
    bench.step("zk", tell(11, state("b0", topic="u", topic_id="id-2")))
    bench.step("zk", stop(12, ""))
    assert bench.broker.partitions.get(("t", str(COUNT - 1))) is not None
    bench.step("p", Produce(1, "u", "0", PRODUCE.acks, BATCH))
    assert bench.last(Produced).error is None
    assert bench.broker.partitions.get(("t", str(COUNT - 1))) is not None
