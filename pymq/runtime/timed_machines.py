"""Times the requests of a node's machine, and its store, for metrics.

The loop passes the messages that a machine gets and sends to a :class:`Meter`. The machine does not
know about the meter, and the simulator uses none. A meter costs about 1 us per request; the broker
itself takes 20 us.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pymq.core import message as msg
from pymq.core.message import Message
from pymq.core.observe.metrics import Histogram, Metrics
from pymq.core.ready import Write, WriteFailed
from pymq.core.types import AckMode
from pymq.core.values import Factory, define
from pymq.store.base import BlockStore
from pymq.store.file.os_files import OsFiles
from pymq.store.wrapped import WrappedStore

PENDING_MAX = 20_000  # requests that wait for an answer; more requests are not timed
FRESH_MAX = 1_000  # samples not yet added to the histogram
_NONE = AckMode.NONE

REQUESTS = (
    *(msg.Produce, msg.Fetch, msg.GetSequence, msg.FindOffset, msg.Copy, msg.CancelDelayed),
    *(msg.FindEpoch, msg.DeleteRecords),
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
    # As in Kafka, the times of JoinClassic and SyncClassic include the wait for other members.
    *(msg.JoinClassic, msg.SyncClassic, msg.BeatClassic, msg.LeaveClassic),
    *(msg.CommitClassic, msg.DescribeClassic, msg.BeatReconciled, msg.DescribeReconciled),
    *(msg.CreateTopic, msg.CreatePartition, msg.DeleteTopic, msg.AlterTopic),
    *(msg.SetPartitionState, msg.Reassign, msg.Decommission, msg.Recommission),
    msg.BalanceLeaders,
    *(msg.RecoverPartition, msg.DescribeTopic, msg.ListTopics, msg.DescribeCluster),
    *(msg.GetMetadata, msg.Subscribe, msg.Unsubscribe, msg.Locate, msg.InitProducer),
    *(msg.RegisterBroker, msg.LeaderAndIsr, msg.StopReplica, msg.DescribePartitions),
)
ALWAYS_WELL = frozenset((msg.Stopped, msg.PartitionReports))  # answers that never contain an error
ANSWERS = frozenset(
    (
        *(msg.Produced, msg.Sequence, msg.Fetched, msg.OffsetFound, msg.Assigned, msg.Acquired),
        *(msg.Settled, msg.GroupState, msg.GroupNames, msg.GroupLeases, msg.Answer, msg.Copied),
        *(msg.JoinedClassic, msg.SyncedClassic, msg.ClassicDone, msg.ClassicState),
        *(msg.EpochFound, msg.Reconciled, msg.ReconciledState),
        *(msg.LeaderAndIsrAnswer, msg.Stopped, msg.PartitionReports, msg.Cancelled),
    )
)


@define
class Times:
    """A histogram with a list of new samples; appending to a list costs a sixth of an update."""

    histogram: Histogram = Factory(Histogram.new)
    fresh: list[float] = Factory(list)

    def fold(self) -> Histogram:
        """Add the new samples to the histogram."""
        fresh, observe = self.fresh, self.histogram.observe
        for seconds in fresh:
            observe(seconds)
        fresh.clear()
        return self.histogram


@define
class MessageKind:
    """The metrics of one request type."""

    name: str
    times: Times = Factory(Times)
    errors: Counter[str] = Factory(Counter)


class Meter:
    """The metrics of one machine and its store; only the loop's thread uses them."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.kinds: dict[type, MessageKind] = {cls: MessageKind(cls.__name__) for cls in REQUESTS}
        # requests that wait for an answer, by sender and request
        self.pending: dict[tuple[str, int], tuple[float, MessageKind]] = {}
        self.bytes_out: Counter[str] = Counter()  # sent bytes, by topic
        self.replicated_in = 0
        self.replicated_out = 0
        self.writes = Times()

    def arrived(self, source: str, message: Any) -> None:
        """Note a message that the machine is about to handle."""
        kind = self.kinds.get(type(message))
        if kind is not None:
            # A produce without acks has no answer.
            if type(message) is not msg.Produce or message.acks is not _NONE:
                request: int = message.id
                if request:
                    pending = self.pending
                    pending[source, request] = (self.timer(), kind)
                    if len(pending) > PENDING_MAX:
                        # drop the oldest request; it may never be answered
                        del pending[next(iter(pending))]
        elif type(message) is msg.RaftAppend or type(message) is msg.ReplicaFetched:
            self.replicated_in += len(message.data)

    def left(self, envelopes: Sequence[tuple[str, Message]]) -> None:
        """Note the messages that the machine sends; an answer ends the time of its request."""
        now, pending = self.timer(), self.pending
        for peer, message in envelopes:
            sent: Any = message
            if type(sent) in ANSWERS:
                began = pending.pop((peer, sent.id), None)
                if began is not None:
                    kind = began[1]
                    fresh = kind.times.fresh
                    fresh.append(now - began[0])
                    if len(fresh) > FRESH_MAX:
                        kind.times.fold()
                    if type(sent) not in ALWAYS_WELL and sent.error is not None:
                        kind.errors[sent.error.code] += 1
                if type(sent) is msg.Fetched:
                    self.bytes_out[sent.topic] += len(sent.data)
            elif type(sent) is msg.RaftAppend or type(sent) is msg.ReplicaFetched:
                self.replicated_out += len(sent.data)

    def collect(self, out: Metrics) -> None:
        """Add the counts to the metrics."""
        for topic, size in self.bytes_out.items():
            out.add("pymq_bytes_out_total", size, topic)
        for kind in self.kinds.values():
            if kind.times.fold().total:
                out.add("pymq_request_seconds", kind.times.histogram.copy(), kind.name)
            for code, count in kind.errors.items():
                out.add("pymq_request_errors_total", count, kind.name, code)
        out.add("pymq_unanswered_requests", len(self.pending))


class MeteredStore(WrappedStore):
    """Wraps a store and times its writes."""

    def __init__(self, store: BlockStore, meter: Meter) -> None:
        super().__init__(store)
        self._timer = meter.timer
        self._times = meter.writes

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in order; a write with ``sync`` is durable on return."""
        timer = self._timer
        began = timer()
        failures = self.store.write(writes)
        fresh = self._times.fresh
        fresh.append(timer() - began)
        if len(fresh) > FRESH_MAX:
            self._times.fold()
        return failures


class TimedFiles(OsFiles):
    """The real file system with timed syncs."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.syncs = Histogram.new()
        self._timer = timer
        self._lock = threading.Lock()  # Several threads sync files in parallel.

    def sync(self, handle: int) -> None:
        """Sync the file's data and length."""
        began = self._timer()
        super().sync(handle)
        took = self._timer() - began
        with self._lock:
            self.syncs.observe(took)
