"""Runs a plan in two phases: the phase with faults tests safety, the phase after it progress.

The first phase checks safety: the checkers of :mod:`pymq.testing.checkers.rules` watch each event.
Then the faults end, and within a bound everything must work again: each send gets its answer, each
partition accepts records, each reader and each group reaches the end. At the end, the run reads all
records once more and compares them with the answers to the applications.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Collection
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode
from pymq.core.values import Factory, define
from pymq.errors import (
    TopicExists,
)
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster, NotReached
from pymq.testing.faults.hostile import NAME as HOSTILE
from pymq.testing.faults.hostile import Hostile
from pymq.testing.faults.kafka.draw import NAME as KAFKA
from pymq.testing.faults.limits import limited
from pymq.testing.faults.nemesis import Nemesis
from pymq.testing.faults.plan import SCRATCH, Plan
from pymq.testing.simulation.world import SECOND, Violation, uncollected
from pymq.testing.workload.applications import Application, WorkloadHistory
from pymq.testing.workload.convergence import Convergence
from pymq.testing.workload.final_checks import FinalChecks
from pymq.testing.workload.liveness import HEAL_S, Liveness, Waived
from pymq.testing.workload.promises import TopicPromises
from pymq.testing.workload.queues.operations import KINDS, QueueOperations
from pymq.testing.workload.service import Service

if TYPE_CHECKING:
    from pymq.testing.workload.kafka.operations import KafkaOperations

LOOKS = 5  # how often administrators look for partitions to recover, once a second


@define
class Result:
    """The result of a run."""

    seed: int
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    sent: int = 0
    acked: int = 0
    reads: int = 0
    violation: str | None = None  # the name of the broken rule
    message: str = ""
    at_us: int = 0  # virtual time of the violation
    waived: str = ""  # the first broken rule that the run waives
    trace: list[str] = Factory(list)
    marks: Counter[str] = Factory(Counter)  # marks that the run passed, if the run counts them


class SimulationRun:
    """One run of a plan; it does not demand the rules in *waive*, a part of :data:`LIVENESS`."""

    def __init__(self, plan: Plan, waive: Collection[str] = ()) -> None:
        self.plan = plan
        self.waived = ""
        self.history = WorkloadHistory()
        self.cluster = Cluster(
            brokers=plan.brokers, zkservers=plan.zkservers, seed=plan.seed, **plan.knobs
        )
        self.world = self.cluster.world
        self.service = Service(self.cluster, self.watch.fail)
        self.apps: dict[str, Application] = {}
        self.boss: Application | None = None  # the client of the administrators
        self.nemesis: Nemesis | None = None
        self.hostile: Hostile | None = None
        self.kafka: KafkaOperations | None = None
        self._is_made: dict[str, bool] = {}
        self._liveness = Liveness(self.world, waive)
        self._convergence = Convergence(self.cluster, self.watch, plan, self.apps)
        self._promises = TopicPromises(plan)
        self.queues = QueueOperations(self.cluster, self.watch, plan, self.history, self._promises)
        self._final = FinalChecks(
            self.cluster,
            self.watch,
            plan,
            self.history,
            self.service,
            self._liveness,
            self._convergence,
            self._promises,
        )

    @property
    def watch(self) -> StoreWatch:
        """The checkers' view of the cluster."""
        assert self.cluster.watch is not None
        return self.cluster.watch

    # --- phases ---------------------------------------------------------------------------------

    def execute(self) -> None:
        """Run all phases.

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
        if self.plan.kafka:
            from pymq.testing.workload.kafka.operations import KafkaOperations

            self.kafka = KafkaOperations(self.cluster, self.watch, self.plan, self.history)
            self.kafka.begin()
        base = self.world.now
        if any(step[1] == HOSTILE for step in self.plan.faults):
            self.hostile = self._hostile()
            self.service.is_hostile = True
        self.nemesis = Nemesis(
            self.cluster,
            self.plan,
            base,
            crash_app=self._crash_app,
            restart_app=self._restart_app,
            hostile=self.hostile.do if self.hostile is not None else lambda act, dice: None,
        )
        for step in self.plan.ops:
            self.world.at(base + step[0], self._op, step)
        self.world.run(base + self.plan.duration_us)
        self.nemesis.stop()
        for _ in range(round(HEAL_S)):
            if self.nemesis.disks.replace_disks():
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

    def close(self) -> None:
        """End the calls that still wait; no rule counts any more."""
        self.queues.kill_all()

    def _check_reads(self) -> None:
        values, starts = self._final.check_reads()
        self.queues.check()
        if self.kafka is not None:
            self.kafka.check(values, starts)

    def _check_survivor(self) -> None:
        if self.nemesis is not None and not self.waived:
            self._final.check_survivor(self.nemesis.disks.left)

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
        self._liveness.until(
            lambda: len(self._is_made) == len(self.plan.topics), "topics-are-made", 30.0
        )

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
            _, _, index, topic, partition, count, size, *rest = step
            home = str(rest[0]) if rest else ""
            app = self.apps[f"app-{index}"]
            if app.is_up:
                app.send(str(topic), str(partition), int(str(count)), int(str(size)), home)
        elif step[1] in ("seek", "find", "rejoin"):
            app = self.apps[f"app-{step[2]}"]
            if app.is_up:
                app.do(step)
        elif step[1] in KINDS:
            self.queues.do(step)
        elif step[1] == KAFKA:
            if self.kafka is not None:
                self.kafka.do(step)
        elif step[1] == "delete_native":
            if self.kafka is not None and self.boss is not None:
                self.kafka.delete_natively(self.boss, step)
        elif self.boss is not None:
            self.boss.administrate(step)

    def _crash_app(self, name: str) -> None:
        host = self.cluster.clients.get(name)
        if host is not None:
            host.die()
            for sent in self.history.sent:
                if sent.app == name and sent.done_at < 0:
                    sent.done_at = self.world.now  # the answer is lost with the application

    def _restart_app(self, name: str) -> None:
        host = self.cluster.clients.get(name)
        if host is not None and not host.is_up:
            index = int(name.rpartition("-")[2])
            self.apps[name] = self._app(name, self.plan.apps[index])
            self.apps[name].begin()

    # --- the healed phase -----------------------------------------------------------------------

    def _heal(self) -> None:
        """Check that sends are answered, partitions take records, and consumers catch up."""
        if self.plan.restart == "all":
            self._liveness.until(self._convergence.has_zkserver, "zkserver-comes-back")
            for name in self.cluster.brokers:
                self.cluster.stop(name)
                self.cluster.restart(name)
        if self.plan.restart != "none":
            self.queues.kill_all()
        for name in list(self.apps):
            if self.plan.restart != "none":
                self._crash_app(name)
            self._restart_app(name)
        if self.plan.restart != "none":
            self.cluster.clients["boss"].die()
            self.boss = self._app("boss", {})
        if self.kafka is not None:
            if self.plan.restart != "none":
                self.kafka.kill_all()
            self.kafka.begin()
        self._liveness.until(self.cluster.is_ready, "zkserver-comes-back")
        self._recover()
        self._liveness.until(lambda: self.history.pending == 0, "sends-are-answered")
        assert self.boss is not None
        first = len(self.history.sent)
        for topic, partition in self._convergence.partitions():
            self.boss.send(topic, partition, 1, 10)
        last = self.history.sent[first:]
        self._liveness.until(lambda: all(s.done_at >= 0 for s in last), "partitions-take-records")
        for sent in last:
            if sent.error is not None:
                what = f"{sent.topic}/{sent.partition}: {sent.error}"
                self._liveness.fail("partitions-take-records", what)
        for app in self.apps.values():
            self._restart_consumers(app)
        self._liveness.until(self._convergence.is_read, "readers-reach-the-end")
        self._liveness.until(
            self._convergence.is_processed,
            "groups-reach-the-end",
            progress=self._convergence.acknowledged,
        )
        self._liveness.until(
            lambda: self._convergence.are_delivered(self.history, self._promises.keeps_copy),
            "delayed-are-delivered",
        )
        self.queues.settle(self._liveness)
        if self.kafka is not None:
            self.kafka.settle(self._liveness)
        left = self.nemesis.disks.left if self.nemesis is not None else None
        self._liveness.until(lambda: self._convergence.is_converged(left), "replicas-converge")

    def _recover(self) -> None:
        """Let administrators look for blocks that lost their whole in-sync set with a disk.

        A fault replaces a disk only if other brokers have its records. The controller may also
        place a block on a disk that is already lost, and a leader's last request for a smaller
        in-sync set may arrive after its disk was lost. A run does not wait for the administrators:
        if there is such a block, the rules demand its recovery only after the administrators have
        looked.
        """
        if not any(step[1] in ("wipe", "flip") for step in self.plan.faults):
            return
        for number in range(1, LOOKS + 1):
            self.world.after(number * SECOND, self._recover_leaderless)

    def _recover_leaderless(self, _: object, __: object) -> None:
        for topic, partition in self._convergence.leaderless():
            what = partial(msg.RecoverPartition, topic=topic, partition=partition)
            assert self.boss is not None
            self.boss.admin(f"recover {topic}/{partition}", what)

    def _restart_consumers(self, app: Application) -> None:
        for consumer in (*app.readers, *app.workers):
            consumer.stop()
        app.readers.clear()
        app.workers.clear()
        app.config = {**app.config, "forget": 0.0, "nack": 0.0, "max_deliver": 0}
        app.begin()


def run_plan(
    plan: Plan, *, trace: bool = False, waive: Collection[str] = (), marks: bool = False
) -> Result:
    """Execute a plan; a violation is part of its result. See :class:`SimulationRun`."""
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
    if plan.kafka:
        # Loaded before the limits of these modules are set.
        import_module("pymq.testing.workload.kafka.operations")
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
        run.close()
        world, history = run.world, run.history
        result.digest, result.events = world.digest, world.events
        result.virtual_s, result.at_us = world.now / SECOND, world.now
        result.waived = run.waived
        result.sent, result.reads = len(history.sent), history.reads
        result.acked = sum(1 for sent in history.sent if sent.is_acked)
        if trace or result.violation is not None:
            result.trace = run.cluster.trace
