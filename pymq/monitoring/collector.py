"""Collects the metrics of a process's nodes, in the thread that runs their loop."""

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
from pymq.core.pending.fetch_limits import FetchOutbox
from pymq.descriptors import soft_limit
from pymq.monitoring import gauges
from pymq.runtime.loop import Loop
from pymq.runtime.timed_machines import (
    Meter,
    MeteredStore,
    TimedFiles,
)
from pymq.store.base import BlockStore


@runtime_checkable
class TransportStats(Protocol):
    """The figures that a transport provides."""

    dropped: int  # messages and packets lost or refused
    cut: int  # connections closed because the peer did not read

    @property
    def outbox(self) -> FetchOutbox:
        """Return the bytes queued for clients."""
        ...

    @property
    def turned_away(self) -> int:
        """Return the number of connections closed because there were too many."""
        ...

    def tell_when_crowded(self, told: Callable[[int], object]) -> None:
        """Call *told* with the number of refused connections whenever it has grown, at a limited
        rate.
        """
        ...

    def waiting(self) -> tuple[int, int, int]:
        """Return the numbers of peers, of packets queued for them, and of the bytes in these
        packets.
        """
        ...


class Collector:
    """The metrics of one loop, which drives brokers, a zkserver, or both.

    Each broker is timed separately, since their disks work in parallel; the metrics are the sums.
    """

    def __init__(self, loop: Loop, version: str, files: TimedFiles | None = None) -> None:
        self.journal = EventLog()
        self.net: TransportStats | None = None
        # number of requests that the policy has refused
        self.refused: Callable[[], int] | None = None
        self.idle_s: Callable[[], float] | None = None
        # adds the metrics of Kafka's clients
        self.kafka: Callable[[Metrics], None] | None = None
        self._loop = loop
        self._version = version
        self._files = files
        self._meter = Meter(time.perf_counter)  # shared by the zkserver and the first broker
        self._brokers: dict[BrokerMachine, Meter] = {}
        self._zkservers: list[Controller] = []

    # --- adding machines --------------------------------------------------------------------------

    def add_broker(self, machine: BrokerMachine, store: BlockStore) -> None:
        """Add a broker to the loop, and time its requests."""
        meter = Meter(time.perf_counter) if self._brokers else self._meter
        self._loop.add_broker(machine.me, machine, MeteredStore(store, meter), meter)
        self._brokers[machine] = meter

    def add_zkserver(self, machine: Controller, backend: Coordinator) -> None:
        """Add a zkserver to the loop, and time its requests."""
        self._loop.add_zkserver(machine.me, machine, backend, self._meter)
        self._zkservers.append(machine)

    # --- reading --------------------------------------------------------------------------------

    def collect(self) -> Metrics:
        """Return all metrics; only the thread that runs the loop may call this."""
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
        out.add("pymq_inbox_messages", len(self._loop.inbox))
        for event, count in self.journal.counts.items():
            out.add("pymq_events_total", count, event)
        if self.net is not None:
            peers, packets, size = self.net.waiting()
            out.add("pymq_connections", peers)
            out.add("pymq_send_queue_packets", packets)
            out.add("pymq_send_queue_bytes", size)
            out.add("pymq_unsent_bytes", self.net.outbox.loads().node)
            out.add("pymq_connections_cut_total", self.net.cut)
            out.add("pymq_connections_turned_away_total", self.net.turned_away)
            out.add("pymq_messages_dropped_total", self.net.dropped)
        if self.refused is not None:
            out.add("pymq_refused_total", self.refused())
        if self.kafka is not None:
            self.kafka(out)
        if self.idle_s is not None:
            out.add("pymq_idle_seconds_total", self.idle_s())
        if len(self._brokers) > 1:
            out.join()
        return out


def process(out: Metrics) -> None:
    """Add the operating system's figures for this process; any thread may call this."""
    times = os.times()
    out.add("process_cpu_seconds_total", times.user + times.system)
    try:
        pages = int(_told("/proc/self/statm").split()[1])
        ticks = int(_told("/proc/self/stat").rpartition(")")[2].split()[19])
        since_boot = float(_told("/proc/uptime").split()[0])
        open_fds = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return  # without Linux or /proc these figures are left out
    out.add("process_resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE"))
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    out.add("process_start_time_seconds", round(time.time() - age, 2))
    out.add("process_open_fds", open_fds)
    out.add("process_max_fds", soft_limit())


def _told(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
