"""The producer of a simulated Kafka client: idempotent or not, with several requests on their way.

As Kafka's producers do, it sends a refused batch again with the same sequence, unless the error is
final. When a batch has failed for good, or the leader misses records, the producer asks for its
next epoch, under which sequences begin at 0. Batches that may have been written under the former
epoch then count as failed, since sending them again could write them twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from pymq.core.batch.kafka.batch import crc32c_function, wrap
from pymq.core.types import AckMode
from pymq.core.values import Factory, define
from pymq.errors import (
    DeliveryTimeout,
    InvalidRequest,
    InvalidTimestamp,
    PymqError,
    RecordTooLarge,
)
from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as k
from pymq.testing.checkers.promises import AnswerRules, AskedRequest
from pymq.testing.simulation.world import WALL_MS
from pymq.testing.workload.applications import KEYS, Sent, WorkloadHistory
from pymq.testing.workload.consuming import value_of
from pymq.testing.workload.kafka.batches import encode_batch
from pymq.testing.workload.kafka.client import BACKOFF_US, RETRIABLE, SimKafkaClient
from pymq.testing.workload.kafka.names import partition_name

TIMEOUT_MS = 5_000  # in a request: a broker's time to get the acknowledgements
NOBODY = (-1, -1, -1)
GAP = 1_000_000  # so far ahead that the producer never comes there
FINAL: dict[int, type[PymqError]] = {
    Code.MESSAGE_TOO_LARGE: RecordTooLarge,
    Code.INVALID_TIMESTAMP: InvalidTimestamp,
}

Place = tuple[str, int]  # topic, and index of the partition
Answered = Callable[[Any], None]


@define
class SentBatch:
    """A batch, and what became of it."""

    place: Place
    sent: list[Sent]
    size: int  # bytes of each value
    due: int  # when the producer gives it up
    sequence: int = -1
    epoch: int = -1
    data: bytes = b""  # once it has its sequence
    asked: AskedRequest | None = None
    is_under_way: bool = False
    may_be_written: bool = False
    is_first_attempt: bool = True


@define
class PartitionLine:
    """The batches of a partition that are not acknowledged, in order."""

    batches: deque[SentBatch] = Factory(deque)
    next_sequence: int = 0
    is_paused: bool = False
    acked: SentBatch | None = None  # the last batch that was acknowledged
    base: int = -1  # its offset


class KafkaProducerApp:
    """Produces records of the workload."""

    def __init__(
        self,
        client: SimKafkaClient,
        history: WorkloadHistory,
        answers: AnswerRules,
        *,
        acks: int | None = None,
    ) -> None:
        config = client.config
        self.client = client
        self.acks = int(config.get("acks", -1)) if acks is None else acks
        self.mode = AckMode.RAFT if self.acks == -1 else AckMode.LEADER
        self.is_idempotent = bool(config.get("idempotent", True))
        self.is_bumping = False
        self.lines: dict[Place, PartitionLine] = {}
        self._history = history
        self._answers = answers
        self._in_flight = int(config.get("max_in_flight", 5))
        self._timeout_us = int(config.get("delivery_timeout_ms", 20_000)) * 1_000
        self._producer = -1
        self._epoch = -1
        self._is_starting = False

    # --- records --------------------------------------------------------------------------------

    def send(self, topic: str, index: int, count: int, size: int) -> list[Sent]:
        """Send some records to a partition, as one batch."""
        client, now = self.client, self.client.world.now
        name, found = partition_name(client.cluster, topic, index), list[Sent]()
        for _ in range(count):
            found.append(self._note(topic, name, now))
        line = self.lines.setdefault((topic, index), PartitionLine())
        line.batches.append(SentBatch((topic, index), found, size, now + self._timeout_us))
        self._pump(line)
        return found

    def _note(self, topic: str, name: str, now: int) -> Sent:
        number = len(self._history.sent)
        sent = Sent(number, self.client.name, topic, name, self.mode, self.is_idempotent, now)
        self._history.sent.append(sent)
        return sent

    def _encode(self, batch: SentBatch, sequence: int) -> None:
        """Give a batch its numbers, and its bytes, which stay the same with each attempt."""
        numbers = [sent.number for sent in batch.sent]
        all_keys = bool(self.client.config.get("keys"))
        keys = [b"%d" % (n % KEYS) if all_keys or n % 3 == 0 else None for n in numbers]
        producer = (self._producer, self._epoch, sequence) if self.is_idempotent else NOBODY
        time_ms = WALL_MS + self.client.world.now // 1000
        batch.sequence, batch.epoch = sequence, self._epoch
        batch.data = encode_batch(
            [value_of(n, batch.size) for n in numbers],
            keys,
            time_ms,
            producer,
            is_packed=bool(self.client.config.get("packed")),
        )
        # The gate puts pymq's header before these bytes; the checkers know a batch by its CRC.
        stored = wrap(batch.data, crc32c_function(), time_ms)
        topic, name = batch.sent[0].topic, batch.sent[0].partition
        batch.asked = self._answers.expect(topic, name, self.mode, stored)

    # --- sending --------------------------------------------------------------------------------

    def _pump(self, line: PartitionLine) -> None:
        """Send the next batches of a partition, in order, as many as may be under way."""
        self._expire(line)
        if self.is_bumping or line.is_paused or not line.batches:
            return
        if self.is_idempotent and self._producer < 0:
            self._start()
            return
        under_way = sum(batch.is_under_way for batch in line.batches)
        for batch in line.batches:
            if batch.is_under_way:
                continue
            if under_way >= self._in_flight:
                return
            if self.client.leader(*batch.place) is None:
                self._wait(line, batch)
                return
            if not batch.data:
                self._encode(batch, line.next_sequence)
                line.next_sequence += len(batch.sent)
            self._send(line, batch)
            under_way += 1

    def _send(self, line: PartitionLine, batch: SentBatch) -> None:
        batch.is_under_way = batch.may_be_written = True
        self._ask(batch, batch.data, lambda answer: self._answered(line, batch, answer))

    def _ask(self, batch: SentBatch, data: bytes, then: Answered) -> None:
        """Send bytes to the leader of a batch's partition."""
        topic, index = batch.place
        part = k.ProduceRequestPartitionProduceData(index, data)
        known = self.client.topics[topic]
        topics = [k.ProduceRequestTopicProduceData(topic, known.id, [part])]
        body = k.ProduceRequest(None, self.acks, TIMEOUT_MS, topics)

        def answered(answer: k.ProduceResponse | None) -> None:
            if answer is None:
                then(None)
                return
            (each,) = answer.responses
            (found,) = each.partition_responses
            if found.index != index or each.name not in ("", topic):
                self.client.fail("answers-in-order", f"{topic}/{index} is answered as {each}")
            self.client.check_code(found.error_code, f"produce to {topic}/{index}")
            then(found)

        self.client.ask(self.client.leader(topic, index), "Produce", body, answered)

    def _wait(self, line: PartitionLine, batch: SentBatch) -> None:
        """Look for the leader, and try again after a while."""
        line.is_paused = True
        self.client.refresh([batch.place[0]])

        def resume() -> None:
            line.is_paused = False
            self._pump(line)

        self.client.later(BACKOFF_US, resume)

    def _answered(
        self,
        line: PartitionLine,
        batch: SentBatch,
        answer: k.ProduceResponsePartitionProduceResponse | None,
    ) -> None:
        batch.is_under_way = False
        code = answer.error_code if answer is not None else Code.REQUEST_TIMED_OUT
        if batch not in line.batches:
            pass  # It was given up meanwhile.
        elif answer is not None and not code:
            self._acked(line, batch, answer.base_offset)
        elif code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self.is_idempotent:
            if batch is line.batches[0] and not self.is_bumping:
                self._lost(line, batch)
            elif not self.is_bumping:
                self._wait(line, batch)
        elif code in RETRIABLE:
            if not self.is_bumping:
                self._wait(line, batch)
        elif code in FINAL:
            is_first = answer is not None and batch.is_first_attempt
            self._fail(line, batch, FINAL[code]("refused"), is_sure=is_first)
        elif code == Code.DUPLICATE_SEQUENCE_NUMBER:
            if batch.is_first_attempt and not self._has_lost(batch):
                what = (
                    f"{batch.place}: sequence {batch.sequence} of epoch {batch.epoch} is no repeat"
                )
                self.client.fail("sequences-are-kept", what)
            self._fail(line, batch, DeliveryTimeout("written before, nobody knows where"))
        else:
            where = f"{batch.place} {batch.sent[0].number}"
            self.client.fail("errors-have-a-reason", f"produce to {where} gets {code}")
        batch.is_first_attempt = False
        self._pump(line)
        if self.is_bumping:
            self._bump_if_quiet()

    def _acked(self, line: PartitionLine, batch: SentBatch, base: int) -> None:
        """Note an acknowledgement, which names the offset of the first record."""
        line.batches.remove(batch)
        assert batch.asked is not None
        self._answers.heard(batch.asked, base, self.client.name)
        last = line.acked
        is_same = last is not None and last.epoch == batch.epoch and self.is_idempotent
        is_later = last is None or not is_same or batch.sequence > last.sequence
        is_odd = last is not None and is_same and is_later != (base > line.base)
        if last is not None and is_odd and not self._has_lost(batch):
            what = f"{batch.place}: sequence {batch.sequence} is at {base}, and"
            what = f"{what} {last.sequence} is at {line.base}"
            self.client.fail("offsets-follow-sequences", what)
        if is_later:
            line.acked, line.base = batch, base
        for number, sent in enumerate(batch.sent):
            sent.done_at, sent.offset = self.client.world.now, base + number

    def _has_lost(self, batch: SentBatch) -> bool:
        """Whether visible records of the partition are lost, as weak settings allow."""
        assert self.client.cluster.watch is not None
        sent = batch.sent[0]
        history = self.client.cluster.watch.history_of(sent.topic, sent.partition)
        return history is None or history.losses > 0

    # --- failures and epochs ----------------------------------------------------------------------

    def _expire(self, line: PartitionLine) -> None:
        """Give up batches whose time is over."""
        now = self.client.world.now

        def late() -> SentBatch | None:
            return next((b for b in line.batches if b.due <= now and not b.is_under_way), None)

        # A failure may begin an epoch, which replaces the batches.
        while (batch := late()) is not None:
            self._fail(line, batch, DeliveryTimeout("too late"), is_sure=not batch.may_be_written)

    def _fail(
        self, line: PartitionLine, batch: SentBatch, error: PymqError, *, is_sure: bool = False
    ) -> None:
        line.batches.remove(batch)
        if isinstance(error, DeliveryTimeout) or not is_sure:
            error = DeliveryTimeout(str(error), may_be_written=not is_sure)
        for sent in batch.sent:
            sent.done_at, sent.error = self.client.world.now, error
        if batch.data and self.is_idempotent:
            self.bump()  # The sequences of the batch are missing in the log, perhaps.

    def _lost(self, line: PartitionLine, batch: SentBatch) -> None:
        """Begin a new epoch, because the leader misses records that were acknowledged."""
        if self.acks == -1 and not self._has_lost(batch):
            what = f"{batch.place}: sequence {batch.sequence} of epoch {batch.epoch} is refused"
            self.client.fail("sequences-are-kept", what)
        self.bump()

    def bump(self) -> None:
        """Ask for the next epoch once nothing is under way."""
        if self.is_idempotent and self._producer >= 0:
            self.is_bumping = True
            self._bump_if_quiet()

    def _bump_if_quiet(self) -> None:
        batches = [batch for line in self.lines.values() for batch in line.batches]
        if any(batch.is_under_way for batch in batches) or self._is_starting:
            return
        for line in self.lines.values():
            for batch in [batch for batch in line.batches if batch.may_be_written]:
                line.batches.remove(batch)
                for sent in batch.sent:
                    sent.done_at = self.client.world.now
                    sent.error = DeliveryTimeout("its epoch is over", may_be_written=True)
            for batch in line.batches:
                batch.data = b""
            line.next_sequence = 0
        self._start()

    def _start(self) -> None:
        """Ask for an id, or for the next epoch of the present one."""
        if self._is_starting:
            return
        self._is_starting = True
        body = k.InitProducerIdRequest(None, 0, self._producer, self._epoch)
        self.client.ask(self.client.anybody(), "InitProducerId", body, self._started)

    def _started(self, answer: k.InitProducerIdResponse | None) -> None:
        self._is_starting = False
        code = answer.error_code if answer is not None else Code.REQUEST_TIMED_OUT
        self.client.check_code(code, "InitProducerId")
        if answer is None or code:
            if code not in RETRIABLE:
                self.client.fail("errors-have-a-reason", f"InitProducerId gets {code}")
            self._is_starting = True

            def again() -> None:
                self._is_starting = False
                for line in self.lines.values():
                    self._expire(line)
                self._start()

            self.client.later(BACKOFF_US, again)
            return
        is_new = answer.producer_id != self._producer
        if not is_new and answer.producer_epoch <= self._epoch:
            self.client.fail("epochs-of-producers-rise", f"{self._epoch} and then {answer}")
        self._producer, self._epoch, self.is_bumping = (
            answer.producer_id,
            answer.producer_epoch,
            False,
        )
        for line in self.lines.values():
            self._pump(line)

    # --- what brokers must refuse -----------------------------------------------------------------

    def forge(self, kind: str, topic: str, index: int) -> None:
        """Send a batch under wrong numbers, which the leader must refuse; or a batch again.

        The kinds are ``"gap"``, ``"zombie"`` and ``"repeat"``. Nothing is sent unless the leader
        knows the present epoch of the producer.
        """
        line = self.lines.get((topic, index))
        last = line.acked if line is not None else None
        is_sure = self.is_idempotent and self.acks == -1 and not self.is_bumping
        if line is None or last is None or not is_sure or line.batches or self._has_lost(last):
            return
        if last.epoch != self._epoch or self.client.leader(topic, index) is None:
            return
        if kind == "repeat":
            self._ask(last, last.data, partial(self._repeated, last, line.base))
            return
        sequence, epoch = line.next_sequence + (GAP if kind == "gap" else 0), self._epoch
        if kind == "zombie":
            epoch -= 1
        if epoch < 0:
            return
        sent = self._note(topic, last.sent[0].partition, self.client.world.now)
        sent.done_at, sent.error = sent.at, InvalidRequest(f"a {kind}, which must be refused")
        time_ms = WALL_MS + self.client.world.now // 1000
        numbers = (self._producer, epoch, sequence)
        data = encode_batch([value_of(sent.number, 8)], [None], time_ms, numbers)
        self._ask(last, data, partial(self._forged, last, sent, kind))

    def _repeated(self, last: SentBatch, base: int, answer: Any) -> None:
        if answer is None or answer.error_code or self._has_lost(last):
            return
        if answer.base_offset != base:
            what = f"{last.place}: at {base}, and again at {answer.base_offset}"
            self.client.fail("repeat-has-its-offset", what)

    def _forged(self, last: SentBatch, sent: Sent, kind: str, answer: Any) -> None:
        if self._has_lost(last):
            sent.error = DeliveryTimeout("accepted, as weak settings allow", may_be_written=True)
        elif answer is not None and not answer.error_code:
            what = f"{last.place}: a {kind} is accepted at {answer.base_offset}"
            self.client.fail("wrong-numbers-are-refused", what)
