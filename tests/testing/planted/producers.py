"""Bugs of idempotence: a partition's knowledge of its producers."""

from __future__ import annotations

from typing import Any

import attrs

from pymq.access.grants import Grant
from pymq.access.guard import Guard
from pymq.controller.transitions import blocks
from pymq.core.batch.header import Header
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.sealing import Sealing
from pymq.core.partition.produce import ProduceHandler
from pymq.errors import OutOfOrderSequence, ProducerFenced
from tests.testing.planted.bug import bug, plant

AREA = "producers"

bug(
    "repeats-written",
    AREA,
    "a batch that is sent again is written again",
    "Redpanda #3039",
    "network network-3",
)


@plant("repeats-written", ProducerTable, "check")
def check_nothing(check: Any, self: ProducerTable, header: Header) -> None:
    return None


bug(
    "producers-forgotten",
    AREA,
    "recovery does not read what producers had written",
    "Redpanda #22670",
    "crash-3 crash",
)


@plant("producers-forgotten", ProducerTable, "replay")
def replay_nothing(replay: Any, self: ProducerTable, header: Header) -> None:
    return None


@plant("producers-forgotten", ProducerTable, "restore")
def restore_nothing(restore: Any, cls: type[ProducerTable], snapshot: bytes) -> ProducerTable:
    return cls()


bug(
    "gaps-accepted",
    AREA,
    "what should go on at a sequence goes on anywhere",
    "KAFKA-5494",
    "network network-3",
)


@plant("gaps-accepted", ProducerTable, "check")
def check_no_order(check: Any, self: ProducerTable, header: Header) -> Any:
    found = check(self, header)
    return None if isinstance(found, OutOfOrderSequence) else found


bug(
    "zombie-producer",
    AREA,
    "a batch of a producer epoch that was replaced is taken in",
    "KIP-98, librdkafka #4953",
    test="tests/client/producer/test_producer.py::test_an_older_epoch_is_fenced",
)


@plant("zombie-producer", ProducerTable, "check")
def check_no_epoch(check: Any, self: ProducerTable, header: Header) -> Any:
    found = check(self, header)
    return None if isinstance(found, ProducerFenced) else found


bug(
    "past-not-inherited",
    AREA,
    "the next block does not know the producers of the block before",
    "Redpanda #3039, at a roll",
    "rolls-3 network-3 swarm-3",
)


@plant("past-not-inherited", Sealing, "done")
def sealed_without_past(done: Any, self: Sealing, *arguments: Any) -> Any:
    answer = done(self, *arguments)
    empty = ProducerTable().snapshot()
    return answer if answer is None else attrs.evolve(answer, past=empty)


bug(
    "past-of-the-block-before",
    AREA,
    "the next block is told what the one that ends was told, and nothing of what it has added",
    "Kafka: a producer snapshot that is older than the segment",
    test="tests/testing/test_producers_across_blocks.py::"
    "test_replicas_that_are_all_new_know_them[raft]",
)


@plant("past-of-the-block-before", blocks, "roll")
def roll_with_old_past(roll: Any, draft: Any, sealed: Any, *arguments: Any, **named: Any) -> Any:
    before = draft.image.partition(sealed.topic, sealed.partition).open_block.past
    return roll(draft, attrs.evolve(sealed, past=before), *arguments, **named)


bug(
    "past-left-to-holders",
    AREA,
    "the table is left out of a roll if all replicas of the next block hold the one before",
    "a copy that counts may not be synced yet, and an empty block goes",
    "crash-3 rolls-3 network-3",
)


@plant("past-left-to-holders", blocks, "roll")
def roll_without_past(
    roll: Any, draft: Any, sealed: Any, holders: Any, *arguments: Any, **named: Any
) -> Any:
    replicas = draft.image.partition(sealed.topic, sealed.partition).open_block.replicas
    if set(replicas) <= set(holders):
        sealed = attrs.evolve(sealed, past=b"")
    return roll(draft, sealed, holders, *arguments, **named)


bug(
    "repeat-misplaced",
    AREA,
    "a repeat is answered with the offset of the producer's newest batch",
    "P2 of the study: a retry returns the original offset",
    "network network-3",
)


@plant("repeat-misplaced", ProducerTable, "check")
def check_newest(check: Any, self: ProducerTable, header: Header) -> Any:
    found = check(self, header)
    known = self._latest(header.producer_id)
    return known.batches[-1][3] if isinstance(found, int) and known is not None else found


bug(
    "failed-writes-count",
    AREA,
    "batches whose write has failed are taken for written",
    "the producer table must be part of the log (P7)",
    test="tests/core/test_producer_table.py::test_what_could_not_be_written_is_no_repeat",
)


@plant("failed-writes-count", ProducerTable, "discard")
def discard_nothing(discard: Any, self: ProducerTable) -> None:
    self.write()
    self.settle()


bug(
    "repeat-answered-early",
    AREA,
    "a repeat is confirmed while the first one is still on its way to the disks",
    "etcd #14370, for retries",
    "network-3 swarm-3",
)


@plant("repeat-answered-early", ProduceHandler, "_await")
def answer_repeats(
    wait: Any, self: ProduceHandler, end: int, source: str, m: Any, answer: Any
) -> None:
    if answer.duplicate:
        self._host.reply(source, answer, 0)
    else:
        wait(self, end, source, m, answer)


bug(
    "other-batches-acknowledged",
    AREA,
    "a batch is taken for a repeat by its numbers alone",
    "Kafka: ids bound to nobody",
    "hostile-3",
)


@plant("other-batches-acknowledged", ProducerTable, "check")
def check_numbers(check: Any, self: ProducerTable, header: Header) -> Any:
    known = self._producers.get(header.producer_id)
    for *numbers, offset, _ in known.batches if known else ():
        if numbers == [header.producer_epoch, header.base_sequence, header.count]:
            return offset
    return check(self, header)


bug(
    "foreign-principal-accepted",
    AREA,
    "a grant is taken from anybody who shows it",
    "Kafka: ids bound to nobody",
    test="tests/access/test_grants.py::test_nobody_else_writes_under_it",
)


@plant("foreign-principal-accepted", Guard, "_disown")
def disown_no_principal(disown: Any, self: Guard, principal: str, source: str, m: Any) -> Any:
    grant = self.grants.read(m.grant) if self.grants is not None else None
    return disown(self, grant.principal if grant is not None else principal, source, m)


bug(
    "epoch-not-granted",
    AREA,
    "an epoch above the one that was granted is accepted, and fences all that come after it",
    "KIP-360: a producer raises its epoch by itself",
    test="tests/access/test_grants.py::test_no_epoch_is_used_that_was_not_given_out",
)


@plant("epoch-not-granted", Grant, "covers")
def cover_all_epochs(covers: Any, self: Grant, producer_id: int, epoch: int) -> bool:
    return bool(covers(self, producer_id, 0))


bug(
    "producers-expired-early",
    AREA,
    "a producer whose last time is not known after a restart is taken for silent since ever",
    "Kafka: producers that expire too soon",
    test="tests/core/test_producer_table.py::"
    "test_silence_is_counted_only_once_it_is_known_since_when",
)


@plant("producers-expired-early", ProducerTable, "expire")
def expire_unknown(expire: Any, self: ProducerTable, now_ms: int, silent_ms: int) -> None:
    self._seen = {each: max(seen_ms, 0) for each, seen_ms in self._seen.items()}
    expire(self, now_ms, silent_ms)


bug(
    "clock-set-is-silence",
    AREA,
    "a producer is taken for silent by as much as a wall clock was set ahead",
    "own, before decision 148; Kafka's producer.id.expiration.ms goes by the broker's clock",
    test="tests/testing/test_clock_set.py",
)


@plant("clock-set-is-silence", ProducerTable, "tell")
def tell_nothing(tell: Any, self: ProducerTable, now_ms: int) -> None:
    return None


bug(
    "past-without-bound",
    AREA,
    "the table of producers goes into the tree whole, and a roll never succeeds again",
    "jute.maxbuffer of ZooKeeper",
    test="tests/core/test_producer_table.py::test_no_table_is_larger_than_a_roll_can_take[5000]",
)


@plant("past-without-bound", ProducerTable, "hand_on")
def hand_on_all(hand_on: Any, self: ProducerTable, *arguments: Any) -> bytes:
    return self.snapshot()
