"""Carries out the faults of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

import attrs

from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, BrokerNode, PartitionNode, decode_node
from pymq.core.types import AckMode, BlockId
from pymq.testing.cluster import Cluster
from pymq.testing.faults.kinds import Step
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation import probe
from pymq.testing.simulation.coordinator import COORDINATOR
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import SECOND

FOR_EVER = 1 << 30  # operations of a disk


class Nemesis:
    """Does to a cluster what its plan says, until it is told to stop."""

    def __init__(self, cluster: Cluster, plan: Plan, base: int = 0) -> None:
        self.cluster = cluster
        self.is_over = False
        self.restart_app: Callable[[str], None] = lambda name: None
        self.hostile: Callable[[str, int], None] = lambda act, dice: None
        self.crash_app: Callable[[str], None] = lambda name: None
        self._world = cluster.world
        self._plan = plan
        self._down: dict[str, int] = {}  # how long what dies next stays down
        self._rotten: dict[str, int] = {}  # brokers with a damaged disk, and which one that is
        self._failing: set[str] = set()  # brokers whose disk could not write, not restarted since
        self.left: str | None = None  # the one of them that nobody restarts when the faults end
        faults = attrs.evolve(cluster.network.faults, **plan.link)
        cluster.network.set_faults(faults)
        cluster.ensemble.uncertain = plan.uncertain
        for host in (*cluster.brokers.values(), *cluster.zkservers.values()):
            host.on_death.append(self._died)
        for step in plan.faults:
            self._world.at(base + step[0], self._do, step)

    def stop(self) -> None:
        """No more faults, and an end to those there are."""
        self.is_over = True
        up = [name for name, host in self.cluster.brokers.items() if host.is_up]
        failing = [name for name in up if name in self._failing]
        # Brokers that are restarted leave the in-sync sets. The one whose disk has failed could be
        # the only one left in a set, so nobody leaves it alone then.
        is_calm = len(up) == len(self.cluster.brokers) and len(failing) == 1
        for name in failing if self._plan.restart != "all" else ():
            # A replica whose sync has failed takes no part before its broker is started anew. The
            # others must do without; where they cannot, an operator restarts it.
            if is_calm and self._may_be_left(name):
                self.left = name
            elif self.cluster.brokers[name].is_up:
                self.cluster.crash(name, "random")
        self.cluster.calm()
        if self.left is not None:
            self.cluster.fail_disk(self.left, "sync", FOR_EVER)

    def _may_be_left(self, name: str) -> bool:
        """Whether nobody restarts a broker whose disk has failed, and all goes on without it."""
        if self._plan.operator or self.left is not None or self._rotten:
            return False
        if not (len(self.cluster.brokers) > 2 and self._is_spare(name)):
            return False
        # A partition may be rolled onto that disk. With one replica nobody else has it then, and
        # of two Raft needs both.
        return all(
            _needs_not_all(decode_node(PartitionNode, entry.data))
            for entry in self.cluster.ensemble.entries()
            if isinstance(paths.parse(entry.path), paths.PartitionPath) and entry.data
        )

    def replace_disks(self) -> bool:
        """Replace the disks that are damaged, as far as others have it all; are there none left?"""
        for name, number in list(self._rotten.items()):
            host = self.cluster.brokers[name]
            if host.disks == number and self._is_spare(name):
                self.cluster.wipe(name)
                host.start()
            if host.disks != number:
                del self._rotten[name]
        return not self._rotten

    def _hostile(self, act: str, dice: int) -> None:
        self.hostile(act, dice)

    def _do(self, step: Step, _: object) -> None:
        if not self.is_over:
            self._world.note(255, "fault", *step[1:])
            getattr(self, f"_{step[1]}")(*step[2:])

    def _later(self, delay: int, action: Callable[[], Any]) -> None:
        def act(_: object, __: object) -> None:
            if not self.is_over:
                action()

        self._world.after(delay, act)

    # --- processes ------------------------------------------------------------------------------

    def _crash(self, name: str, keep: str, down: int) -> None:
        self._down[name] = down
        self.cluster.crash(name, keep)

    def _crash_all(self, keep: str, down: int) -> None:
        for name in self._nodes():
            self._crash(name, keep, down)

    def _nodes(self) -> Iterable[str]:
        return [*self.cluster.brokers, *self.cluster.zkservers]

    def _boundary(self, name: str, boundary: int, keep: str, down: int) -> None:
        self._down[name] = down
        self.cluster.crash(name, keep, at_boundary=boundary)

    def _died(self, process: Process) -> None:
        name = process.name
        self._failing.discard(name)
        self._later(self._down.pop(name, 100_000), lambda: self._start(name))

    def _start(self, name: str) -> None:
        host = self.cluster.host(name)
        if not host.is_up:
            host.start()

    def _crash_loop(self, name: str, boundaries: list[int], keep: str, down: int) -> None:
        """Die again and again, each time so many effects after the start."""
        first, *rest = boundaries
        self._boundary(name, first, keep, down)
        self.cluster.brokers[name].crash_loop = rest

    def _wipe(self, name: str, down: int) -> None:
        """Its disk is replaced, unless others could not make up for what was on it."""
        if not self._is_spare(name):
            self._world.note(255, "fault", "no wipe", name)
            return
        self._down[name] = down
        self.cluster.wipe(name)
        if name in self._down:  # It was down already, and somebody restarts it.
            del self._down[name]

    def _is_spare(self, name: str, *, unseen: bool = False) -> bool:
        """Whether each block lives on without *name*: of Raft on a majority, else on another.

        That is, what is visible of it; with *unseen* all that *name* has of it.

        A disk that was replaced without the zkservers' knowing is given new blocks as if it were
        there. One such disk is enough: with two of three, nobody can lead what was just made.
        """
        watch = self.cluster.watch
        for entry in self.cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BrokerPath(broker=other) if other != name:
                    known = decode_node(BrokerNode, entry.data).storage_id
                    if known != self.cluster.brokers[other].storage_id:
                        return False
                case paths.BlockPath(topic=topic, partition=partition):
                    block = decode_node(BlockNode, entry.data)
                    key = watch.indexes.get((topic, partition)) if watch is not None else None
                    if name not in block.replicas or watch is None or topic in watch.mortal:
                        continue
                    if key is None:
                        return False
                    found = BlockId(*key, block.number)
                    seen = watch.history(found).blocks.get(block.number)
                    end = seen.end if seen is not None else block.start
                    mine = watch.ledger.log(name, found)
                    if unseen and mine is not None:
                        end = max(end, mine.synced_end)
                    if not self._has_others(name, end, found, block):
                        return False
                case _:
                    pass
        return True

    def _has_others(self, name: str, end: int, found: BlockId, block: BlockNode) -> bool:
        """Whether enough others have the block up to *end*."""
        watch = self.cluster.watch
        others, counted = 0, self._counted_on(found) if block.end is None else block.in_sync
        for broker, storage in zip(block.replicas, block.storages, strict=False):
            log = watch.ledger.log(broker, found) if watch is not None else None
            host = self.cluster.brokers[broker]
            if broker == name or storage != host.storage_id or log is None:
                continue
            if self._rotten.get(broker) == host.disks:
                continue  # What is damaged there may be just this.
            # Who is not in the in-sync set may have it all, but nobody can know.
            is_open_raft = block.end is None and block.acks is AckMode.RAFT
            is_known = is_open_raft or (broker in block.in_sync and broker in counted)
            others += log.synced_end >= end and is_known
        if block.end is None and block.acks is AckMode.RAFT:
            return others > len(block.replicas) // 2
        return others >= 1

    def _counted_on(self, place: BlockId) -> tuple[str, ...]:
        """Whom any leader of a partition counts on; all, if there is none."""
        found = tuple(self.cluster.brokers)
        for host in self.cluster.brokers.values():
            for partition in probe.partitions(host.broker) if host.broker is not None else ():
                state = probe.state(partition)
                if (state.topic_id, state.index) == (place.topic_id, place.partition):
                    names = probe.in_sync(partition)
                    found = tuple(n for n in found if names is None or n in names)
        return found

    def _pause(self, name: str, duration: int) -> None:
        self.cluster.pause(name)
        self._later(duration, lambda: self.cluster.resume(name))

    def _crash_app(self, name: str, duration: int) -> None:
        self.crash_app(name)
        self._later(duration, lambda: self.restart_app(name))

    # --- network --------------------------------------------------------------------------------

    def _isolate(self, name: str, duration: int) -> None:
        cut = self.cluster.cut(name)
        self._later(duration, lambda: self.cluster.heal(cut))

    def _cut(self, a: str, b: str, duration: int, one_way: bool) -> None:
        cut = self.cluster.cut(a, b, one_way=one_way)
        self._later(duration, lambda: self.cluster.heal(cut))

    def _split(self, names: list[str], duration: int) -> None:
        """Some on one side, and everybody else on the other."""
        cut = self.cluster.cut(names)
        self._later(duration, lambda: self.cluster.heal(cut))

    def _bridge(self, left: list[str], right: list[str], duration: int) -> None:
        """Two sides that hear of each other only through those who are on neither."""
        cut = self.cluster.cut(left, right)
        self._later(duration, lambda: self.cluster.heal(cut))

    def _swizzle(self, names: list[str], gap: int, duration: int) -> None:
        """Isolate some, one after the other, and let them back in an order of its own."""
        rng = self._world.rng("swizzle")
        for number, name in enumerate(names):
            lasts = duration + rng.randrange(duration + 1)
            self._later(number * gap, partial(self._isolate, name, lasts))

    def _slow_coordinator(self, duration: int, factor: int) -> None:
        """All it says comes later: answers, and notices of what has changed."""
        ensemble, usual = self.cluster.ensemble, self.cluster.knobs.coordinator_us
        ensemble.latency_us = usual * factor

        def end() -> None:
            ensemble.latency_us = usual

        self._later(duration, end)

    def _suspend(self, name: str, duration: int) -> None:
        self._cut(name, COORDINATOR, duration, False)

    def _clog(self, a: str, b: str, duration: int) -> None:
        self.cluster.network.clog(a, b, self._world.now + duration)

    def _slow_link(self, a: str, b: str, duration: int, factor: int) -> None:
        link = self.cluster.network.link(a, b)
        link.slow = factor

        def end() -> None:
            link.slow = 1

        self._later(duration, end)

    def _reset(self, a: str, b: str) -> None:
        self.cluster.network.reset(a, b)

    # --- disks and clocks -----------------------------------------------------------------------

    def _slow_disk(self, name: str, duration: int, factor: int) -> None:
        self.cluster.slow_disk(name, factor)
        self._later(duration, lambda: self.cluster.slow_disk(name, 1))

    def _full_disk(self, name: str, duration: int, room: int) -> None:
        self.cluster.fill_disk(name, room)
        self._later(duration, lambda: self.cluster.free_disk(name))

    def _fail_disk(self, name: str, what: str, duration: int, times: int) -> None:
        """The disk fails some times; an operator, if there is one, restarts the broker then."""
        self.cluster.fail_disk(name, what, times)
        if what != "read":  # What could not be read may be readable the next time.
            self._failing.add(name)

        def restart() -> None:
            self.cluster.brokers[name].files.failing.clear()
            if what != "read" and self._plan.operator:
                self._failing.discard(name)
                self._crash(name, "random", 100_000)

        self._later(duration, restart)

    def _flip(self, name: str, dice: int, duration: int) -> None:
        """A bit rots; whoever looks after the broker replaces the disk then.

        It may be one of what is not visible yet. If the broker has told that it has that, and does
        not look at it again, it is what the block goes on from: others must have it by then.
        """
        host = self.cluster.brokers[name]
        files = [path for path in host.disk.paths() if path.endswith(".block")]
        if not files or name in self._rotten or not self._is_spare(name, unseen=True):
            self._world.note(255, "fault", "no flip", name)
            return
        where = self.cluster.flip(name, Random(dice), files[dice % len(files)])
        self._world.note(255, "fault", "flipped", where)
        self._rotten[name] = host.disks
        self._later(duration, lambda: self._replace_rotten(name))

    def _replace_rotten(self, name: str) -> None:
        """Put another disk in, if the rotten one is still there; nobody else may miss it."""
        if self._rotten.get(name) != self.cluster.brokers[name].disks:
            self._rotten.pop(name, None)
        elif self._is_spare(name):
            del self._rotten[name]
            self._wipe(name, 100_000)
        else:
            self._later(SECOND, lambda: self._replace_rotten(name))

    def _clock(self, name: str, duration: int, rate: int) -> None:
        self.cluster.clock(name, rate=rate / 1_000_000)
        self._later(duration, lambda: self.cluster.clock(name))

    def _skew(self, name: str, skew_ms: int) -> None:
        """The wall clock is wrong, until somebody sets it right."""
        self.cluster.host(name).wall_skew_ms = skew_ms

    def _jump(self, name: str, jump: int) -> None:
        host = self.cluster.host(name)
        host.clock.change(rate=host.clock.rate, jump_us=jump)
        host.wake()

    def _expire(self, name: str) -> None:
        self.cluster.expire_session(name)


def _needs_not_all(node: PartitionNode) -> bool:
    """Whether a partition takes records while one of its replicas cannot write."""
    wanted = node.wanted
    counts = [node.replicas, *([wanted.count] if wanted is not None and wanted.count else [])]
    modes = {node.acks, *([wanted.acks] if wanted is not None and wanted.acks is not None else [])}
    return min(counts) > (2 if AckMode.RAFT in modes else 1)
