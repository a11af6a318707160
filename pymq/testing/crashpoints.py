"""Runs a script once for each effect of a node, and crashes the node at that effect.

A first run of a script counts the effects of each broker and zkserver: each sent message, each disk
operation, each commit to the coordinator backend. Then the script runs once for each effect, and
for each possible state of the disk (:mod:`pymq.testing.simulation.remains`) or, at a zkserver, for
each number of commits that may have arrived. The node dies at the effect, restarts, and the script
continues. At the end the cluster must work again, and no acknowledged record may be missing.

>>> def script(cluster):
...     mq = cluster.client()
...     mq.create_topic("t", acks="raft", exist_ok=True)
...     with mq.producer() as producer:
...         producer.send("t", b"hello").result()
>>> enumerate_crashes(script, brokers=1, states=["none"]).runs > 5
True

Each run starts from the beginning. A run takes 35 to 45 ms. Forking the process at the effect
instead would cost about 6 ms, and would save only the part before the crash, about 10 ms.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from pymq.core.values import Factory, define, value
from pymq.errors import PymqError
from pymq.testing.cluster import Cluster
from pymq.testing.simulation.nodes import BrokerHost, SimulatedHost, ZkserverHost
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.remains import remains
from pymq.testing.simulation.world import SECOND, Violation, uncollected

Script = Callable[[Cluster], None]

STATES = ("none", "all", "random")  # which unsynced writes survive
DOWN_MS = 50  # how long a node stays down; too short for an election
LONG_MS = 2_500  # longer than the node's session, so that another node takes over
AGAIN_MAX = 40  # a second death comes within this number of effects
BOUND_S = 60.0  # additional virtual time that a run with a crash may take


@value
class Scenario:
    """A script with its cluster, and the final check."""

    name: str
    script: Script
    then: Script
    options: dict[str, Any]  # options of the cluster
    seed: int = 0


@value
class CrashPoint:
    """A crash: the node, the effect, the surviving writes, and the time until the restart."""

    node: str
    # how many effects of the node come first, counted from when the cluster was ready
    boundary: int
    keep: str  # like the argument *keep* of :meth:`Cluster.crash`, or ``"state-3"``
    down_ms: int = DOWN_MS
    # the process dies a second time after this many effects of its next start; negative: it does
    # not
    again: int = -1

    def __str__(self) -> str:
        parts = [self.node, self.boundary, self.keep, self.down_ms]
        return ":".join(map(str, parts if self.again < 0 else [*parts, self.again]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a point, as ``str`` writes it."""
        node, boundary, keep, *numbers = text.split(":")
        return cls(node, int(boundary), keep, *map(int, numbers))


@value
class Boundary:
    """An effect, and the number of states that a crash right before it may leave."""

    node: str
    number: int
    what: str  # class of the message, operation of the disk, or ``"commit"``
    states: int

    @property
    def kind(self) -> tuple[str, str]:
        """Return the key of similar effects: node and kind."""
        return self.node.partition("-")[0], self.what


@define
class CrashRun:
    """One crash point, and the result of a crash there."""

    boundary: int
    what: str  # the effect that the crash prevented
    disk: str
    problem: str
    point: CrashPoint
    digest: str = ""
    events: int = 0


@define
class Crashes:
    """The results of all crash points."""

    boundaries: int = 0  # number of effects of the script
    runs: int = 0
    events: int = 0
    failed: list[CrashRun] = Factory(list)

    def add(self, run: CrashRun) -> None:
        """Add the result of one run."""
        self.runs += 1
        self.events += run.events
        if run.problem:
            self.failed.append(run)


def enumerate_crashes(
    script: Script,
    *,
    node: str | Sequence[str] = "broker-0",
    states: Sequence[str] | None = STATES,
    every: int = 1,
    then: Script | None = None,
    again: int | None = None,
    seed: int = 0,
    restart_ms: int = DOWN_MS,
    **cluster: Any,
) -> Crashes:
    """Crash *node* at each of its effects while *script* runs.

    Args:
        script: the work; like an application, it must tolerate a crash.
        node: the node that dies, or several names to try one after the other.
        states: which unsynced data the disk keeps: ``"none"``, ``"all"``, ``"random"``, or several
            different random choices, as ``"random-2"``. None: each possible state.
        every: try only each *every*-th effect.
        then: a check that runs after the script, when the node is up again.
        again: the node dies a second time, this number of effects after its restart.
        seed: of all runs.
        restart_ms: how long the node stays down.
        cluster: arguments of :class:`Cluster`.
    """
    scenario = Scenario("script", script, then or _nothing, cluster, seed)
    nodes = [node] if isinstance(node, str) else node
    found = Crashes()
    for boundary in survey(scenario, nodes)[::every]:
        found.boundaries += every
        for keep in states or (f"state-{i}" for i in range(boundary.states)):
            point = CrashPoint(
                boundary.node, boundary.number, keep, restart_ms, -1 if again is None else again
            )
            found.add(crash(scenario, point, boundary.what))
    return found


def _nothing(cluster: Cluster) -> None:
    """The default final check, which checks nothing."""


# --- choice of crash points -----------------------------------------------------------------------


def survey(scenario: Scenario, nodes: Iterable[str] | None = None) -> list[Boundary]:
    """Run a script without a crash; return the effects of *nodes*, or of all but clients."""
    found: list[Boundary] = []
    with Cluster(seed=scenario.seed, **scenario.options) as cluster:
        names = [*cluster.brokers, *cluster.zkservers] if nodes is None else nodes
        for name in names:
            host = cluster.host(name)
            host.on_boundary = _note(found, host)
        scenario.script(cluster)
        for name in names:
            cluster.host(name).on_boundary = None
        _end(scenario, cluster)
    return found


def _note(found: list[Boundary], host: SimulatedHost) -> Callable[[str], None]:
    first = host.boundaries + 1

    def note(what: str) -> None:
        number = host.boundaries - first
        found.append(Boundary(host.name, number, what, _states(host)))

    return note


def _states(host: SimulatedHost) -> int:
    """Return the number of states that a crash of the node may leave now."""
    if isinstance(host, BrokerHost):
        return len(remains(host.disk))
    if isinstance(host, ZkserverHost) and host.session is not None:
        return len(host.session.unanswered()) + 1
    return 1


def points(boundaries: Sequence[Boundary]) -> list[CrashPoint]:
    """Return all crash points.

    Each state has one point. The first two states (nothing survives, all survives) have a second
    point with a long time down, and the first state a third point with a second crash during
    recovery, after 0 to 39 effects.
    """
    found = []
    for b in boundaries:
        states = [f"state-{state}" for state in range(b.states)]
        found += [CrashPoint(b.node, b.number, keep) for keep in states]
        found += [CrashPoint(b.node, b.number, keep, LONG_MS) for keep in states[:2]]
        found.append(CrashPoint(b.node, b.number, states[0], again=b.number * 7 % AGAIN_MAX))
    return found


def sample(boundaries: Sequence[Boundary], share: int, shift: int = 0) -> list[CrashPoint]:
    """Return about one in *share* of :func:`points`, always the same ones, with each kind of
    effect.

    The sample takes points of each kind at regular distances. *shift* moves the first one, so that
    the samples of all shifts together contain all points.
    """
    by_kind: dict[tuple[str, str], list[Boundary]] = {}
    for boundary in boundaries:
        by_kind.setdefault(boundary.kind, []).append(boundary)
    found: list[CrashPoint] = []
    for number, kind in enumerate(sorted(by_kind)):
        every = points(by_kind[kind])
        start = (shift + number) % share
        found += every[start::share] or [every[(shift // share) % len(every)]]
    return found


# --- one crash ------------------------------------------------------------------------------------


def crash(scenario: Scenario, point: CrashPoint, what: str = "") -> CrashRun:
    """Run a script with one crash; return the result."""
    run = CrashRun(point.boundary, what, point.keep, "", point)
    with uncollected():
        _crash(scenario, run)
    return run


def _crash(scenario: Scenario, run: CrashRun) -> None:
    cluster = Cluster(seed=scenario.seed, **scenario.options)
    try:
        _crash_at(scenario, run.point, cluster)
    except Violation as violation:
        run.problem = str(violation)
    except (AssertionError, PymqError) as error:
        run.problem = "".join(traceback.format_exception(error)[-4:])
    run.digest, run.events = cluster.digest, cluster.world.events


def _crash_at(scenario: Scenario, point: CrashPoint, cluster: Cluster) -> None:
    cluster.start()
    host = cluster.host(point.node)
    died: list[int] = []
    last = host.boundaries + point.boundary + 1

    def arm(what: str) -> None:
        """Begin to count effects: crashes that the script made earlier do not count."""
        if host.boundaries == last:
            word, _, dice = point.keep.partition("-")
            is_chance = word == "random"
            host.keep, host.keep_dice = (word, int(dice or 0)) if is_chance else (point.keep, 0)
            host.crash_again = point.again if point.again >= 0 else None
            host.crash_at = last
            host.on_boundary = None

    def revive(process: Process) -> None:
        """Restart the node after the crash of this run; the script itself restarts nodes that it
        has crashed.
        """
        if process.is_dying:
            died.append(cluster.world.now)
            host.keep, host.keep_dice = "random", 0
            cluster.world.after(point.down_ms * 1000, start)

    def start(_: object, __: object) -> None:
        if not host.is_up:
            host.start()

    host.on_boundary = arm
    host.on_death.append(revive)
    scenario.script(cluster)
    assert died, f"{point} was not reached"
    # the node must be down for exactly this time
    cluster.world.run(died[-1] + point.down_ms * 1000)
    _end(scenario, cluster)
    late = (cluster.world.now - died[0]) / SECOND
    assert late < BOUND_S, f"it took {late:g} s from the crash to the end"


def _end(scenario: Scenario, cluster: Cluster) -> None:
    cluster.run(0.05)  # let the last messages take effect
    for host in (*cluster.zkservers.values(), *cluster.brokers.values()):
        host.crash_at = -1
        if not host.is_up:
            host.start()
    scenario.then(cluster)
    cluster.check()
