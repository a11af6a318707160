"""Runs a plan: first under faults, where nothing must go wrong, then healed, where all must work.

The first phase checks safety: the checkers of :mod:`pymq.testing.checkers.rules` watch every
event. Then the faults end, and within a bound everything must work again: each record that was
sent is answered, each partition takes records, each reader and each group gets to its end. At last
everything is read once more and held against what the applications were told.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

from pymq.client.router import Call
from pymq.coord import paths
from pymq.core import message as msg
from pymq.core.metadata.nodes import BlockNode, decode_node
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, BlockId
from pymq.core.values import Factory, define
from pymq.errors import (
    DeliveryTimeout,
    InvalidRequest,
    OutOfOrderSequence,
    PartitionUnset,
    PymqError,
    RecordTooLarge,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster, NotReached
from pymq.testing.faults.hostile import NAME as HOSTILE
from pymq.testing.faults.hostile import Hostile
from pymq.testing.faults.limits import limited
from pymq.testing.faults.nemesis import Nemesis
from pymq.testing.faults.plan import SCRATCH, Plan
from pymq.testing.simulation import probe
from pymq.testing.simulation.world import SECOND, Violation, uncollected
from pymq.testing.workload.applications import Application, Sent, WorkloadHistory
from pymq.testing.workload.consuming import ReadingApp
from pymq.testing.workload.service import Service
from pymq.testing.workload.survivor import BOUND_S, committed_on, draw_survivor, let_others_die

HEAL_S = 90.0  # within which everything must work again
PATIENCE = 5  # times that, for what gets on and is only slow
LOOK_US = 50_000  # how often it is looked whether it does
LOOKS = 5  # of administrators, one a second
# What must come about once the faults have ended; a run may be told to let some of it pass.
LIVENESS = """topics-are-made zkserver-comes-back sends-are-answered partitions-take-records
    readers-reach-the-end groups-reach-the-end replicas-converge auditor-reads
    readable-without-leader""".split()
# With these a record was certainly not written; with others nobody knows.
DEFINITE = (InvalidRequest, PartitionUnset, RecordTooLarge, UnknownPartition, UnknownTopic)


def is_definite(error: PymqError | None) -> bool:
    """Whether a record that failed so was certainly not written."""
    if isinstance(error, DeliveryTimeout):
        return not error.may_be_written
    return isinstance(error, DEFINITE)


@define
class Result:
    """What came of a run."""

    seed: int
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    sent: int = 0
    acked: int = 0
    reads: int = 0
    violation: str | None = None  # the name of the rule
    message: str = ""
    at_us: int = 0  # when it was broken
    waived: str = ""  # the first rule that was not kept, and did not need to be
    trace: list[str] = Factory(list)
    marks: Counter[str] = Factory(Counter)  # that were passed, if they were to be counted


class Waived(Exception):
    """Something has not come about, and nobody insists on it."""


class SimulationRun:
    """One run of a plan; of *waive*, some of :data:`LIVENESS`, nothing is demanded."""

    def __init__(self, plan: Plan, waive: Collection[str] = ()) -> None:
        self.plan = plan
        self.waive = waive
        self.waived = ""
        self.history = WorkloadHistory()
        self.cluster = Cluster(
            brokers=plan.brokers, zkservers=plan.zkservers, seed=plan.seed, **plan.knobs
        )
        self.world = self.cluster.world
        self.service = Service(self.cluster, self.watch.fail)
        self.apps: dict[str, Application] = {}
        self.boss: Application | None = None  # does what administrators do
        self.nemesis: Nemesis | None = None
        self.hostile: Hostile | None = None
        self._is_made: dict[str, bool] = {}
        changed = {op[2] for op in plan.ops if op[1] == "set_state"}
        raft = {topic["name"] for topic in plan.topics if topic["acks"] == "raft"}
        self._compacted = {
            topic["name"]
            for topic in plan.topics
            if topic["config"].get("cleanup_policy") == "compact"
        }
        self._raft_for_ever = raft - changed

    @property
    def watch(self) -> StoreWatch:
        """What watches the run."""
        assert self.cluster.watch is not None
        return self.cluster.watch

    # --- phases ---------------------------------------------------------------------------------

    def execute(self) -> None:
        """Do it all.

        Raises:
            Violation: a rule was broken.
        """
        self.watch.mortal.add(SCRATCH)
        self.cluster.start()
        self.boss = self._app("boss", {"readers": [], "groups": []})
        self._make_topics()
        for index, config in enumerate(self.plan.apps):
            self.apps[f"app-{index}"] = self._app(f"app-{index}", config)
            self.apps[f"app-{index}"].begin()
        base = self.world.now
        self.nemesis = Nemesis(self.cluster, self.plan, base)
        self.nemesis.crash_app = self._crash_app
        self.nemesis.restart_app = self._restart_app
        if any(step[1] == HOSTILE for step in self.plan.faults):
            self.hostile = self._hostile()
            self.nemesis.hostile = self.hostile.do
            self.service.is_hostile = True
        for step in self.plan.ops:
            self.world.at(base + step[0], self._op, step)
        self.world.run(base + self.plan.duration_us)
        self.nemesis.stop()
        for _ in range(round(HEAL_S)):
            if self.nemesis.replace_disks():
                break
            self.world.run(self.world.now + SECOND)
        else:
            self.waived = "beyond-repair"
            return
        for phase in (self._heal, self._check_reads, self._check_survivor):
            try:
                phase()
            except Waived as problem:
                self.waived = self.waived or str(problem)
        self.cluster.check()

    def _app(self, name: str, config: dict[str, object]) -> Application:
        host = self.cluster.clients.get(name)
        if host is None:
            host = self.cluster.add_client(name)
        if not host.is_up:
            host.start()
        return Application(self.cluster, host, self.history, config, self.watch.fail, self.service)

    def _hostile(self) -> Hostile:
        topics = [str(topic["name"]) for topic in self.plan.topics]
        groups = sorted({str(g) for app in self.plan.apps for _, g in app.get("groups", ())})
        return Hostile(self.cluster, topics, groups)

    def _make_topics(self) -> None:
        for topic in self.plan.topics:
            self._make_topic(topic)
        self._until(lambda: len(self._is_made) == len(self.plan.topics), "topics-are-made", 30.0)

    def _make_topic(self, topic: dict[str, object]) -> None:
        names = tuple(str(i) for i in range(int(str(topic["partitions"]))))
        config = dict(topic["config"])  # type: ignore[call-overload] # a JSON object
        TopicConfig.of(config)
        name, acks = str(topic["name"]), AckMode.of(str(topic["acks"]))
        replicas = int(str(topic["replicas"]))

        def then(call: Call) -> None:
            if call.error is None or isinstance(call.error, TopicExists):
                self._is_made[name] = True
            else:
                self.world.after(100_000, lambda a, b: self._make_topic(topic))

        assert self.boss is not None
        self.boss.ask(lambda r: msg.CreateTopic(r, name, names, replicas, acks, config, True), then)

    def _op(self, step: list[object], _: object) -> None:
        if step[1] == "send":
            _, _, index, topic, partition, count, size = step
            app = self.apps[f"app-{index}"]
            if app.is_up:
                app.send(str(topic), str(partition), int(str(count)), int(str(size)))
        elif step[1] in ("seek", "find", "rejoin"):
            app = self.apps[f"app-{step[2]}"]
            if app.is_up:
                app.do(step)
        elif self.boss is not None:
            self.boss.administrate(step)

    def _crash_app(self, name: str) -> None:
        host = self.cluster.clients.get(name)
        if host is not None:
            host.die()
            for sent in self.history.sent:
                if sent.app == name and sent.done_at < 0:
                    sent.done_at = self.world.now  # Nobody will hear of it any more.

    def _restart_app(self, name: str) -> None:
        host = self.cluster.clients.get(name)
        if host is not None and not host.is_up:
            index = int(name.rpartition("-")[2])
            self.apps[name] = self._app(name, self.plan.apps[index])
            self.apps[name].begin()

    # --- the healed phase -----------------------------------------------------------------------

    def _until(
        self,
        is_so: Callable[[], bool],
        rule: str,
        seconds: float = HEAL_S,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        """Let time pass until it is so; *seconds* without any *progress* are too many."""
        until, latest = self.world.now + round(seconds * SECOND), self.world.now
        latest, done = latest + PATIENCE * (until - latest), progress()
        while not is_so():
            if (now_done := progress()) > done:
                done, until = now_done, min(latest, self.world.now + round(seconds * SECOND))
            if self.world.now >= until:
                self._fail(rule, f"not within {seconds:g} s")
            self.world.run(self.world.now + LOOK_US)

    def _fail(self, rule: str, what: str) -> NoReturn:
        if rule in self.waive:
            raise Waived(f"{rule}: {what}")
        raise Violation(rule, what)

    def _heal(self) -> None:
        """Everything works again: what was sent is answered, and every partition takes more."""
        if self.plan.restart == "all":
            self._until(self._has_zkserver, "zkserver-comes-back")
            for name in self.cluster.brokers:
                self.cluster.stop(name)
                self.cluster.restart(name)
        for name in list(self.apps):
            if self.plan.restart != "none":
                self._crash_app(name)
            self._restart_app(name)
        if self.plan.restart != "none":
            self.cluster.clients["boss"].die()
            self.boss = self._app("boss", {})
        self._until(self.cluster.is_ready, "zkserver-comes-back")
        self._recover()
        self._until(lambda: self.history.pending == 0, "sends-are-answered")
        assert self.boss is not None
        first = len(self.history.sent)
        for topic, partition in self._partitions():
            self.boss.send(topic, partition, 1, 10)
        last = self.history.sent[first:]
        self._until(lambda: all(s.done_at >= 0 for s in last), "partitions-take-records")
        for sent in last:
            if sent.error is not None:
                what = f"{sent.topic}/{sent.partition}: {sent.error}"
                self._fail("partitions-take-records", what)
        for app in self.apps.values():
            self._restart_consumers(app)
        self._until(self._is_read, "readers-reach-the-end")
        self._until(self._is_processed, "groups-reach-the-end", progress=self._acknowledged)
        self._until(self._is_converged, "replicas-converge")

    def _recover(self) -> None:
        """Let administrators look for blocks that lost all of their in-sync set with a disk.

        A fault is kept from replacing a disk whose records nobody else has, but not a block from
        being put on a disk that is gone already; nor can a leader's last wish for a smaller set be
        taken back, when it comes after its disk is gone. Nobody waits for the administrators: where
        there is such a block, what must come about comes about after they have looked.
        """
        if not any(step[1] in ("wipe", "flip") for step in self.plan.faults):
            return
        for number in range(1, LOOKS + 1):
            self.world.after(number * SECOND, self._recover_leaderless)

    def _recover_leaderless(self, _: object, __: object) -> None:
        for topic, partition in self._leaderless():
            what = partial(msg.RecoverPartition, topic=topic, partition=partition)
            assert self.boss is not None
            self.boss.admin(f"recover {topic}/{partition}", what)

    def _leaderless(self) -> list[tuple[str, str]]:
        """Partitions whose open block is in sync nowhere, though no majority was asked for."""
        found = []
        for entry in self.cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BlockPath(topic=topic, partition=partition):
                    block = decode_node(BlockNode, entry.data)
                    has_majority = block.acks is AckMode.RAFT and len(block.replicas) > 1
                    if block.end is None and block.replicas and not block.in_sync:
                        found += [] if has_majority else [(topic, partition)]
                case _:
                    pass
        return found

    def _has_zkserver(self) -> bool:
        hosts = self.cluster.zkservers.values()
        return any(host.controller is not None and host.controller.is_active for host in hosts)

    def _partitions(self) -> list[tuple[str, str]]:
        return [name for name in self.watch.indexes if not name[0].startswith("__")]

    def _restart_consumers(self, app: Application) -> None:
        for consumer in (*app.readers, *app.workers):
            consumer.stop()
        app.readers.clear()
        app.workers.clear()
        app.config = {**app.config, "forget": 0.0, "nack": 0.0, "max_deliver": 0}
        app.begin()

    def _end(self, topic: str, partition: str) -> int:
        history = self.watch.history_of(topic, partition)
        return history.end() if history is not None else 0

    def _is_read(self) -> bool:
        for app in self.apps.values():
            if len(app.readers) < len(app.config.get("readers", ())):
                return False
            if not all(self._is_at_end(reading) for reading in app.readers):
                return False
        return True

    def _is_at_end(self, reading: ReadingApp) -> bool:
        """Whether a reader has read all; what nobody has any more it is made to leave out."""
        for name, cursor in reading.reader.cursors.items():
            orphan = self.watch.orphan(reading.topic, name, cursor.position)
            if orphan is not None and orphan.end is not None:
                reading.reader.seek(name, orphan.end)
            if cursor.position < self._end(reading.topic, name):
                return False
        return True

    def _acknowledged(self) -> int:
        """How far all groups have got, taken together."""
        brokers = [host.broker for host in self.cluster.brokers.values() if host.broker is not None]
        return sum(
            leases.committed for broker in brokers for *_, leases in probe.all_leases(broker)
        )

    def _is_processed(self) -> bool:
        wanted = {
            (str(group), str(topic))
            for app in self.plan.apps
            for topic, group in app.get("groups", ())
        }
        found = {
            (group, topic, partition): leases.committed
            for host in self.cluster.brokers.values()
            if host.broker is not None
            for _, group, topic, partition, leases in probe.all_leases(host.broker)
        }
        for group, topic in sorted(wanted):
            for name, partition in self._partitions():
                is_behind = name == topic and (
                    found.get((group, topic, partition), 0) < self._end(topic, partition)
                )
                if is_behind and not self._is_stuck(group, topic, partition):
                    return False
        return True

    def _is_stuck(self, group: str, topic: str, partition: str) -> bool:
        """Whether a member waits for what nobody has any more, and so for nothing behind it."""
        return any(
            at == partition and self.watch.orphan(topic, partition, offset) is not None
            for app in self.apps.values()
            for working in app.workers
            if (working.worker.config.group, working.topic) == (group, topic)
            for at, offset in probe.fetching(working.worker)
        )

    def _is_converged(self) -> bool:
        for key, history in self.watch.histories.items():
            if self.watch.names[key][0] in self.watch.mortal:
                continue
            number = max(history.blocks, default=None)
            if number is None:
                continue
            for log in self.watch.ledger.replicas(BlockId(*key, number)):
                host = self.cluster.brokers[log.node]
                if self.nemesis is not None and log.node == self.nemesis.left:
                    continue  # Its disk fails for ever.
                if log.chain_at(history.end()) is None and host.hosts(key):
                    return False
        return True

    # --- at last --------------------------------------------------------------------------------

    def _check_reads(self) -> None:
        """Read everything once more, and hold it against what was promised."""
        host = self.cluster.add_client("auditor")
        host.start()
        auditor = Application(self.cluster, host, self.history, {}, self.watch.fail, self.service)
        for topic in self.plan.topics:
            auditor.read(str(topic["name"]))
        self._until(lambda: len(auditor.readers) == len(self.plan.topics), "auditor-reads")
        self._until(
            lambda: all(self._is_at_end(reading) for reading in auditor.readers), "auditor-reads"
        )
        self.world.run(self.world.now + SECOND)
        seen: dict[int, tuple[str, str, int]] = {}
        starts: dict[tuple[str, str], int] = {}
        for reading in auditor.readers:
            for (partition, offset), number in reading.seen.items():
                place = (reading.topic, partition, offset)
                if number in seen and self._is_numbered(place, seen[number]):
                    self.watch.fail("written-once", f"{number} is in {seen[number]} and in {place}")
                seen[number] = place
            for name, cursor in reading.reader.cursors.items():
                starts[reading.topic, name] = cursor.log_start
        values = {
            (reading.topic, partition, offset): number
            for reading in auditor.readers
            for (partition, offset), number in reading.seen.items()
        }
        for sent in self.history.sent:
            self._check_sent(sent, seen, values, starts)

    def _check_survivor(self) -> None:
        """All brokers but one die: what that one knows to be committed is read within a bound."""
        left = self.nemesis.left if self.nemesis is not None else None
        survivor = draw_survivor(self.plan.seed, list(self.cluster.brokers), left)
        if survivor is None or self.waived:
            return
        wanted = committed_on(self.cluster, self.watch, survivor)
        let_others_die(self.cluster, survivor)
        host = self.cluster.add_client("mourner")
        host.start()
        reader = Application(self.cluster, host, self.history, {}, self.watch.fail, self.service)
        topics = list(dict.fromkeys(topic for topic, _ in wanted))
        for topic in topics:
            reader.read(topic)

        def is_read() -> bool:
            at = {
                (reading.topic, name): cursor.position
                for reading in reader.readers
                for name, cursor in reading.reader.cursors.items()
            }
            return all(at.get(place, -1) >= end for place, end in wanted.items())

        def progress() -> int:
            # Where each fetch brings one record, it is slow, and that is no fault.
            return sum(c.position for r in reader.readers for c in r.reader.cursors.values())

        self._until(is_read, "readable-without-leader", BOUND_S, progress)

    def _is_numbered(self, *places: tuple[str, str, int]) -> bool:
        """Whether the batches there carry their producer's numbers, which say what is a repeat."""
        for topic, partition, offset in places:
            history = self.watch.history_of(topic, partition)
            batch = history.batch_at(offset) if history is not None else None
            if batch is None or batch.producer_id < 0:
                return False
        return True

    def _is_safe(self, sent: Sent) -> bool:
        """Whether its acknowledgement says more than that the leader had it at the time."""
        if sent.topic in self._compacted:
            return False  # What has a later record of its key may be gone.
        if self.plan.brokers == 1 or sent.acks is not None:
            return self.plan.brokers == 1 or sent.acks is AckMode.RAFT
        return sent.topic in self._raft_for_ever

    def _check_sent(
        self,
        sent: Sent,
        seen: dict[int, tuple[str, str, int]],
        values: dict[tuple[str, str, int], int],
        starts: dict[tuple[str, str], int],
    ) -> None:
        name = (sent.topic, sent.partition)
        history = self.watch.history_of(*name)
        if name not in starts:
            return  # The auditor came before it.
        if sent.is_acked and sent.offset >= starts[name]:
            if not self._is_safe(sent):
                return
            place = (*name, sent.offset)
            if values.get(place) != sent.number and (history is None or not history.losses):
                self.watch.fail(
                    "acked-is-kept",
                    f"{sent.number} was acknowledged at {place}, where {values.get(place)} is now",
                )
        elif isinstance(sent.error, OutOfOrderSequence) and not (history and history.losses):
            self.watch.fail("sequences-are-kept", f"{sent.number} failed: {sent.error}")
        elif is_definite(sent.error) and sent.number in seen:
            self.watch.fail("failed-is-absent", f"{sent.number} failed: {sent.error}")


def run_plan(
    plan: Plan, *, trace: bool = False, waive: Collection[str] = (), marks: bool = False
) -> Result:
    """Carry a plan out; a violation is part of the result. *waive* is as with
    :class:`SimulationRun`.
    """
    if marks:
        with counting() as counts:
            result = run_plan(plan, trace=trace, waive=waive)
        result.marks = counts
        return result
    result = Result(plan.seed)
    began = time.perf_counter()
    with uncollected():
        _run_plan(plan, waive, result, trace=trace)
    result.real_s = time.perf_counter() - began
    return result


def _run_plan(plan: Plan, waive: Collection[str], result: Result, *, trace: bool) -> None:
    run: SimulationRun | None = None
    try:
        with limited(plan.limits):
            run = SimulationRun(plan, waive)
            run.execute()
    except Violation as violation:
        result.violation, result.message = violation.name, str(violation)
        if violation.__cause__ is not None:
            cause = violation.__cause__
            result.message += "\n" + "".join(traceback.format_exception(cause)[-6:])
    except NotReached as error:
        result.violation, result.message = "cluster-starts", str(error)
    except Exception as error:
        result.violation = f"crash-{type(error).__name__}"
        result.message = "".join(traceback.format_exception(error)[-8:])
    if run is not None:
        world, history = run.world, run.history
        result.digest, result.events = world.digest, world.events
        result.virtual_s, result.at_us = world.now / SECOND, world.now
        result.waived = run.waived
        result.sent, result.reads = len(history.sent), history.reads
        result.acked = sum(1 for sent in history.sent if sent.is_acked)
        if trace or result.violation is not None:
            result.trace = run.cluster.trace
