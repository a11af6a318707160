"""Machines and stores that are timed: wrapped where a node is put together, and nowhere known.

A wrapper takes the place of what it wraps in the loop. The machine inside knows nothing of it, and
the simulator does without. What it costs, a request pays once: some 1 us beside the 30 of a broker.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pymq.core import message as msg
from pymq.core.message import Message
from pymq.core.metadata.coordination import CoordEvent
from pymq.core.observe.metrics import Histogram, Metrics
from pymq.core.ready import (
    Read,
    Ready,
    StoreEvent,
    Write,
    WriteFailed,
)
from pymq.core.types import AckMode, BlockId
from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.runtime.loop import CoordinatorUser, Machine, StoreUser
from pymq.store.base import BlockStore
from pymq.store.file.os_files import OsFiles
from pymq.store.wrapped import WrappedStore

PENDING_MAX = 20_000  # requests that wait for an answer; what is beyond is not timed
FRESH_MAX = 1_000  # times that wait to be counted
_NONE = AckMode.NONE

REQUESTS = (
    *(msg.Produce, msg.Fetch, msg.GetSequence, msg.FindOffset, msg.Copy),
    *(
        msg.Join,
        msg.Heartbeat,
        msg.Leave,
        msg.Acquire,
        msg.Settle,
        msg.CommitOffset,
        msg.DeleteGroup,
    ),
    *(msg.GetGroup, msg.ListGroups, msg.GetLeases),
    *(msg.CreateTopic, msg.CreatePartition, msg.DeleteTopic, msg.AlterTopic),
    *(msg.SetPartitionState, msg.Reassign, msg.Decommission, msg.Recommission),
    msg.BalanceLeaders,
    *(msg.RecoverPartition, msg.DescribeTopic, msg.ListTopics, msg.DescribeCluster),
    *(msg.GetMetadata, msg.Subscribe, msg.Unsubscribe, msg.Locate, msg.InitProducer),
    *(msg.RegisterBroker, msg.LeaderAndIsr, msg.StopReplica, msg.DescribePartitions),
)
ALWAYS_WELL = frozenset((msg.Stopped, msg.PartitionReports))  # answers that are never an error
ANSWERS = frozenset(
    (
        *(msg.Produced, msg.Sequence, msg.Fetched, msg.OffsetFound, msg.Assigned, msg.Acquired),
        *(msg.Settled, msg.GroupState, msg.GroupNames, msg.GroupLeases, msg.Answer, msg.Copied),
        *(msg.LeaderAndIsrAnswer, msg.Stopped, msg.PartitionReports),
    )
)


@define
class Times:
    """A histogram, and what it has not counted yet: adding to a list costs a sixth of that."""

    histogram: Histogram = Factory(Histogram.new)
    fresh: list[float] = Factory(list)

    def fold(self) -> Histogram:
        """Count what is new."""
        fresh, observe = self.fresh, self.histogram.observe
        for seconds in fresh:
            observe(seconds)
        fresh.clear()
        return self.histogram


@define
class MessageKind:
    """The requests of one type."""

    name: str
    times: Times = Factory(Times)
    errors: Counter[str] = Factory(Counter)


class Meter:
    """What is counted about one machine and its store, by the thread that turns its loop."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.kinds: dict[type, MessageKind] = {cls: MessageKind(cls.__name__) for cls in REQUESTS}
        self.pending: dict[tuple[str, int], tuple[float, MessageKind]] = {}  # by whom and which
        self.bytes_out: Counter[str] = Counter()  # by topic
        self.replicated_in = 0
        self.replicated_out = 0
        self.writes = Times()
        self.read_bytes: list[int] = []  # of the reads of the work that is being done

    def left(self, peer: str, message: Any, now: float) -> None:
        """An answer, one of :data:`ANSWERS`, leaves or has just left."""
        began = self.pending.pop((peer, message.id), None)
        if began is not None:
            kind = began[1]
            fresh = kind.times.fresh
            fresh.append(now - began[0])
            if len(fresh) > FRESH_MAX:
                kind.times.fold()
                self.trim()
            if type(message) not in ALWAYS_WELL and message.error is not None:
                kind.errors[message.error.code] += 1

    def was_read(self, read: Read, size: int, now: float) -> None:
        """The store was read for an answer."""
        answer = read.answer
        if type(answer) is msg.Fetched:
            self.bytes_out[answer.topic] += size
            self.left(read.peer, answer, now)
        else:
            self.replicated_out += size

    def trim(self) -> None:
        """Forget the oldest requests if too many were not answered."""
        while len(self.pending) > PENDING_MAX:
            del self.pending[next(iter(self.pending))]

    def collect(self, out: Metrics) -> None:
        """Tell what was counted."""
        for topic, size in self.bytes_out.items():
            out.add("pymq_bytes_out_total", size, topic)
        for kind in self.kinds.values():
            if kind.times.fold().total:
                out.add("pymq_request_seconds", kind.times.histogram.copy(), kind.name)
            for code, count in kind.errors.items():
                out.add("pymq_request_errors_total", count, kind.name, code)
        out.add("pymq_unanswered_requests", len(self.pending))


M = TypeVar("M", bound=Machine)


class Metered(Generic[M]):
    """A machine whose requests are timed from their arrival to their answer."""

    def __init__(self, machine: M, meter: Meter) -> None:
        self.machine = machine
        self.meter = meter
        self._kinds = meter.kinds
        self._pending = meter.pending
        self._timer = meter.timer

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return self.machine.deadline

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        kind = self._kinds.get(type(message))
        if kind is not None:
            # Nobody hears what becomes of a produce without acks.
            if type(message) is not msg.Produce or message.acks is not _NONE:
                request: int = message.id  # type: ignore[union-attr]  # each of REQUESTS has one
                if request:
                    self._pending[source, request] = (self._timer(), kind)
        elif type(message) is msg.RaftAppend or type(message) is msg.ReplicaFetched:
            self.meter.replicated_in += len(message.data)
        self.machine.step(source, message, now)

    def tick(self, now: int) -> None:
        """Do what is due."""
        self.meter.trim()
        self.machine.tick(now)

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work."""
        ready = self.machine.ready(now)
        if ready is not None and ready.send:
            self._left(ready.send)
        return ready

    def advance(self, ready: Ready, now: int) -> None:
        """The work is done."""
        if ready.after:
            self._left(ready.after)
        if ready.read:
            meter, at = self.meter, self.meter.timer()
            for read, size in zip(ready.read, meter.read_bytes, strict=False):
                meter.was_read(read, size, at)
            meter.read_bytes.clear()
        self.machine.advance(ready, now)

    def _left(self, envelopes: Sequence[tuple[str, Message]]) -> None:
        meter = self.meter
        now = meter.timer()
        for peer, message in envelopes:
            if type(message) in ANSWERS:
                meter.left(peer, message, now)
            elif type(message) is msg.RaftAppend:
                meter.replicated_out += len(message.data)


class MeteredBroker(Metered[StoreUser]):
    """A broker that is timed."""

    def stored(self, event: StoreEvent, now: int) -> None:
        """Take in what the store has to say."""
        self.machine.stored(event, now)

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Records of a block could not be read."""
        return self.machine.read_failed(block, error, now)


class MeteredZkServer(Metered[CoordinatorUser]):
    """A zkserver that is timed."""

    def decided(self, event: CoordEvent, now: int) -> None:
        """Take in what the coordinator has to say."""
        self.machine.decided(event, now)

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """A commit could not be carried out, and nothing is changed."""
        self.machine.commit_failed(tag, error, now)


class MeteredStore(WrappedStore):
    """A store whose writes are timed, and whose reads are measured."""

    def __init__(self, store: BlockStore, meter: Meter) -> None:
        super().__init__(store)
        self._meter = meter
        self._timer = meter.timer
        self._times = meter.writes

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Do *writes* in their order; what asks for a sync is durable on return."""
        timer = self._timer
        began = timer()
        failures = self.store.write(writes)
        fresh = self._times.fresh
        fresh.append(timer() - began)
        if len(fresh) > FRESH_MAX:
            self._times.fold()
        return failures

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* to the last one before *end*."""
        sizes = self._meter.read_bytes
        sizes.append(0)  # if it fails
        data = self.store.read(block, offset, end, max_bytes, verify=verify)
        sizes[-1] = len(data)
        return data


class TimedFiles(OsFiles):
    """The real file system, with a clock beside its syncs."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.syncs = Histogram.new()
        self._timer = timer
        self._lock = threading.Lock()  # Several files are synced by several threads.

    def sync(self, handle: int) -> None:
        """Make the file's data and length durable."""
        began = self._timer()
        super().sync(handle)
        took = self._timer() - began
        with self._lock:
            self.syncs.observe(took)
