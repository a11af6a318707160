"""The processes of a simulated cluster: brokers, zkservers, clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pymq.broker.broker import BrokerMachine
from pymq.broker.registration import BrokerConfig
from pymq.controller.controller import Controller, ControllerConfig
from pymq.core.block.replicator import ReplicationConfig
from pymq.core.partition.partition import Partition
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import StoreError
from pymq.hash.assign import assignor
from pymq.replication.factory import replicator
from pymq.store.base import BlockStore
from pymq.store.file.file_store import FileStore
from pymq.store.memory import MemoryStore
from pymq.testing.simulation.coordinator import CoordinatorSession, Ensemble
from pymq.testing.simulation.disk import SimDisk
from pymq.testing.simulation.files import ProcessFiles
from pymq.testing.simulation.network import Network
from pymq.testing.simulation.probe import Look
from pymq.testing.simulation.process import Crash, Process, dice
from pymq.testing.simulation.remains import remains
from pymq.testing.simulation.world import WALL_MS, World, mix

if TYPE_CHECKING:
    from pymq.testing.simulation.kafka.door import SimulatedDoor
    from pymq.testing.simulation.kafka.streams import StreamNetwork


@define
class Knobs:
    """The settings of a simulated cluster; times in milliseconds."""

    heartbeat_ms: int = 300  # interval of brokers' heartbeats to the zkserver
    session_ms: int = 1_500  # a broker that is silent for longer counts as dead
    coordinator_session_ms: int = 1_500  # the session of a zkserver at the coordinator backend
    offsets_partitions: int = 1
    offsets_replicas: int = 0  # 0: three, or one per broker if there are fewer
    store: str = "disk"  # "memory": no write is lost, and no write fails
    holes: bool = False  # whether disks write sectors in any order
    delay_us: int = 200  # delay of the network
    jitter_us: int = 100
    ping_ms: int = 50  # interval of pings between each pair of brokers
    election_ms: int = 150  # after this much silence other brokers consider a broker dead
    append_bytes: int = 1 << 20  # bytes that a leader sends a follower at once
    in_flight: int = 8  # messages to a follower without an answer
    fetch_wait_ms: int = 500  # how long a follower's fetch waits
    lag_max_ms: int = 10_000  # time until a lagging follower leaves the in-sync set
    # time until the controller gives the blocks of a dead broker to others
    replace_ms: int = 10_000
    replica_lost_ms: int = 600_000  # time until others copy the sealed blocks of a dead broker
    copies_at_once: int = 8  # sealed blocks that are copied at a time
    leader_balance_ms: int = 300_000  # interval at which leaders are balanced
    handles: int = 64  # files that a broker keeps open
    coordinator_us: int = 500  # latency to the coordinator backend
    rates: Mapping[str, float] = Factory(dict)  # rates of clocks, by the name of the process
    restart_ms: int | None = None  # time until a dead process restarts; None: it does not restart
    check: bool = True  # whether safety is checked all the time
    kafka: bool = False  # whether brokers listen for Kafka's clients
    # bytes that fit into the buffers of each direction of a stream
    stream_bytes: int = 1 << 16
    patience_s: float = 600.0  # a call without a timeout that waits for longer counts as stuck


class SimulatedHost(Process):
    """A process with a wall clock."""

    wall_skew_ms = 0
    was_skewed = False  # whether the wall clock has ever been wrong
    keep_dice = 0  # number of the random stream for surviving writes
    # if set, the process also dies after so many effects of its next start
    crash_again: int | None = None
    crash_loop: Sequence[int] = ()  # the same number for each later start

    def wall_ms(self) -> int:
        """Return the time of day by this process's clock."""
        return WALL_MS + self.world.now // 1000 + self.wall_skew_ms

    def wall_offset_ms(self) -> int:
        """Return the wall clock minus the monotonic clock."""
        return self.wall_ms() - self.clock()

    def prepare_again(self) -> None:
        """Start the process; the count of effects before the next crash begins here."""
        if self.incarnation > 1 and self.crash_again is not None:
            self.crash_in(self.crash_again)
            self.crash_again = None
        elif self.crash_loop:
            first, *self.crash_loop = self.crash_loop
            self.crash_in(first)


class BrokerHost(SimulatedHost):
    """A broker with its disk."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        number: int,
        knobs: Knobs,
        zkservers: list[str],
    ) -> None:
        super().__init__(world, network, name, number)
        self.knobs = knobs
        self.zkservers = zkservers
        self.disks = 0  # number of disks that the broker has had
        self.storage_id = ""  # the name of the present disk
        self.disk = SimDisk()
        self.memory: MemoryStore | None = None
        self.store: BlockStore | None = None
        self.broker: BrokerMachine | None = None
        self.streams: StreamNetwork | None = None  # set if there are clients of Kafka
        self.door: SimulatedDoor | None = None
        # the checkers' latest look at each of the broker's partitions
        self.looks: dict[TopicPartition, Look] = {}
        self.signs: dict[Partition, tuple[object, ...]] = {}  # the inputs of those looks
        # wraps the store for the checkers
        self.wrapped: Callable[[BlockStore], BlockStore] | None = None
        self.wipe()
        self.files = ProcessFiles(self.disk, self, world.rng("disk", name))

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        assert self.loop is None, f"{self.name} is running"
        self.disks += 1
        self.storage_id = f"{mix(self.world.seed, 'storage', self.name, self.disks):016x}"
        self.disk = SimDisk(holes=self.knobs.holes)
        self.memory = MemoryStore() if self.knobs.store == "memory" else None
        self.files = ProcessFiles(self.disk, self, self.world.rng("disk", self.name))

    def build(self) -> None:
        """Assemble the broker."""
        assert self.loop is not None
        self.prepare_again()
        try:
            store = self.memory or FileStore(
                f"/{self.name}", files=self.files, handles_max=self.knobs.handles
            )
        except StoreError as error:
            # A real broker would log the error and end, and its supervisor would start it again.
            raise Crash(str(error)) from error
        self.store = self.wrapped(store) if self.wrapped is not None else store
        config = BrokerConfig(
            self.name,
            tuple(self.zkservers),
            rack=f"rack-{self.number}",
            storage_id=self.storage_id,
            incarnation=self.incarnation,
            heartbeat_ms=self.knobs.heartbeat_ms,
            kafka=f"{self.name}:9092" if self.streams is not None else "",
            wall_offset_ms=self.wall_offset_ms(),
            replication=ReplicationConfig(
                self.knobs.ping_ms,
                self.knobs.election_ms,
                append_bytes=self.knobs.append_bytes,
                in_flight=self.knobs.in_flight,
                fetch_wait_ms=self.knobs.fetch_wait_ms,
                lag_max_ms=self.knobs.lag_max_ms,
                # Use a low limit, so that blocks have to wait although there are few.
                repairs=2,
                lend_bytes=self.knobs.append_bytes,
            ),
        )
        found, unsealed = self.store.blocks(), self.store.unsealed()
        rng = dice(self, "broker")
        self.broker = BrokerMachine(
            config, replicator, assignor, rng, found, unsealed, self.clock()
        )
        self.loop.add_broker(self.name, self.broker, self.store)
        self.loop.wall_clock.follow(self.wall_ms, self.broker)
        if self.streams is not None:
            # Imported on demand: most simulations have no clients of Kafka.
            from pymq.testing.simulation.kafka.door import SimulatedDoor

            self.door = SimulatedDoor(self, self.streams)

    def hosts(self, key: tuple[str, int]) -> bool:
        """Whether the broker has a partition (topic id, index) and knows its log's end."""
        return any(look.block[:2] == key for look in self.looks.values())

    def _turn(self) -> None:
        door = self.door
        if door is None:
            super()._turn()
            return
        self.lag = self.turn_us
        door.take()
        super()._turn()
        door.flush()
        if door.has_more:
            door.continue_soon()

    def die(self) -> None:
        """Die; only the disk is left."""
        super().die()
        if self.streams is not None and self.door is not None:
            self.streams.died(self.name)
        self.broker = self.store = self.door = None
        self.looks.clear()
        self.signs.clear()

    def lose_power(self, keep: str) -> None:
        """Lose unsynced writes, except those that *keep* selects; see :meth:`SimDisk.crash`.

        ``"state-3"`` means number 3 of the states in
        :func:`pymq.testing.simulation.remains.remains`.
        """
        assert self.loop is None, f"{self.name} is running"
        word, _, number = keep.partition("-")
        survival = remains(self.disk)[int(number)] if word == "state" else keep
        self.disk.crash(self.world.rng("crash", self.name, self.keep_dice), survival)

    def leave(self, within_ms: int) -> None:
        """Begin to hand over leaderships; the broker can be stopped once :attr:`has_left`."""
        if self.loop is not None and self.broker is not None:
            self.broker.leave(self.clock(), within_ms)
            self.loop.touch(self.name)
            self.wake()

    @property
    def has_left(self) -> bool:
        """Whether the broker has no leadership left to hand over."""
        return self.broker is None or self.broker.has_left

    def stop(self) -> None:
        """Shut down in an orderly way."""
        if self.loop is None or self.broker is None or self.store is None:
            return
        self.broker.shut_down(self.clock())
        self.loop.touch(self.name)
        self.wake()
        try:
            if self.memory is None and self.store is not None:
                self.store.close()
        except StoreError:
            pass
        self.die()


class ZkserverHost(SimulatedHost):
    """A zkserver; its state is in the coordinator backend."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        number: int,
        knobs: Knobs,
        ensemble: Ensemble,
        replicas: int,
    ) -> None:
        super().__init__(world, network, name, number)
        self.knobs = knobs
        self.ensemble = ensemble
        self.replicas = replicas
        self.controller: Controller | None = None
        self.session: CoordinatorSession | None = None

    def build(self) -> None:
        """Assemble the zkserver with a new session."""
        assert self.loop is not None
        self.prepare_again()
        config = ControllerConfig(
            self.name,
            session_ms=self.knobs.session_ms,
            replace_ms=self.knobs.replace_ms,
            replica_lost_ms=self.knobs.replica_lost_ms,
            copies_at_once=self.knobs.copies_at_once,
            leader_balance_ms=self.knobs.leader_balance_ms,
            offsets_partitions=self.knobs.offsets_partitions,
            offsets_replicas=self.knobs.offsets_replicas or self.replicas,
            wall_offset_ms=self.wall_offset_ms(),
        )
        self.controller = Controller(config, self._new_id, self.clock())
        self.session = self.ensemble.connect(self)
        self.loop.add_zkserver(self.name, self.controller, self.session)
        self.loop.wall_clock.follow(self.wall_ms, self.controller)

    def _new_id(self) -> str:
        return f"{self.world.rng('topic ids', self.name).getrandbits(128):032x}"

    def die(self) -> None:
        """Die; the session lasts until its timeout."""
        super().die()
        self.controller = self.session = None

    def pause(self) -> None:
        """Pause the process; its session expires after a while."""
        super().pause()
        if self.session is not None:
            self.session.link.check_pause()


class ClientHost(SimulatedHost):
    """A process of the application, with the machines of its clients."""

    def __init__(self, world: World, network: Network, name: str, number: int) -> None:
        super().__init__(world, network, name, number)
        # Only the waits of the application take virtual time, not its own computing.
        self.turn_us = 0

    def build(self) -> None:
        """Assemble nothing: clients add their machines."""
