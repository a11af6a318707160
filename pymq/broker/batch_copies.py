"""Copies batches between two partitions that the broker leads.

A client can publish batches that are already in another topic: it names them instead of fetching
and sending them again. The request also has the producer sequences with which the broker appends
the batches. A copy consists of ordinary fetches and produces by the broker, so the rules for both
apply. A client may retry a copy at any time: the partition recognises duplicates by producer and
sequence, and a retry replaces a running copy.

Limits:

- At most :data:`READS` copies read at the same time, :data:`READ_BYTES` each.
- A copy stops reading while :data:`UNSAFE_BYTES` of its appended bytes are not acknowledged.
- An account (a principal, or a connection without one) may have at most as many copies in progress
  as it leaves free for others. Accounts read in rotation.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Protocol

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.batch_validation import check
from pymq.core.counts import plural
from pymq.core.message import Copied, Copy, Fetch, Fetched, Message, Piece, Produce, Produced
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.pending.fetch_limits import FetchOutbox
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode
from pymq.core.values import Factory, define
from pymq.errors import InvalidRequest, NotLeader, PymqError, ReplicaNotAvailable

COPIES = "#copies"  # source name of the broker's own requests
READ_BYTES = 1 << 20  # bytes in one fetch of a copy; a larger batch is still read whole
READS = 4  # copies that read at the same time
UNSAFE_BYTES = 8 << 20  # bytes that a copy has appended and that are not yet acknowledged
PIECES_MAX = 4096
COPIES_MAX = 1000
SEQUENCE_MAX = 1 << 62

Key = tuple[str, str, int]  # (topic, partition, producer)


class CopyHost(Protocol):
    """The interface of the broker to its copies."""

    @property
    def me(self) -> str:
        """The broker's name."""
        ...

    def hosted(self, topic: str, partition: str) -> Partition | None:
        """Return a partition that the broker hosts."""
        ...

    def on_partition(self, source: str, m: Produce | Fetch, now: int) -> None:
        """Pass a request to a hosted partition; the answer goes to *source*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    @property
    def outbox(self) -> FetchOutbox:
        """The outbox, which knows accounts and their quotas."""
        ...


@define
class _Job:
    """One copy in progress, with its requests and answers."""

    number: int  # request id of its fetches and produces
    source: str
    account: str
    asked: Copy
    sequence: int
    pieces: deque[Piece]
    sent: deque[tuple[int, int]] = Factory(deque)  # records and bytes of unacknowledged batches
    unsafe: int = 0  # bytes not yet acknowledged
    records: int = 0  # acknowledged records
    size: int = 0  # acknowledged bytes
    is_in_line: bool = False  # whether the copy waits to read, or reads

    @property
    def key(self) -> Key:
        asked = self.asked
        return asked.topic, asked.partition, asked.producer_id


class BatchCopies:
    """The copies in progress on one broker."""

    def __init__(self, host: CopyHost) -> None:
        self._host = host
        self._last = 0
        self._jobs: dict[int, _Job] = {}
        self._numbers: dict[Key, int] = {}
        self._held: dict[str, int] = {}  # number of copies in progress, by account
        # Copies that wait to read, by account. Accounts are served in rotation, and so are the
        # copies of an account.
        self._line: OrderedDict[str, dict[int, _Job]] = OrderedDict()
        self._reading: set[int] = set()
        self._held_up: dict[int, _Job] = {}  # copies delayed by the quota of their account
        self.deadline = NEVER  # deadline of :meth:`tick`

    def begin(self, source: str, m: Copy, now: int) -> None:
        """Begin or refuse a copy; answer when all batches are as durable as *m.acks* requires."""
        error = self._refusal(m)
        if error is not None or not m.pieces:
            self._host.reply(source, Copied(m.id, error=error), now)
            return
        self._last += 1
        account, _ = self._host.outbox.owner(source)
        job = _Job(self._last, source, account, m, m.base_sequence, deque(m.pieces))
        known = self._numbers.get(job.key)
        if known is not None:
            mark("copies.again")
            self._forget(self._jobs[known])
        elif self._held.get(account, 0) >= COPIES_MAX - len(self._jobs):
            error = ReplicaNotAvailable(
                f"{self._host.me} has {len(self._jobs)} copies in progress, and the broker or this "
                "principal may have no more; try again"
            )
            self._host.reply(source, Copied(m.id, error=error), now)
            return
        self._jobs[job.number], self._numbers[job.key] = job, job.number
        self._held[account] = self._held.get(account, 0) + 1
        self._line_up(job)
        self._read(now)

    def _refusal(self, m: Copy) -> PymqError | None:
        partition = self._host.hosted(m.topic, m.partition)
        if partition is None:
            why = f"{self._host.me} does not host {m.topic}/{m.partition}"
            return NotLeader(why, leader=None)
        if not partition.leads:
            return NotLeader.of(partition.name, partition.opened.leader)
        if m.topic == OFFSETS_TOPIC:
            return InvalidRequest("only coordinators write the offsets of groups")
        if m.acks not in (AckMode.LEADER, AckMode.RAFT):
            return InvalidRequest("a copy must be acknowledged, so its acks must be LEADER or RAFT")
        if len(m.pieces) > PIECES_MAX:
            return InvalidRequest(f"a copy has at most {PIECES_MAX} pieces, not {len(m.pieces)}")
        if any(p.offset < 0 or p.records <= 0 for p in m.pieces):
            return InvalidRequest("a piece of a copy must have an offset, and records")
        end = m.base_sequence + sum(piece.records for piece in m.pieces)
        if min(m.producer_id, m.producer_epoch, m.base_sequence) < 0 or end > SEQUENCE_MAX:
            return InvalidRequest("a producer's id, epoch and sequence must not be negative")
        return None

    # --- reading --------------------------------------------------------------------------------

    def _line_up(self, job: _Job) -> None:
        if job.number not in self._jobs:
            return  # The copy has ended.
        if job.pieces and not job.is_in_line and job.unsafe < UNSAFE_BYTES:
            job.is_in_line = True
            self._line.setdefault(job.account, {})[job.number] = job

    def _next(self) -> _Job:
        """Take the next copy out of the queue."""
        account, jobs = next(iter(self._line.items()))
        job = jobs.pop(next(iter(jobs)))
        if jobs:
            self._line.move_to_end(account)
        else:
            del self._line[account]
        return job

    def _read(self, now: int) -> None:
        """Send the fetches of the next copies."""
        while self._line and len(self._reading) < READS:
            job = self._next()
            if wait_ms := self._host.outbox.write_wait_ms(job.account):
                # A small request may copy gigabytes, so charge the quota with each append.
                mark("copies.held_up")
                self._held_up[job.number] = job
                self.deadline = min(self.deadline, now + wait_ms)
                continue
            self._reading.add(job.number)
            asked, first = job.asked, job.pieces[0]
            end = first.offset
            for piece in job.pieces:  # one fetch reads all consecutive pieces
                if (piece.partition, piece.offset) != (first.partition, end):
                    break
                end += piece.records
            fetch = Fetch(
                job.number,
                asked.origin,
                first.partition,
                first.offset,
                READ_BYTES,
                0,
                end,
                asked.origin_id,
            )
            self._host.on_partition(COPIES, fetch, now)

    def tick(self, now: int) -> None:
        """Queue the copies again that a quota has delayed."""
        held, self._held_up, self.deadline = self._held_up, {}, NEVER
        for job in held.values():
            self._line.setdefault(job.account, {})[job.number] = job
        self._read(now)

    def answered(self, m: Message, now: int) -> None:
        """Handle a partition's answer to a copy's fetch or produce."""
        if isinstance(m, Fetched):
            self._reading.discard(m.id)
            if (job := self._jobs.get(m.id)) is not None:
                self._fetched(job, m, now)
        elif isinstance(m, Produced) and (job := self._jobs.get(m.id)) is not None:
            self._produced(job, m, now)
        self._read(now)

    def _fetched(self, job: _Job, m: Fetched, now: int) -> None:
        try:
            if isinstance(m.error, NotLeader):
                # The client would mistake NotLeader for an answer about the target partition.
                raise ReplicaNotAvailable(
                    f"{self._host.me} does not lead {m.topic}/{m.partition}, so it cannot copy "
                    "from it"
                )
            if m.error is not None:
                raise m.error
            left = len(job.pieces)
            self._append(job, m, now)
            if len(job.pieces) == left and job.number in self._jobs:
                piece = job.pieces[0]
                raise ReplicaNotAvailable(
                    f"{m.topic}/{m.partition} is not readable at {piece.offset} yet; try again"
                )
        except PymqError as error:
            if job.number in self._jobs:
                self._end(job, error, now)
            return
        # Reset this only after the appends, because an immediate answer to a produce must not queue
        # the copy.
        job.is_in_line = False
        self._line_up(job)

    def _append(self, job: _Job, m: Fetched, now: int) -> None:
        """Append those of the fetched batches that the request names.

        Raises:
            InvalidRequest: the partition has other batches at these offsets.
            CorruptBatch: a batch is damaged or cannot be decoded.
        """
        asked = job.asked
        for batch in split(m.data):
            if not job.pieces or job.number not in self._jobs:
                return
            piece, header = job.pieces[0], batch.header
            if header.end_offset <= piece.offset:
                continue
            is_it = header.base_offset == piece.offset and header.count == piece.records
            if piece.partition != m.partition or not is_it or header.is_control:
                raise InvalidRequest(
                    f"{m.topic}/{m.partition} has no batch of "
                    f"{plural(piece.records, 'record')} at offset {piece.offset}"
                )
            check(batch)  # check the batch before it gets a new CRC, which would hide damage
            numbered = batch.renamed(asked.producer_id, asked.producer_epoch, job.sequence)
            job.pieces.popleft()
            job.sequence += piece.records
            job.sent.append((piece.records, numbered.size))
            job.unsafe += numbered.size
            self._host.outbox.wrote(job.account, numbered.size)
            produce = Produce(
                job.number,
                asked.topic,
                asked.partition,
                asked.acks,
                numbered,
                False,
                asked.topic_id,
            )
            self._host.on_partition(COPIES, produce, now)

    # --- completion -----------------------------------------------------------------------------

    def _produced(self, job: _Job, m: Produced, now: int) -> None:
        if m.error is not None:
            self._end(job, m.error, now)
            return
        records, size = job.sent.popleft()  # answers arrive in the order of the log
        job.unsafe -= size
        job.records += records
        job.size += size
        if job.pieces or job.sent:
            self._line_up(job)
        else:
            self._end(job, None, now)

    def _end(self, job: _Job, error: PymqError | None, now: int) -> None:
        self._forget(job)
        if error is not None:
            mark("copies.failed")
        self._host.reply(job.source, Copied(job.asked.id, job.records, job.size, error), now)

    def _forget(self, job: _Job) -> None:
        """Remove a copy, also from the queue, so that a retry does not queue it twice."""
        del self._jobs[job.number], self._numbers[job.key]
        self._held_up.pop(job.number, None)
        jobs = self._line.get(job.account)
        if jobs is not None and jobs.pop(job.number, None) is not None and not jobs:
            del self._line[job.account]
        left = self._held[job.account] = self._held[job.account] - 1
        if not left:
            del self._held[job.account]
