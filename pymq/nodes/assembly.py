"""Assembles brokers and zkservers from a transport, a store and a coordinator backend."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from pymq import coord
from pymq.access.grants import Grants
from pymq.broker import broker as machine
from pymq.broker.registration import BrokerConfig
from pymq.client.options import check_range, check_seconds
from pymq.controller.controller import Controller, ControllerConfig
from pymq.coord.base import Coordinator
from pymq.core.block.replicator import ReplicationConfig
from pymq.core.group.group_limits import GroupLimits
from pymq.core.message import LeaderAndIsr
from pymq.core.observe.events import EventLog
from pymq.core.pending.fetch_limits import FetchLimits, FetchOutbox
from pymq.core.types import check_name
from pymq.errors import PymqError
from pymq.hash.assign import assignor
from pymq.monitoring.collector import Collector, TransportStats
from pymq.nodes.clocks import monotonic_ms, wall_ms
from pymq.nodes.directory import Directory
from pymq.nodes.embedded import version
from pymq.nodes.identity import fresh_identity, next_identity
from pymq.nodes.kafka.options import KafkaOptions, KafkaPort, kafka_port
from pymq.nodes.node import Node
from pymq.nodes.security import Access, Http, NodeSecurity, SecurityOptions, open_transport
from pymq.replication.factory import replicator
from pymq.runtime.loop import Loop
from pymq.runtime.timed_machines import TimedFiles
from pymq.store.base import BlockStore
from pymq.store.file.file_store import FileStore
from pymq.store.memory import MemoryStore
from pymq.transport.base import Arrival, Gate, Transport

if TYPE_CHECKING:
    from pymq.nodes.kafka.listener import BrokerKafka

LEAVE_MS = 3_000  # time in which a stopping broker hands over its leaderships
HEARTBEAT_MS = 300  # interval of brokers' heartbeats
SESSION_MS = 2_000  # a broker without a heartbeat for this long counts as dead
COPY_BYTES_S = 50 << 20  # bytes a second at which sealed blocks are copied to a broker
COPIES_MAX = 1_000
ZKSERVER = "zkserver"  # key name of a zkserver, if no key file names its endpoint


def _new_id() -> str:
    return os.urandom(16).hex()


class BrokerExtras(SecurityOptions, KafkaOptions, total=False):
    """The keyword arguments of a broker beside those of its machine."""


class Broker(Node):
    """A broker, which stores the blocks of partitions and serves them.

    Args:
        name: the broker's permanent name; the metadata assigns blocks to this name.
        zkservers: the endpoints of the zkservers.
        data: a folder, created if absent, or ``"memory:"``.
        listen: the endpoint for clients and other brokers, as ``"tcp://0.0.0.0:7774"``; port 0
            means any free port.
        advertise: the endpoint to which they connect, if it differs from *listen*.
        rack: the broker's rack. Brokers of one rack may fail together, so replicas are placed in
            different racks.
        weight: the broker's share of the load, relative to others.
        gate: a function that checks every arriving message, with the principal of its connection,
            instead of the policy; for example a ``pymq.access.guard.Guard``.
        transport, store: objects that replace ``listen`` and ``data``; the transport then has to
            call the gate.
        heartbeat_ms: the interval of heartbeats.
        copy_bytes_s: the limit in bytes a second for sealed blocks that move to this broker; 0 is
            no limit. Repairs of the broker's own blocks after a start do not count.
        curve_dir: a folder of keys from ``pymq keys``. With keys, all traffic is encrypted, and the
            policy applies to every principal. The broker uses the key of its own name.
        policy: the file of the policy; by default ``policy.toml`` in the folder of keys.
        audit: a file for refusals; by default they are written to the log.
        insecure: listen to the network without keys; every client then has all permissions.
        connections_per_address: the limit for one address, with keys; by default 1,000.
        connections_per_principal: the limit for one principal over all addresses, with keys; by
            default 500.
        fetch_max_bytes: the limit of one fetch answer, which always has at least one batch; by
            default 4 MiB (fetch.max.bytes of Kafka).
        fetch_memory_bytes: the limit of all fetch answers that clients have not received yet; by
            default 32 MiB, at least 1 MiB.
        group_max_members: the most members of a consumer group that this broker coordinates; by
            default 1,000 (group.max.size of Kafka).
        http: the address that serves metrics, as ``"127.0.0.1:9100"``.
        http_cert: a PEM file with a certificate and its key, required to serve HTTP to the network.
        kafka: the address for Kafka's clients, as ``"127.0.0.1:9092"``; port 0 takes a free one.
            Other addresses than those of this machine need *kafka_tls_dir*, or *insecure*.
        kafka_advertise: the address that they connect to, if it differs.
        kafka_partitions, kafka_replicas: for topics whose creator gives no number; by default 1 and
            3, or as many replicas as there are brokers.
        kafka_auto_create: whether a Kafka client that asks for an unknown topic creates it.
        kafka_batch_records_max: the limit of a batch of Kafka's clients; by default 100,000.
        kafka_tls_dir: a folder as *tls_dir*: Kafka's clients use TLS. They have to prove a
            certificate, or
        kafka_users: to authenticate by SASL as one of the users in this file, which
            ``pymq keys kafka-user`` writes.

    Raises:
        ConfigError: an option is wrong.
        MissingExtra: *kafka* needs the extra ``kafka``.
        StoreError, StoreLocked: the store cannot be opened, or another process has it open.
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
        fetch_max_bytes: int | None = None,
        fetch_memory_bytes: int | None = None,
        group_max_members: int | None = None,
        http: str | None = None,
        http_cert: str | os.PathLike[str] | None = None,
        **options: Unpack[BrokerExtras],
    ) -> None:
        check_name(name, "broker name")
        check_range("copy_bytes_s", copy_bytes_s, 0, 1 << 40)
        config = BrokerConfig(
            name,
            tuple(zkservers),
            rack=rack,
            weight=weight,
            heartbeat_ms=heartbeat_ms,
            replication=replication or ReplicationConfig(copy_bytes_s=copy_bytes_s),
            fetches=FetchLimits.of(fetch_max_bytes, fetch_memory_bytes),
            groups=GroupLimits.of(group_max_members),
        )
        access, kafka = _split(options)
        served = Http(http, http_cert) if http else None
        is_kept = store is None and os.fspath(data) != "memory:"
        files = TimedFiles() if is_kept else None
        self.store = store or (
            FileStore(os.fspath(data), files=files) if is_kept else MemoryStore()
        )
        made, door = transport, None
        self._kafka: BrokerKafka | None = None
        try:
            if kafka is not None:
                # on demand: most brokers do not listen for Kafka's clients
                from pymq.nodes.kafka.listener import BrokerKafka

                self._kafka = BrokerKafka(kafka, name, zkservers)
                config.kafka = self._kafka.advertised
            identity = next_identity(Path(data), name) if is_kept else fresh_identity(name)
            config.storage_id, config.incarnation = identity.storage_id, identity.incarnation
            if made is None:
                made, door = open_transport(name, listen, advertise, name, access, gate)
            self._assemble(config, made, door, files)
            self._open_http(served, access)
        except BaseException:
            if made is not None:
                made.close()
            if door is not None:
                door.close()
            if self._kafka is not None:
                self._kafka.close()
            self.store.close()
            raise

    @property
    def kafka(self) -> str:
        """The address that Kafka's clients get, as ``127.0.0.1:9092``; empty without one."""
        return self._kafka.advertised if self._kafka is not None else ""

    def _assemble(
        self,
        config: BrokerConfig,
        transport: Transport,
        door: NodeSecurity | None,
        files: TimedFiles | None,
    ) -> None:
        loop = Loop(monotonic_ms, transport.send, transport.flush)
        meters = Collector(loop, version(), files)
        now = monotonic_ms()
        config.endpoint, config.wall_offset_ms = transport.endpoint, wall_ms() - now
        outbox = transport.outbox if isinstance(transport, TransportStats) else None
        self.machine = self._machine(config, now, meters.journal, outbox)
        if door is not None:
            door.know(Grants(lambda: self.machine.secret, _new_id))
        self._is_stopping = False
        self._directory = Directory(
            f"{config.name}.directory", config.controllers, transport.learn, monotonic_ms
        )
        transport.on_stranger = self._directory.stranger
        super().__init__(transport, loop, meters, door)
        meters.add_broker(self.machine, self.store)
        loop.wall_clock.follow(wall_ms, self.machine)
        loop.add(self._directory.name, self._directory)
        if self._kafka is not None:
            loop.add(self._kafka.name, self._kafka.gate)
            if door is not None:
                self._kafka.obey(door)
            self._serve(self._kafka.door)
            meters.kafka = self._kafka.measure

    def _machine(
        self, config: BrokerConfig, now: int, journal: EventLog, outbox: FetchOutbox | None
    ) -> machine.BrokerMachine:
        return machine.BrokerMachine(
            config,
            replicator,
            assignor,
            random.Random(),
            self.store.blocks(),
            self.store.unsealed(),
            now,
            journal,
            outbox,
        )

    def _note(self, arrivals: Sequence[Arrival]) -> None:
        self._directory.note(arrivals)
        if not self._is_ready.is_set() and any(type(m) is LeaderAndIsr for _, _, m in arrivals):
            self._ready()  # the controller has sent the partitions of this broker

    def stop(self) -> None:
        """Request an orderly stop: the broker first hands over its leaderships, for at most a few
        seconds.
        """
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


def _split(options: BrokerExtras) -> tuple[Access, KafkaPort | None]:
    """Return the options of security, and those for Kafka's clients, checked."""
    given = dict(options)
    kafka = {name: given.pop(name) for name in options if name in KafkaOptions.__annotations__}
    access = Access(**given)  # type: ignore[arg-type] # the rest is that of SecurityOptions
    port = kafka_port(kafka)  # type: ignore[arg-type] # these are those of KafkaOptions
    if port is not None:
        port.check(access)
    return access, port


class ZkServer(Node):
    """A zkserver, which keeps the metadata; the active zkserver is the cluster's controller.

    Args:
        listen: the zkserver's endpoint; port 0 means any free port.
        coordinator: the coordinator backend: ``"memory:"``, ``"sqlite:PATH"``,
            ``"zookeeper://hosts/root"``, or a backend object.
        name: the zkserver's name; by default its endpoint, with which clients find the active
            zkserver at once.
        gate: as for a :class:`Broker`.
        session_ms: a broker without a heartbeat for this long counts as dead.
        replica_lost_s: a broker that is dead for this long counts as lost, and its sealed blocks
            are copied from other replicas. 0: never.
        copies_at_once: the most sealed blocks that are copied at the same time.
        leader_balance_s: the interval at which the zkserver spreads leaderships evenly, one
            partition at a time, if all brokers are alive. 0: only at an administrator's request.
        http, http_cert: as for a broker; a zkserver also serves the cluster page.
        http_writable: allow changes on the page.
        curve_dir, policy, audit, insecure, connections_per_address, connections_per_principal: as
            for a broker. The zkserver's key is the key whose file names the zkserver's endpoint, by
            default the key of ``zkserver``.

    Raises:
        ConfigError: an option is wrong.
        StoreError, Disconnected: the coordinator backend cannot be opened.
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
        http: str | None = None,
        http_cert: str | os.PathLike[str] | None = None,
        http_writable: bool = False,
        **security: Unpack[SecurityOptions],
    ) -> None:
        if replica_lost_s != 0:
            check_seconds("replica_lost_s", replica_lost_s)
        if leader_balance_s != 0:
            check_seconds("leader_balance_s", leader_balance_s)
        check_range("copies_at_once", copies_at_once, 1, COPIES_MAX)
        access = Access(**security)
        served = Http(http, http_cert, http_writable) if http else None
        made, door = transport, None
        if made is None:
            made, door = open_transport(name, listen, advertise, name or ZKSERVER, access, gate)
        config = ControllerConfig(
            made.node,
            endpoint=made.endpoint,
            session_ms=session_ms,
            replica_lost_ms=round(1000 * replica_lost_s),
            copies_at_once=copies_at_once,
            leader_balance_ms=round(1000 * leader_balance_s),
            offsets_partitions=offsets_partitions,
            offsets_replicas=offsets_replicas,
        )
        try:
            self._assemble(config, made, door, coordinator)
            try:
                self._open_http(served, access, made.endpoint)
            except BaseException:
                self._backend.close()
                raise
        except BaseException:
            made.close()
            if door is not None:
                door.close()
            raise

    def _assemble(
        self,
        config: ControllerConfig,
        transport: Transport,
        door: NodeSecurity | None,
        coordinator: str | Coordinator,
    ) -> None:
        loop = Loop(monotonic_ms, transport.send, transport.flush)
        meters = Collector(loop, version())
        super().__init__(transport, loop, meters, door)
        now = monotonic_ms()
        config.wall_offset_ms = wall_ms() - now
        self.machine = Controller(config, _new_id, now, meters.journal)
        if door is not None:
            door.know(Grants(lambda: self.machine.secret, _new_id))
        self._backend = (
            coord.open(coordinator, wake=self._runner.wake)
            if isinstance(coordinator, str)
            else coordinator
        )
        meters.add_zkserver(self.machine, self._backend)
        loop.wall_clock.follow(wall_ms, self.machine)

    def run(self) -> None:
        """Run the node in this thread until :meth:`stop`, and then close its resources."""
        # From now on the zkserver answers requests, even if only with the name of the active
        # zkserver.
        self._ready()
        super().run()

    def _let_go(self) -> None:
        try:
            self._backend.close()
        except PymqError:
            pass  # the session has ended, or will time out
