"""All that a process can tell about its nodes, gathered by the thread that turns their loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pymq.broker.broker import BrokerMachine
from pymq.controller.controller import Controller
from pymq.coord.base import Coordinator
from pymq.core.observe.events import EventLog
from pymq.core.observe.metrics import Metrics
from pymq.core.partition.fetch_limits import Loads
from pymq.descriptors import soft_limit
from pymq.monitoring import gauges
from pymq.runtime.loop import Loop
from pymq.runtime.timed_machines import (
    Meter,
    MeteredBroker,
    MeteredStore,
    MeteredZkServer,
    TimedFiles,
)
from pymq.store.base import BlockStore


@runtime_checkable
class Net(Protocol):
    """What a transport tells of itself."""

    dropped: int  # messages and packets that were lost or refused
    cut: int  # connections that were ended because nothing was taken

    @property
    def turned_away(self) -> int:
        """Connections that were ended because there were too many."""
        ...

    def tell_when_crowded(self, told: Callable[[int], object]) -> None:
        """Have *told* called with how many were turned away, now and then, when more are."""
        ...

    def loads(self) -> Loads:
        """Bytes for clients that have not left the process."""
        ...

    def waiting(self) -> tuple[int, int, int]:
        """Peers, packets that wait for them, and the bytes of those."""
        ...


class Collector:
    """The meters of one loop, which drives brokers, a zkserver, or both.

    Each broker is timed for itself, since their disks work side by side; what is told is the sum.
    """

    def __init__(self, loop: Loop, version: str, files: TimedFiles | None = None) -> None:
        self.journal = EventLog()
        self.net: Net | None = None
        self.refused: Callable[[], int] | None = None  # how much the policy has refused
        self.idle_s: Callable[[], float] | None = None
        self._loop = loop
        self._version = version
        self._files = files
        self._meter = Meter(time.perf_counter)  # of the zkserver and the first broker
        self._brokers: dict[BrokerMachine, Meter] = {}
        self._zkservers: list[Controller] = []

    # --- assembling -----------------------------------------------------------------------------

    def add_broker(self, machine: BrokerMachine, store: BlockStore) -> None:
        """Have the loop drive a broker, and time it."""
        meter = Meter(time.perf_counter) if self._brokers else self._meter
        wrapped = MeteredBroker(machine, meter)
        self._loop.add_broker(machine.me, wrapped, MeteredStore(store, meter))
        self._brokers[machine] = meter

    def add_zkserver(self, machine: Controller, backend: Coordinator) -> None:
        """Have the loop drive a zkserver, and time it."""
        self._loop.add_zkserver(machine.me, MeteredZkServer(machine, self._meter), backend)
        self._zkservers.append(machine)

    # --- telling --------------------------------------------------------------------------------

    def collect(self) -> Metrics:
        """How things stand; for the thread that turns the loop."""
        out = Metrics()
        for broker, meter in self._brokers.items():
            out.add("pymq_info", 1, broker.me, "broker", self._version)
            gauges.broker(broker, out)
            out.add("pymq_write_seconds", meter.writes.fold().copy())
            out.add("pymq_replication_bytes_in_total", meter.replicated_in)
            out.add("pymq_replication_bytes_out_total", meter.replicated_out)
            if meter is not self._meter:
                meter.collect(out)
        for zkserver in self._zkservers:
            out.add("pymq_info", 1, zkserver.me, "zkserver", self._version)
            gauges.zkserver(zkserver, out)
        if self._files is not None:
            out.add("pymq_fsync_seconds", self._files.syncs.copy())
        self._meter.collect(out)
        out.add("pymq_inbox_messages", self._loop.waiting)
        for event, count in self.journal.counts.items():
            out.add("pymq_events_total", count, event)
        if self.net is not None:
            peers, packets, size = self.net.waiting()
            out.add("pymq_connections", peers)
            out.add("pymq_send_queue_packets", packets)
            out.add("pymq_send_queue_bytes", size)
            out.add("pymq_unsent_bytes", self.net.loads().node)
            out.add("pymq_connections_cut_total", self.net.cut)
            out.add("pymq_connections_turned_away_total", self.net.turned_away)
            out.add("pymq_messages_dropped_total", self.net.dropped)
        if self.refused is not None:
            out.add("pymq_refused_total", self.refused())
        if self.idle_s is not None:
            out.add("pymq_idle_seconds_total", self.idle_s())
        if len(self._brokers) > 1:
            out.join()
        return out


def process(out: Metrics) -> None:
    """What the operating system tells of this process; any thread may ask."""
    times = os.times()
    out.add("process_cpu_seconds_total", times.user + times.system)
    try:
        pages = int(_told("/proc/self/statm").split()[1])
        ticks = int(_told("/proc/self/stat").rpartition(")")[2].split()[19])
        since_boot = float(_told("/proc/uptime").split()[0])
        open_fds = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return  # Not Linux, or too well hidden: the rest has to do.
    out.add("process_resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE"))
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    out.add("process_start_time_seconds", round(time.time() - age, 2))
    out.add("process_open_fds", open_fds)
    out.add("process_max_fds", soft_limit())


def _told(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
