"""Brokers and zkservers of a cluster, put together from a transport, a store and a coordinator."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pymq import coord
from pymq.access.grants import Grants
from pymq.broker import broker as machine
from pymq.broker.registration import BrokerConfig
from pymq.client.base import Handle, check_timeout
from pymq.client.options import check_range, check_seconds
from pymq.controller.controller import Controller, ControllerConfig
from pymq.coord.base import Coordinator
from pymq.core.block.replicator import ReplicationConfig
from pymq.core.group.group_limits import GroupLimits
from pymq.core.message import LeaderAndIsr
from pymq.core.observe.metrics import Metrics
from pymq.core.partition.fetch_limits import FetchLimits, FetchOutbox
from pymq.core.types import check_name
from pymq.errors import PymqError
from pymq.hash.assign import assignor
from pymq.monitoring.collector import Collector, Net
from pymq.nodes.clocks import monotonic_ms, wall_ms
from pymq.nodes.directory import Directory
from pymq.nodes.embedded import version
from pymq.nodes.identity import fresh_identity, next_identity
from pymq.nodes.security import Access, Http, NodeSecurity, open_transport
from pymq.replication.factory import replicator
from pymq.runtime.loop import Loop
from pymq.runtime.node_thread import NodeThread
from pymq.runtime.timed_machines import TimedFiles
from pymq.store.base import BlockStore
from pymq.store.file.file_store import FileStore
from pymq.store.memory import MemoryStore
from pymq.transport.base import Arrival, Gate, Transport

if TYPE_CHECKING:
    from pymq.web.server import Server

LEAVE_MS = 3_000  # for a broker that stops, to hand over what it leads
HEARTBEAT_MS = 300  # of brokers
SESSION_MS = 2_000  # a broker that is silent for longer is dead
COPY_BYTES_S = 50 << 20  # of sealed blocks that move to a broker
COPIES_MAX = 1_000
ZKSERVER = "zkserver"  # whose key a zkserver has, if no key file names its endpoint
DRAIN_S = 2.0  # what a node has left to say when it is stopped
DRAIN_RUNS = 10  # of its loop, in which it says and writes that


def _new_id() -> str:
    return os.urandom(16).hex()


class Node(Handle):
    """What brokers and zkservers have in common: a life.

    ``run`` turns the node in this thread until ``stop``; ``start`` does it in a thread of its own.
    ``close`` ends it in either case, and so does leaving the ``with`` block.
    """

    def __init__(
        self, transport: Transport, loop: Loop, meters: Collector, door: NodeSecurity | None = None
    ) -> None:
        self.transport = transport
        self.loop = loop
        self.journal = meters.journal  # of what happens; give it a listener to hear of it
        self.on_ready: Callable[[], None] = lambda: None  # called once, by the node's own thread
        self._runner = NodeThread(loop, transport, self._note)
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._problem: BaseException | None = None
        self._is_closed = False
        self._door = door
        self._meters = meters
        self._http: Server | None = None
        if isinstance(transport, Net):
            meters.net = transport
            note = meters.journal.note
            transport.tell_when_crowded(lambda n: note("connections_crowded", turned_away=n))
        if door is not None:
            meters.refused = lambda: door.refused
        meters.idle_s = lambda: self._runner.idle_s

    @property
    def name(self) -> str:
        """The node's name."""
        return self.transport.node

    @property
    def endpoint(self) -> str:
        """Where it is reached."""
        return self.transport.endpoint

    def run(self) -> None:
        """Turn the node in this thread until :meth:`stop`, then let go of everything.

        Raises:
            PymqError: whatever keeps it from going on.
        """
        try:
            self._runner.run(self._is_over)
            self._drain()
        finally:
            self.close()

    def start(self, timeout: float | None = 30.0) -> Self:
        """Turn the node in a thread of its own; returns when it is ready, or after *timeout*.

        Raises:
            PymqError: it has ended before.
        """
        check_timeout(timeout)
        self._thread = threading.Thread(target=self._run, name=f"pymq-{self.name}", daemon=True)
        self._thread.start()
        self._is_ready.wait(timeout)
        if self._problem is not None:
            raise self._problem
        return self

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:  # raised again by whoever started it
            self._problem = error
        finally:
            self._is_ready.set()

    @property
    def http(self) -> str:
        """Where its metrics and its page are, as ``http://127.0.0.1:8080/``; empty without."""
        return self._http.address if self._http is not None else ""

    def _open_http(self, http: Http | None, access: Access, page_of: str = "") -> None:
        if http is not None:
            from pymq.nodes.http import open_http  # only now: most nodes do without

            self._http = open_http(http, page_of, access, self._door, self.metrics)

    def metrics(self, timeout: float = 5.0) -> Metrics:
        """How it stands with the node; any thread may ask while it runs.

        Raises:
            TimeoutError: it did not come to it within *timeout* seconds.
            Closed: it does not run any more.
        """
        return self._runner.ask(self._meters.collect, timeout)

    def stop(self) -> None:
        """Let the node end in order; any thread may call this, and a signal's handler."""
        self._runner.stop()

    def close(self) -> None:
        """End it and let go of everything; may be repeated."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self.stop()
            thread.join()
            return
        if not self._is_closed:
            self._is_closed = True
            try:
                if self._http is not None:
                    self._http.close()
                self._let_go()
            finally:
                self.transport.close()
                if self._door is not None:
                    self._door.close()

    def _is_over(self) -> bool:
        """Whether it has come to its end by itself; asked in each turn."""
        return False

    def _note(self, arrivals: Sequence[Arrival]) -> None:
        """See what arrives before the machines do."""

    def _ready(self) -> None:
        if not self._is_ready.is_set():
            self._is_ready.set()
            self.on_ready()

    def _drain(self) -> None:
        """Say and write what is left to be said and written."""
        for _ in range(DRAIN_RUNS):
            self.loop.run()
            if not self.loop.has_work:
                break
        self.transport.flush()

    def _let_go(self) -> None:
        """Close what the node has opened."""


class Broker(Node):
    """A broker: it keeps the blocks of partitions and serves them.

    Args:
        name: the broker's own, for ever; its blocks belong to it.
        zkservers: their endpoints.
        data: a folder, which is made when absent, or ``"memory:"``.
        listen: where clients and other brokers are to reach it, as ``"tcp://0.0.0.0:7774"``; port 0
            takes a free one.
        advertise: how they reach it, where that is something else.
        rack: brokers of one rack fail together; replicas go to different ones.
        weight: how much of the load it takes, compared with others.
        gate: asked for every message that arrives, with the principal of its connection, instead of
            the policy; a ``pymq.access.guard.Guard`` is one.
        transport, store: parts of one's own, instead of ``listen`` and ``data``; the gate is then
            the transport's affair.
        heartbeat_ms: how often it says that it is alive.
        copy_bytes_s: how many bytes a second it takes of sealed blocks that move to it; 0: as many
            as it can. What it lacks of its own blocks after a start is not counted.
        curve_dir: a folder of keys, as ``pymq keys`` makes it; then all is encrypted, and nobody
            may do anything but what a policy allows. The broker's own key bears its name.
        policy: that policy; ``policy.toml`` in the folder of keys by default.
        audit: a file for what was refused; without one it is logged.
        insecure: listen to the network without keys; anybody may then do anything.
        connections_per_address: how many one address may have, where there are keys; 1,000 if
            nothing is said.
        connections_per_principal: how many one principal may have, from wherever, where there are
            keys; 500 if nothing is said.
        fetch_max_bytes: of one answer to a fetch, whatever it asks for, or else of one batch; 4 MiB
            if nothing is said (fetch.max.bytes of Kafka).
        fetch_memory_bytes: of all answers to fetches that clients have not taken yet; 32 MiB if
            nothing is said, and at least 1 MiB.
        group_max_members: of a consumer group that is coordinated here; 1,000 if nothing is said
            (group.max.size of Kafka).
        http: where to serve metrics, as ``"127.0.0.1:9100"``.
        http_cert: a PEM file with a certificate and its key; the network is served with one only.

    Raises:
        ConfigError, StoreError, StoreLocked: as they say.
    """

    def __init__(
        self,
        name: str,
        *,
        zkservers: Sequence[str],
        data: str | os.PathLike[str] = "memory:",
        listen: str = "tcp://127.0.0.1:0",
        advertise: str | None = None,
        rack: str | None = None,
        weight: int = 1,
        gate: Gate | None = None,
        transport: Transport | None = None,
        store: BlockStore | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        replication: ReplicationConfig | None = None,
        copy_bytes_s: int = COPY_BYTES_S,
        curve_dir: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        audit: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        connections_per_address: int | None = None,
        connections_per_principal: int | None = None,
        fetch_max_bytes: int | None = None,
        fetch_memory_bytes: int | None = None,
        group_max_members: int | None = None,
        http: str | None = None,
        http_cert: str | os.PathLike[str] | None = None,
    ) -> None:
        check_name(name, "broker name")
        fetches = FetchLimits.of(fetch_max_bytes, fetch_memory_bytes)
        groups = GroupLimits.of(group_max_members)
        is_kept = store is None and os.fspath(data) != "memory:"
        files = TimedFiles() if is_kept else None
        check_range("copy_bytes_s", copy_bytes_s, 0, 1 << 40)
        self.store = store or (
            FileStore(os.fspath(data), files=files) if is_kept else MemoryStore()
        )
        made: Transport | None = transport
        door: NodeSecurity | None = None
        try:
            folder = Path(data)
            identity = next_identity(folder, name) if is_kept else fresh_identity(name)
            access = Access(
                curve_dir,
                policy,
                audit,
                insecure,
                connections_per_address,
                connections_per_principal,
            )
            if made is None:
                made, door = open_transport(name, listen, advertise, name, access, gate)
            loop = Loop(monotonic_ms, made.send, made.flush)
            meters = Collector(loop, version(), files)
            now = monotonic_ms()
            self.machine = machine.BrokerMachine(
                BrokerConfig(
                    name,
                    tuple(zkservers),
                    endpoint=made.endpoint,
                    rack=rack,
                    weight=weight,
                    storage_id=identity.storage_id,
                    incarnation=identity.incarnation,
                    heartbeat_ms=heartbeat_ms,
                    wall_offset_ms=wall_ms() - now,
                    replication=replication or ReplicationConfig(copy_bytes_s=copy_bytes_s),
                    fetches=fetches,
                    groups=groups,
                ),
                replicator,
                assignor,
                random.Random(),
                self.store.blocks(),
                self.store.unsealed(),
                now,
                meters.journal,
                made if isinstance(made, FetchOutbox) else None,
            )
            if door is not None:
                door.know(Grants(lambda: self.machine.secret, _new_id))
            self._is_stopping = False
            self._directory = Directory(f"{name}.directory", zkservers, made.learn, monotonic_ms)
            made.on_stranger = self._directory.stranger
            super().__init__(made, loop, meters, door)
            meters.add_broker(self.machine, self.store)
            loop.follow_wall_clock(wall_ms, self.machine)
            loop.add(self._directory.name, self._directory)
            self._open_http(Http(http, http_cert) if http else None, access)
        except BaseException:
            if made is not None:
                made.close()
            if door is not None:
                door.close()
            self.store.close()
            raise

    def _note(self, arrivals: Sequence[Arrival]) -> None:
        self._directory.note(arrivals)
        if not self._is_ready.is_set() and any(type(m) is LeaderAndIsr for _, _, m in arrivals):
            self._ready()  # A zkserver has said what is to be hosted here.

    def stop(self) -> None:
        """Let the broker end in order: what it leads is handed over first, within some seconds."""
        if not self._is_ready.is_set():
            super().stop()
            return
        self._is_stopping = True
        self._runner.wake()

    def _is_over(self) -> bool:
        if self._is_stopping and not self.machine.has_left:
            self.machine.leave(monotonic_ms(), LEAVE_MS)
            self.loop.touch(self.name)
        return self._is_stopping and self.machine.has_left

    def _drain(self) -> None:
        self.machine.shut_down(monotonic_ms())
        self.loop.touch(self.name)
        super()._drain()

    def _let_go(self) -> None:
        self.store.close()


class ZkServer(Node):
    """A zkserver: it keeps the metadata and decides who leads what; one of several is active.

    Args:
        listen: where it is to be reached; port 0 takes a free one.
        coordinator: where it keeps what it knows: ``"memory:"``, ``"sqlite:PATH"``,
            ``"zookeeper://hosts/root"``, or a backend of one's own.
        name: its endpoint, if nothing else is said; then clients find the active one at once.
        gate: as of a :class:`Broker`.
        session_ms: a broker that is silent for longer is dead.
        replica_lost_s: a broker that is dead for so long is lost: what it held of sealed blocks is
            copied from others to others. 0: none ever is.
        copies_at_once: how many sealed blocks are being copied at the same time.
        leader_balance_s: how often brokers are made to lead as many partitions as each other, one
            partition at a time, when all of them are there. 0: only when an administrator asks.
        http, http_cert: as for a broker; the cluster page is there, too.
        http_writable: let the page change something.
        curve_dir, policy, audit, insecure, connections_per_address, connections_per_principal: as
            for a broker. Its key is the one whose file names its endpoint, or else that of
            ``zkserver``.

    Raises:
        ConfigError, StoreError, Disconnected: as they say.
    """

    def __init__(
        self,
        *,
        listen: str = "tcp://127.0.0.1:0",
        coordinator: str | Coordinator = "memory:",
        advertise: str | None = None,
        name: str | None = None,
        gate: Gate | None = None,
        transport: Transport | None = None,
        session_ms: int = SESSION_MS,
        replica_lost_s: float = 600.0,
        copies_at_once: int = 8,
        leader_balance_s: float = 300.0,
        offsets_partitions: int = 8,
        offsets_replicas: int = 3,
        curve_dir: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        audit: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        connections_per_address: int | None = None,
        connections_per_principal: int | None = None,
        http: str | None = None,
        http_cert: str | os.PathLike[str] | None = None,
        http_writable: bool = False,
    ) -> None:
        made, door = transport, None
        if replica_lost_s != 0:
            check_seconds("replica_lost_s", replica_lost_s)
        if leader_balance_s != 0:
            check_seconds("leader_balance_s", leader_balance_s)
        check_range("copies_at_once", copies_at_once, 1, COPIES_MAX)
        access = Access(
            curve_dir,
            policy,
            audit,
            insecure,
            connections_per_address,
            connections_per_principal,
        )
        if made is None:
            made, door = open_transport(name, listen, advertise, name or ZKSERVER, access, gate)
        try:
            loop = Loop(monotonic_ms, made.send, made.flush)
            meters = Collector(loop, version())
            super().__init__(made, loop, meters, door)
            now = monotonic_ms()
            config = ControllerConfig(
                made.node,
                endpoint=made.endpoint,
                session_ms=session_ms,
                replica_lost_ms=round(1000 * replica_lost_s),
                copies_at_once=copies_at_once,
                leader_balance_ms=round(1000 * leader_balance_s),
                offsets_partitions=offsets_partitions,
                offsets_replicas=offsets_replicas,
                wall_offset_ms=wall_ms() - now,
            )
            self.machine = Controller(config, _new_id, now, meters.journal)
            if door is not None:
                door.know(Grants(lambda: self.machine.secret, _new_id))
            self._backend = (
                coord.open(coordinator, wake=self._runner.wake)
                if isinstance(coordinator, str)
                else coordinator
            )
            meters.add_zkserver(self.machine, self._backend)
            loop.follow_wall_clock(wall_ms, self.machine)
            try:
                served = Http(http, http_cert, http_writable) if http else None
                self._open_http(served, access, made.endpoint)
            except BaseException:
                self._backend.close()
                raise
        except BaseException:
            made.close()
            if door is not None:
                door.close()
            raise

    def run(self) -> None:
        """Turn the node in this thread until :meth:`stop`, then let go of everything."""
        # It answers from now on, be it by saying who else is to be asked.
        self._ready()
        super().run()

    def _let_go(self) -> None:
        try:
            self._backend.close()
        except PymqError:
            pass  # The session is gone already, or goes when its time is up.
