"""A whole cluster in one process and in virtual time, for tests of applications and of pymq itself.

>>> with Cluster(brokers=1, seed=7) as cluster:
...     mq = cluster.client()
...     mq.create_topic("orders", acks="raft")
...     with mq.producer() as producer:
...         offset = producer.send("orders", b"hello").result().offset
...     cluster.crash("broker-0")
...     cluster.restart("broker-0")
...     with mq.consumer("orders", mode="psb") as consumer:
...         print(offset, [record.value for record in consumer.poll()])
0 [b'hello']

The seed decides everything: the same calls give the same run, to the microsecond, with the same
:attr:`Cluster.digest`. Time passes only while a client waits for something, and in
:meth:`Cluster.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs

from pymq.client.client import Client
from pymq.core.metadata.topic_config import check_options
from pymq.errors import ConfigError
from pymq.testing.checkers.rules import watch
from pymq.testing.faults.plan import faults_for
from pymq.testing.simulation import probe
from pymq.testing.simulation.coordinator import COORDINATOR, Ensemble
from pymq.testing.simulation.driver import SimDriver
from pymq.testing.simulation.network import LinkFaults, Network
from pymq.testing.simulation.nodes import BrokerHost, ClientHost, Knobs, SimulatedHost, ZkserverHost
from pymq.testing.simulation.process import PPM, Process
from pymq.testing.simulation.world import SECOND, WALL_MS, Violation, World
from pymq.testing.trace import line

if TYPE_CHECKING:
    from pymq.testing.faults.nemesis import Nemesis
    from pymq.testing.simulation.kafka.streams import StreamNetwork

SLICE_US = 2_000  # virtual time between two checks of a predicate
START_S = 30.0
Names = str | Iterable[str]


class NotReached(AssertionError):
    """A condition did not hold in time."""


class Cluster:
    """Brokers ``broker-0`` and so on, zkservers ``zkserver-0`` and so on, and a coordinator.

    Args:
        brokers: how many brokers.
        zkservers: how many zkservers.
        seed: determines every random choice.
        faults: None, ``"swarm"`` for faults of any kind, another of ``PROFILES`` in
            ``pymq.testing.faults.kinds``, or a :class:`pymq.testing.Faults`. :meth:`calm` ends the
            faults.
        knobs: the fields of :class:`pymq.testing.Knobs`.
    """

    def __init__(
        self,
        brokers: int = 3,
        zkservers: int = 1,
        seed: int = 0,
        faults: object = None,
        **knobs: Any,
    ) -> None:
        if brokers < 1 or zkservers < 1:
            raise ConfigError(f"brokers={brokers}, zkservers={zkservers}: at least one each")
        check_options(knobs, (field.name for field in attrs.fields(Knobs)))
        self.knobs = Knobs(**knobs)
        self.seed = seed
        self.world = World(seed)
        k = self.knobs
        self.network = Network(self.world, LinkFaults(k.delay_us, k.jitter_us))
        self.ensemble = Ensemble(self.world, session_timeout_us=k.coordinator_session_ms * 1000)
        self.ensemble.latency_us = k.coordinator_us
        self.network.join(COORDINATOR, lambda peer, source, message: None)
        self.network.on_change.append(self._check_links)
        self.zkservers: dict[str, ZkserverHost] = {}
        self.brokers: dict[str, BrokerHost] = {}
        self.clients: dict[str, ClientHost] = {}
        self.violations: list[Violation] = []
        self.notes: dict[str, Any] = {}  # objects that tests keep with the cluster
        self.watch = watch(self) if self.knobs.check else None
        self._plan = faults_for(seed, brokers, zkservers, faults) if faults is not None else None
        self._nemesis: Nemesis | None = None
        self._is_started = False
        names = [f"zkserver-{i}" for i in range(zkservers)]
        for name in names:
            self.zkservers[name] = ZkserverHost(
                self.world, self.network, name, self._number(), k, self.ensemble, min(3, brokers)
            )
        for i in range(brokers):
            name = f"broker-{i}"
            self.brokers[name] = BrokerHost(
                self.world, self.network, name, self._number(), k, names
            )
        for host in (*self.zkservers.values(), *self.brokers.values()):
            self._adopt(host)
        self.streams: StreamNetwork | None = None
        if k.kafka:
            # Imported on demand: most simulations have no clients of Kafka.
            from pymq.testing.simulation.kafka.streams import StreamNetwork

            self.streams = StreamNetwork(self.world, self.network, k.stream_bytes)
            for broker in self.brokers.values():
                broker.streams = self.streams

    def _number(self) -> int:
        return 1 + len(self.zkservers) + len(self.brokers) + len(self.clients)

    def _adopt(self, host: Process) -> None:
        host.clock.change(rate=self._rate(host.name))
        host.on_broken = self._broken
        if self.watch is not None:
            self.watch.adopt(host)
        host.on_death.append(self._died)

    def _rate(self, name: str) -> int:
        return round(self.knobs.rates.get(name, 1.0) * PPM)

    # --- start ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all processes and wait until they are ready; ``with`` calls this method."""
        if self._is_started:
            return self
        self._is_started = True
        rng = self.world.rng("start")
        for host in (*self.zkservers.values(), *self.brokers.values()):
            self.world.after(rng.randrange(20_000), self._start, host)
        self.run_until(self._is_up, seconds=START_S)
        if self._plan is not None:
            # imported here, because the module of Nemesis imports this one
            from pymq.testing.faults.nemesis import Nemesis

            self._nemesis = Nemesis(self, self._plan, self.world.now)
        return self

    def _start(self, host: Process, _: object) -> None:
        if not host.is_up:
            host.start()

    def _is_up(self) -> bool:
        return all(host.is_up for host in self.brokers.values()) and self.is_ready()

    def is_ready(self) -> bool:
        """Whether a zkserver is active and all running brokers have registered with it."""
        up = [name for name, host in self.brokers.items() if host.is_up]
        return any(
            host.controller is not None and probe.knows(host.controller, up)
            for host in self.zkservers.values()
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.check()

    def client(self, name: str | None = None) -> Client:
        """Return a client in a separate process; its calls let virtual time pass."""
        self.start()
        name = name if name is not None else f"client-{len(self.clients)}"
        host = self.add_client(name)
        host.start()
        driver = SimDriver(host, self.knobs.patience_s)
        rng = self.world.rng("client", name)

        def wall_ms() -> int:
            return WALL_MS + self.world.now // 1000

        return Client(driver, name, list(self.zkservers), wall_ms, driver.close, rng.randbytes)

    def add_client(self, name: str) -> ClientHost:
        """Return a process for state machines of clients; the caller starts it."""
        if name in self.network.names or "." in name:
            raise ConfigError(f"client name {name!r} is taken, or has a dot in it")
        host = ClientHost(self.world, self.network, name, self._number())
        self.clients[name] = host
        self._adopt(host)
        return host

    # --- time -------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The virtual seconds since the beginning."""
        return self.world.now / SECOND

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.world.run(self.world.now + round(seconds * SECOND))

    def run_until(self, predicate: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let virtual time pass until *predicate* holds.

        Raises:
            NotReached: *predicate* did not hold within *seconds*.
        """
        until = self.world.now + round(seconds * SECOND)
        while not predicate():
            if self.world.now >= until:
                raise NotReached(f"{predicate} did not hold within {seconds:g} s (virtual)")
            self.world.run(min(until, self.world.now + SLICE_US))

    # --- processes --------------------------------------------------------------------------------

    def host(self, name: str) -> SimulatedHost:
        """Return the process *name*."""
        for hosts in (self.brokers, self.zkservers, self.clients):
            if name in hosts:
                found: SimulatedHost = hosts[name]
                return found
        raise ConfigError(f"there is no {name!r}; there are {', '.join(self.network.names)}")

    def crash(self, name: str, disk: str = "random", *, at_boundary: int | None = None) -> None:
        """Let a process die, now or *at_boundary* effects from now.

        *keep* says which unsynced data the disk keeps: ``"random"`` any part, ``"none"`` nothing,
        and ``"all"`` everything, as after a kill of the process alone.
        """
        host = self.host(name)
        host.keep = disk
        if at_boundary is not None:
            host.crash_in(at_boundary)
        else:
            host.die()

    def _died(self, process: Process) -> None:
        if isinstance(process, BrokerHost):
            process.lose_power(process.keep)
        if self.knobs.restart_ms is not None and process.name not in self.clients:
            self.world.after(self.knobs.restart_ms * 1000, self._start, process)

    def restart(self, name: str) -> None:
        """Start a process; crash it first if it is running."""
        host = self.host(name)
        host.die()
        host.start()

    def stop(self, name: str, *, within_s: float = 2.0) -> None:
        """Shut a process down in an orderly way.

        A broker first hands over as many of its leaderships as it can within *within_s*.
        """
        host = self.host(name)
        if isinstance(host, BrokerHost):
            host.leave(round(within_s * 1000))
            until = self.world.now + round((within_s + 0.5) * SECOND)
            while not host.has_left and self.world.now < until:
                self.world.run(self.world.now + 1000)
            host.keep = "all"
            host.stop()
        else:
            host.die()

    def wipe(self, name: str) -> None:
        """Replace a broker's disk by an empty one; the broker is down afterwards."""
        host = self._broker(name)
        host.die()
        host.wipe()
        if self.watch is not None:
            self.watch.ledger.forget(name)

    def flip(self, name: str, dice: Random, path: str | None = None) -> tuple[str, int] | None:
        """Flip a bit on a broker's disk, in one file or in any.

        Returns the bit's place, if the disk has any data.
        """
        if self.watch is not None:
            self.watch.ledger.damaged[name] = None
        return self._broker(name).disk.flip(dice, path)

    def pause(self, name: str) -> None:
        """Pause a process at once, as SIGSTOP does."""
        self.host(name).pause()

    def resume(self, name: str) -> None:
        """Resume a paused process."""
        self.host(name).resume()

    def clock(
        self,
        name: str,
        *,
        rate: float | None = None,
        jump_s: float = 0.0,
        skew_s: float | None = None,
    ) -> None:
        """Let a process's clock jump forward, or run at a *rate*.

        Without *rate*, the clock returns to its initial rate.

        *skew_s* sets the process's wall clock that far ahead of the true time.
        """
        host = self.host(name)
        if skew_s is not None:
            host.wall_skew_ms = round(skew_s * 1000)
        ppm = self._rate(name) if rate is None else round(rate * PPM)
        host.clock.change(rate=ppm, jump_us=round(jump_s * SECOND))
        host.rearm()

    # --- disks ------------------------------------------------------------------------------------

    def _broker(self, name: str) -> BrokerHost:
        if name not in self.brokers:
            raise ConfigError(f"there is no broker {name!r}")
        return self.brokers[name]

    def fill_disk(self, name: str, room: int = 0) -> None:
        """Leave only *room* free bytes on a broker's disk."""
        self._broker(name).files.room = room

    def free_disk(self, name: str) -> None:
        """Free the space of a broker's disk again."""
        self._broker(name).files.room = None

    def fail_disk(self, name: str, what: str = "sync", times: int = 1) -> None:
        """Let the next operations of a kind fail: ``sync``, ``write``, ``read``, ``rename``, ...

        ``descriptors`` stands for all operations that need a file descriptor: opening a file or a
        folder.
        """
        self._broker(name).files.failing[what] = times

    def slow_disk(self, name: str, factor: int) -> None:
        """Let each operation of a broker's disk take *factor* times as long."""
        self._broker(name).files.slow = factor

    # --- the network ------------------------------------------------------------------------------

    def cut(self, a: Names, b: Names | None = None, *, one_way: bool = False) -> int:
        """Lose all messages between two groups of processes, or only those from *a* to *b*.

        Without *b*, cut *a* off from all others, including ``"coordinator"``. Returns a number with
        which :meth:`heal` can undo only this cut.
        """
        left = self._names(a)
        right = (
            self._names(b)
            if b is not None
            else [name for name in self.network.names if name not in left]
        )
        return self.network.cut(left, right, one_way=one_way)

    def _names(self, names: Names) -> list[str]:
        found = [names] if isinstance(names, str) else sorted(names)
        for name in found:
            if name not in self.network.names:
                raise ConfigError(f"there is no {name!r}; there are {self.network.names}")
        return found

    def heal(self, cut: int | None = None) -> None:
        """Undo one :meth:`cut`, or all of them."""
        if cut is None:
            self.network.heal()
        else:
            self.network.mend(cut)

    def expire_session(self, name: str) -> None:
        """Let the coordinator backend end the session of a zkserver."""
        session = self.ensemble.session_of(name)
        if session is not None:
            self.ensemble.expire(session.session)

    def _check_links(self) -> None:
        for session in self.ensemble.connections:
            session.link.check(self.network.is_cut(session.process.name, COORDINATOR))

    def calm(self) -> None:
        """End all faults: heal the network, free disks, resume and start all processes."""
        if self._nemesis is not None:
            self._nemesis.period.is_over = True
        self.network.calm()
        self.ensemble.uncertain, self.ensemble.latency_us = 0.0, self.knobs.coordinator_us
        for host in (*self.zkservers.values(), *self.brokers.values()):
            host.crash_at, host.crash_loop = -1, ()
            host.resume()
            host.clock.change(rate=PPM)
            host.wall_skew_ms = 0
            if isinstance(host, BrokerHost):
                host.files.room, host.files.slow = None, 1
                host.files.failing.clear()
            if not host.is_up:
                host.start()
            host.rearm()

    # --- results ----------------------------------------------------------------------------------

    def _broken(self, process: Process, error: BaseException) -> None:
        what = f"{process.name} died of {type(error).__name__}: {error}"
        self.violate(Violation("no-broken-machine", what), error)

    def violate(self, violation: Violation, cause: BaseException | None = None) -> None:
        """Record a broken rule and end the run."""
        self.violations.append(violation)
        raise violation from cause

    def check(self) -> None:
        """Raise the first violation of a safety property, if there was any.

        Raises:
            Violation: there was a violation.
        """
        if self.violations:
            raise self.violations[0]

    @property
    def digest(self) -> str:
        """Return a digest of all events so far, in eight hex digits."""
        return self.world.digest

    @property
    def trace(self) -> list[str]:
        """Return the latest events, one per line."""
        return [line(event) for event in self.world.log]
