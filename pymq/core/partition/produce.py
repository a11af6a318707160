"""What producers send to a partition: whether it may be appended, and who waits for what."""

from __future__ import annotations

from typing import Protocol

from pymq.core.batch.batch_validation import check, check_produced, is_too_large
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import GetSequence, Message, Produce, Produced, Sequence
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.open_block import OpenBlock
from pymq.core.partition.pending_produces import PendingProduces
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import (
    CorruptBatch,
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

PARKED_BYTES = 16 << 20  # what may wait while a block is sealed, or before its end is known


class WritableReplica(Protocol):
    """What of a partition matters to those who write to it."""

    name: TopicPartition
    state: PartitionState
    problem: PymqError | None
    opened: OpenBlock

    @property
    def me(self) -> str:
        """The broker's name."""
        ...

    @property
    def leads(self) -> bool:
        """Whether the replica here leads."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether it is known where the log ends, or that it never will be."""
        ...

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch, or say why not."""
        ...


class ProduceHost(Protocol):
    """What an intake needs of the broker."""

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...


class ProduceHandler:
    """The batches of one partition that are not answered yet."""

    __slots__ = (
        "_answers",
        "_host",
        "_must_sync",
        "_parked",
        "_parked_bytes",
        "_partition",
        "bytes",
        "records",
    )

    def __init__(self, partition: WritableReplica, host: ProduceHost) -> None:
        self.records = 0  # taken in since this replica is here, for the metrics
        self.bytes = 0
        self._partition = partition
        self._host = host
        self._answers = PendingProduces()
        self._parked: list[tuple[str, Produce]] = []
        self._parked_bytes = 0
        self._must_sync = False  # somebody asked for it, whatever the topic's ``fsync``

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch, or say why not; answered when *m.acks* is fulfilled."""
        error = self._refusal(m)
        if error is not None:
            self._refuse(source, m, error, now)
            return
        partition = self._partition
        opened = partition.opened
        replicator, log = opened.replicator, opened.log
        if replicator is None or log is None or opened.is_parking:
            mark("partition.parked")
            self._park(source, m, now)
            return
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
            # The repeat may still be on its way to the disk: it is answered when that is done.
            repeat = Produced(m.id, verdict, epoch, True)
            self._await(verdict + m.batch.header.span, source, m, repeat)
            self.answer_due(log.stable_end, replicator.high_watermark, now)
            return
        if (error := self._unsound(m.batch, now)) is not None:
            self._refuse(source, m, error, now)
            return
        header = log.append(m.batch, epoch).header
        self.records += header.count
        self.bytes += header.length
        self._must_sync = self._must_sync or m.sync
        answer = Produced(m.id, header.base_offset, epoch)
        self._await(header.base_offset + header.span, source, m, answer)
        opened.appended()

    def _park(self, source: str, m: Produce, now: int) -> None:
        """Let a batch wait, unless too much waits already; then all that follow are refused."""
        if self._parked_bytes >= PARKED_BYTES:
            wait = f"{self._partition.name} cannot be written now, and much waits already"
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
        if replicator is not None and not replicator.is_leader and not opened.is_appointed:
            return NotLeader.of(name, replicator.leader)
        if replicator is None and (opened.log is None or state.leader != partition.me):
            return NotLeader.of(name, state.leader)
        header = m.batch.header
        if header.count == 0 or header.span != header.count or header.is_control:
            return InvalidRequest("a producer's batch holds records and nothing else")
        limit = state.config.max_record_bytes
        if is_too_large(header, limit):
            return RecordTooLarge(
                f"a batch of {header.length} bytes is too large for {state.topic!r}, whose "
                f"max_record_bytes is {limit}"
            )
        if m.acks is AckMode.RAFT and (needed := self._lacks()):
            return NotEnoughReplicas(f"{name} has fewer than {needed} replicas in sync")
        return None

    def _unsound(self, batch: EncodedBatch, now: int) -> PymqError | None:
        """Why the batch may not enter the log, if so; the last thing before it gets an offset."""
        name, after = self._partition.name, self._partition.state.config.timestamp_after_max_ms
        try:
            check(batch)
            check_produced(batch, None if after is None else self._host.wall_ms(now) + after)
        except CorruptBatch as error:
            mark("partition.unsound")
            return CorruptBatch(f"{name} was sent a batch that is not sound: {error.message}")
        except (InvalidRequest, MissingExtra) as error:
            mark("partition.invalid")
            return type(error)(f"{name}: {error.message}")
        return None

    def _lacks(self) -> int:
        """How many replicas are to be in sync for who waits for all of them; 0 if so many are."""
        state, replicator = self._partition.state, self._partition.opened.replicator
        needed = min(state.config.min_in_sync, len(state.blocks[-1].replicas))
        if needed == 1 or replicator is None:
            return 0  # as mostly: whoever leads has it
        return needed if len(replicator.in_sync) < needed else 0

    def _missing(self, offset: int) -> PymqError | None:
        """Why what is written at *offset* is not safe, if a Raft block ended on too few disks.

        It did not become visible there, or nobody was told; once it was copied, somebody may be.
        """
        state = self._partition.state
        for block in state.blocks[:-1]:
            if block.end is not None and block.start <= offset < block.end:
                is_raft = block.acks is AckMode.RAFT and not block.is_unclean
                if is_raft and len(block.in_sync) <= len(block.replicas) // 2:
                    mark("partition.repeat_of_too_few")
                    return ReplicaNotAvailable(
                        f"what {self._partition.name} has at offset {offset} is on "
                        f"{len(block.in_sync)} of {len(block.replicas)} disks so far; try again"
                    )
        return None

    def _await(self, end: int, source: str, m: Produce, answer: Produced) -> None:
        if m.acks is not AckMode.NONE:
            is_local = m.acks is AckMode.LEADER and self._partition.opened.is_shared
            self._answers.add(end, source, answer, is_local=is_local)

    def sequence(self, source: str, m: GetSequence, now: int) -> None:
        """Tell how far a producer has got."""
        partition = self._partition
        error, known = partition.problem, 0
        if error is not None:
            error = partition.opened.refusal(error)
        elif not partition.is_settled:
            mark("partition.sequence_too_early")
            error = ReplicaNotAvailable(f"{partition.name} does not know yet where its log ends")
        elif not partition.leads:
            error = NotLeader.of(partition.name, partition.opened.leader)
        elif (log := partition.opened.log) is not None:
            known = log.producers.next_sequence(m.producer_id)
            # Whoever goes on behind its records relies on them: told once they are safe.
            if self._waits(source, Sequence(m.id, known), log.producers.end(m.producer_id)):
                return
        self._host.reply(source, Sequence(m.id, known, error), now)

    def _waits(self, source: str, answer: Sequence, end: int) -> bool:
        """Whether it answers once everything before *end* is as safe as the mode has it."""
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
        """Nothing of this request was appended, nor will be."""
        # Who waits for no answer hears nothing else of where to send.
        if m.acks is not AckMode.NONE or isinstance(error, NotLeader):
            self._host.reply(source, Produced(m.id, error=not_written(error)), now)

    def _answer(self, source: str, answer: Produced, acks: AckMode, now: int) -> None:
        if acks is not AckMode.NONE:
            self._host.reply(source, answer, now)

    def answer_due(self, local: int, committed: int, now: int) -> None:
        """Answer those whose records are safe, on this disk or by all rules."""
        if self._answers.until_committed and not self._partition.opened.is_voted and self._lacks():
            committed = -1  # All in sync have it, but too many have left that set meanwhile.
        for source, answer in self._answers.due(local, committed):
            self._host.reply(source, answer, now)

    def refuse(self, error: PymqError, now: int) -> None:
        """Nobody knows what becomes of the records that wait for an answer."""
        for source, answer in self._answers.take():
            self._host.reply(source, type(answer)(answer.id, error=error), now)

    def refuse_parked(self, error: PymqError, now: int) -> None:
        """What has waited will not be appended here."""
        for source, produce in self._take_parked():
            self._refuse(source, produce, error, now)

    def drive_parked(self, now: int) -> None:
        """Take in what has waited, or let it wait on."""
        for source, produce in self._take_parked():
            self._partition.produce(source, produce, now)

    def take_sync(self) -> bool:
        """Whether somebody has asked for a sync since this was last asked."""
        must_sync, self._must_sync = self._must_sync, False
        return must_sync
