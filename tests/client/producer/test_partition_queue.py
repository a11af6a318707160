"""The sequences of a queue's batches, checked against a partition's producer table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.client.producer.delivery import Batch, Delivery
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.sender import SenderConfig
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.types import AckMode
from pymq.errors import OutOfOrderSequence


def sent(count: int) -> tuple[PartitionQueue, list[Batch], list[EncodedBatch]]:
    """Return batches of one record each, in flight with sequences from 0 on."""
    config = SenderConfig(None, 0, 1, 1 << 20, 0, 7, 0, 120_000, 5)
    # A queue only reads its producer's configuration.
    owner: Any = SimpleNamespace(config=config, backlog=None)
    queue = PartitionQueue(owner, "t", "0")
    for number in range(count):
        queue.add((b"%d" % number,))
        queue.seal(0, 0)
    batches = list(queue.sealed)
    queue.sealed.clear()
    queue.in_flight.extend(batches)
    return queue, batches, [queue.number(batch, AckMode.RAFT) for batch in batches]


def again(queue: PartitionQueue, batch: Batch) -> EncodedBatch:
    """Send again: first the oldest unanswered batch alone."""
    assert queue.resume()
    assert not queue.is_sure
    assert queue.sealed[0] is batch
    queue.in_flight.append(queue.sealed.popleft())
    return queue.number(batch, AckMode.RAFT)


def expected(answer: object) -> int:
    assert isinstance(answer, OutOfOrderSequence)
    found = answer.details["expected"]
    assert isinstance(found, int)
    return found


def log(batches: list[EncodedBatch]) -> ProducerTable:
    """Return a partition that has these batches, the first at offset 100."""
    table = ProducerTable()
    for place, batch in enumerate(batches):
        assert table.check(batch.header) is None
        table.replay(batch.header._replace(base_offset=100 + place))
    return table


def test_what_follows_a_failure_is_asked_for_by_its_old_numbers() -> None:
    """Both the failed batch and the next one were written.

    The producer finds this out by their old sequences.

    The producer finds the batch that was refused by its sequence.
    """
    queue, (first, second, third), encoded = sent(3)
    table = log(encoded[:2])
    queue.in_flight.remove(first)
    queue.renumber(first, 0)
    stands = expected(table.check(again(queue, second).header))
    queue.void(stands)
    assert table.check(again(queue, second).header) == 101
    queue.in_flight.remove(second)
    queue.must_resend = True
    assert table.check(again(queue, third).header) is None


def test_numbers_that_were_refused_are_kept() -> None:
    """A batch that was refused may have reached the new leader, so it is sent again under the same
    sequence.
    """
    queue, (first, *_), encoded = sent(3)
    table, stale = log(encoded[:2]), log([])
    queue.void(expected(stale.check(encoded[1].header)))
    renumbered = again(queue, first)
    queue.void(expected(table.check(renumbered.header)))
    assert table.check(again(queue, first).header) == 100


def test_a_callback_of_a_record_that_comes_while_sealing_waits_for_the_next_seal() -> None:
    """Sealing must not wait for a record that is added to the queue only after sealing."""
    queue, _, _ = sent(0)
    called: list[str] = []
    before, later = Delivery(), Delivery()
    before.row, later.row = (b"before",), (b"later",)
    before.owner = later.owner = queue.add(before.row)
    queue.callbacks += [
        (later, lambda: called.append("later")),
        (before, lambda: called.append("before")),
    ]
    queue.seal(0, 0)
    later.owner.items.append(later.row)  # another thread appends a row late
    queue.late.append(later.owner)
    queue.seal(0, 0)
    for batch in queue.sealed:
        batch.finish()
    assert called == ["before", "later"]
