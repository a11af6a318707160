"""Produce requests of one partition: checks them, appends them and answers them."""

from __future__ import annotations

from pymq.core.batch.batch_validation import (
    KAFKA_RECORDS_MAX,
    check,
    check_produced,
    is_too_large,
)
from pymq.core.batch.header import CONTROL, DELAYED, DELAYED_COPY, KAFKA_FORMAT, NOTE
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import GetSequence, Produce, Produced, Sequence
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.open_block import ReplicaState
from pymq.core.pending.pending_produces import DelayedAppended, PendingProduces, Waited
from pymq.core.types import AckMode
from pymq.errors import (
    CorruptBatch,
    DelayLimitReached,
    DuplicateSequence,
    InvalidRequest,
    MissingExtra,
    NotEnoughReplicas,
    NotLeader,
    PartitionUnset,
    PymqError,
    RecordTooLarge,
    ReplicaNotAvailable,
    not_written,
)

APPOINTED = ReplicaState.APPOINTED
PARKED_BYTES = 16 << 20  # bytes of batches that wait while a block is sealed or recovered


class ProduceHandler:
    """Appends batches to one partition, and answers when they are as durable as required."""

    __slots__ = (
        "_answers",
        "_host",
        "_parked",
        "_parked_bytes",
        "_partition",
        "bytes",
        "must_sync",
        "records",
    )

    def __init__(self, partition: PartitionContext) -> None:
        self.records = 0  # records since this broker began to host the replica, for the metrics
        self.bytes = 0
        self._partition = partition
        self._host = partition.host
        self._answers = PendingProduces()
        self._parked: list[tuple[str, Produce]] = []
        self._parked_bytes = 0
        # a producer has requested a sync, regardless of the topic's ``fsync``
        self.must_sync = False

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch or refuse it; answer when the batch is as durable as *m.acks* requires."""
        error = self._refusal(m)
        if error is not None:
            self._refuse(source, m, error, now)
            return
        partition = self._partition
        opened = partition.opened
        writer = opened.writer
        if writer is None or opened.is_parking:
            mark("partition.parked")
            self._park(source, m, now)
            return
        replicator, log = writer.replicator, writer.log
        verdict = log.producers.check(m.batch.header)
        if isinstance(verdict, DuplicateSequence):
            self._answer(source, Produced(m.id, error=verdict), m.acks, now)
            return
        if isinstance(verdict, PymqError):
            self._refuse(source, m, verdict, now)
            return
        epoch = replicator.epoch
        if verdict is not None:
            mark("partition.repeat")
            if m.acks is AckMode.RAFT and (missing := self._missing(verdict)) is not None:
                self._answer(source, Produced(m.id, error=missing), m.acks, now)
                return
            # The first copy may not be on disk yet, so the answer to the duplicate waits until it
            # is.
            repeat = Produced(m.id, verdict, epoch, True)
            self._await(verdict + m.batch.header.span, source, m, repeat)
            self.answer_due(log.stable_end, replicator.high_watermark, now)
            return
        if (error := self._unsound(m.batch, now)) is not None:
            self._refuse(source, m, error, now)
            return
        appended = log.append(m.batch, epoch)
        header = appended.header
        self.records += header.count
        self.bytes += header.length
        if m.sync:
            self.must_sync = True
        if header.attributes & (DELAYED | DELAYED_COPY):
            # Notify the scheduler first, because the answer lets it begin its next job.
            news = DelayedAppended(0, appended)
            self._answers.add(header.base_offset + header.span, "", news, is_local=False)
        answer = Produced(m.id, header.base_offset, epoch)
        self._await(header.base_offset + header.span, source, m, answer)
        writer.is_unsent = True

    def would_park(self) -> bool:
        """Whether a batch would have to wait, because the block is being sealed or recovered."""
        opened = self._partition.opened
        return opened.writer is None or opened.is_parking

    def _park(self, source: str, m: Produce, now: int) -> None:
        """Park a batch; if too many bytes are already parked, refuse this and all later batches."""
        if self._parked_bytes >= PARKED_BYTES:
            wait = f"{self._partition.name} cannot be written now, and too many bytes already wait"
            self._refuse(source, m, ReplicaNotAvailable(f"{wait}; try again"), now)
            return
        self._parked.append((source, m))
        self._parked_bytes += m.batch.size

    def _take_parked(self) -> list[tuple[str, Produce]]:
        parked, self._parked, self._parked_bytes = self._parked, [], 0
        return parked

    def _refusal(self, m: Produce) -> PymqError | None:
        partition = self._partition
        if partition.problem is not None:
            return partition.opened.refusal(partition.problem)
        state, name = partition.state, partition.name
        if state.acks is AckMode.UNSET:
            return PartitionUnset(
                f"{name} has no ack mode yet; call set_partition_state({state.topic!r}, "
                f"{state.partition!r}, acks=...) first"
            )
        opened = partition.opened
        replicator = opened.replicator
        if replicator is not None and not replicator.is_leader and opened.replica is not APPOINTED:
            return NotLeader.of(name, replicator.leader)
        if replicator is None and (opened.log is None or state.leader != partition.me):
            return NotLeader.of(name, state.leader)
        header = m.batch.header
        if header.count == 0 or header.span != header.count or header.attributes & CONTROL:
            return InvalidRequest("a producer's batch holds records and nothing else")
        if header.attributes & DELAYED and state.config.cleanup_policy == "compact":
            return InvalidRequest(f"topic {state.topic!r} is compacted: it has no delayed records")
        delays = partition.delays
        if delays is not None and delays.is_full and header.attributes & NOTE == DELAYED:
            return DelayLimitReached(f"{name} has reached its limit of delayed records")
        limit = state.config.max_record_bytes
        # Large batches are rare, so only they get the exact check.
        is_large = max(header.length, header.raw_length) > limit or header.count > KAFKA_RECORDS_MAX
        if is_large and is_too_large(header, limit) and not header.attributes & DELAYED_COPY:
            return RecordTooLarge(
                f"a batch of {header.length} bytes and {header.count} records is too large for "
                f"{state.topic!r}, whose max_record_bytes is {limit}"
            )
        if m.acks is AckMode.RAFT and (needed := self._lacks()):
            return NotEnoughReplicas(f"{name} has fewer than {needed} replicas in sync")
        return None

    def _unsound(self, batch: EncodedBatch, now: int) -> PymqError | None:
        """Return the error if the batch is not sound; this is the last check before it gets an
        offset.
        """
        name, after = self._partition.name, self._partition.state.config.timestamp_after_max_ms
        try:
            if not batch.is_sound:
                check(batch)
            latest = None if after is None else now + self._host.wall_offset_ms + after
            check_produced(batch, latest)
            if batch.header.body_format == KAFKA_FORMAT:
                self._check_keys(batch)
        except CorruptBatch as error:
            mark("partition.unsound")
            return CorruptBatch(f"{name} has received an invalid batch: {error.message}")
        except (InvalidRequest, MissingExtra) as error:
            mark("partition.invalid")
            return type(error)(f"{name}: {error.message}")
        return None

    def _check_keys(self, batch: EncodedBatch) -> None:
        """Check a Kafka batch for a compacted topic: like Kafka, refuse records without a key.

        Raises:
            CorruptBatch, MissingExtra: the records cannot be read.
            InvalidRequest: a record has no key.
        """
        if self._partition.state.config.cleanup_policy != "compact":
            return
        has_keys = None not in batch.keys if batch.has_keys is None else batch.has_keys
        if not has_keys:
            mark("partition.kafka_without_key")
            raise InvalidRequest("a record of a compacted topic has no key")

    def _lacks(self) -> int:
        """Return ``min_in_sync`` if acks="all" is requested and too few replicas are in sync.

        The result is 0 if enough replicas are in sync.
        """
        state, replicator = self._partition.state, self._partition.opened.replicator
        needed = min(state.config.min_in_sync, len(state.blocks[-1].replicas))
        if needed == 1 or replicator is None:
            return 0  # the usual case: the leader alone is enough
        return needed if len(replicator.in_sync) < needed else 0

    def _missing(self, offset: int) -> PymqError | None:
        """Return the error if the record at *offset* is unsafe, because it is on too few disks.

        Such a record was never acknowledged, and becomes safe only when a repair has copied it to a
        majority.
        """
        state = self._partition.state
        for block in state.blocks[:-1]:
            if block.end is not None and block.start <= offset < block.end:
                is_raft = block.acks is AckMode.RAFT and not block.is_unclean
                if is_raft and len(block.in_sync) <= len(block.replicas) // 2:
                    mark("partition.repeat_of_too_few")
                    return ReplicaNotAvailable(
                        f"the record of {self._partition.name} at offset {offset} is on only "
                        f"{len(block.in_sync)} of {len(block.replicas)} disks; try again"
                    )
        return None

    def _await(self, end: int, source: str, m: Produce, answer: Produced) -> None:
        if m.acks is not AckMode.NONE:
            is_local = m.acks is AckMode.LEADER and self._partition.opened.is_shared
            self._answers.add(end, source, answer, is_local=is_local)

    def sequence(self, source: str, m: GetSequence, now: int) -> None:
        """Answer with the producer's next sequence in this partition."""
        partition = self._partition
        error, known = partition.problem, 0
        if error is not None:
            error = partition.opened.refusal(error)
        elif not partition.is_settled:
            mark("partition.sequence_too_early")
            error = ReplicaNotAvailable(f"{partition.name} does not know the end of its log yet")
        elif not partition.leads:
            error = NotLeader.of(partition.name, partition.opened.leader)
        elif (log := partition.opened.log) is not None:
            known = log.producers.next_sequence(m.producer_id)
            # A producer resumes after its earlier records, so answer only when these records are
            # safe.
            if self._waits(source, Sequence(m.id, known), log.producers.end(m.producer_id)):
                return
        self._host.reply(source, Sequence(m.id, known, error), now)

    def _waits(self, source: str, answer: Sequence, end: int) -> bool:
        """Queue the answer until everything before *end* is safe; returns whether it was queued."""
        partition = self._partition
        opened = partition.opened
        log, replicator = opened.log, opened.replicator
        if log is None or replicator is None:
            return False
        is_local = partition.state.acks is not AckMode.RAFT and opened.is_shared
        if end <= (log.stable_end if is_local else replicator.high_watermark):
            return False
        mark("partition.sequence_waits")
        self._answers.add(end, source, answer, is_local=is_local)
        return True

    def _refuse(self, source: str, m: Produce, error: PymqError, now: int) -> None:
        """Refuse a request, of which nothing was appended."""
        # A producer with acks=0 gets no answers, except the error that names a new leader.
        if m.acks is not AckMode.NONE or isinstance(error, NotLeader):
            self._host.reply(source, Produced(m.id, error=not_written(error)), now)

    def _answer(self, source: str, answer: Produced, acks: AckMode, now: int) -> None:
        if acks is not AckMode.NONE:
            self._host.reply(source, answer, now)

    def answer_due(self, local: int, committed: int, now: int) -> None:
        """Answer the requests whose records are safe: on this disk, or committed."""
        answers, opened = self._answers, self._partition.opened
        if not answers.local and not answers.committed:
            return  # the usual case; this runs with each message, also on followers
        if answers.committed and opened.is_shared and not opened.is_voted and self._lacks():
            # All in-sync replicas have the records, but there are now too few in-sync replicas.
            committed = -1
        for source, answer in answers.due(local, committed):
            if type(answer) is Produced:  # the usual case
                self._host.reply(source, answer, now)
            else:
                self._leave(source, answer, now)

    def _leave(self, source: str, answer: Waited, now: int) -> None:
        if isinstance(answer, DelayedAppended):
            self._host.delayed(self._partition.name, answer, now)
        else:
            self._host.reply(source, answer, now)

    def refuse(self, error: PymqError, now: int) -> None:
        """Answer all waiting requests with *error*, because the outcome of their records is
        unknown.
        """
        for source, answer in self._answers.take():
            self._leave(source, type(answer)(answer.id, error=error), now)

    def refuse_parked(self, error: PymqError, now: int) -> None:
        """Refuse all parked batches."""
        for source, produce in self._take_parked():
            self._refuse(source, produce, error, now)

    def drive_parked(self, now: int) -> None:
        """Handle all parked batches again; this may park some of them again."""
        for source, produce in self._take_parked():
            self.produce(source, produce, now)
