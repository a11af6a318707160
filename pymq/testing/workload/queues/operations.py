"""Carries out the operations of work queues, and checks their results at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pymq.client.client import Client
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster
from pymq.testing.faults.kinds import Step
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.applications import WorkloadHistory
from pymq.testing.workload.liveness import Liveness
from pymq.testing.workload.promises import TopicPromises
from pymq.testing.workload.queues.callers import CallingProcess
from pymq.testing.workload.queues.cancels import Cancellations
from pymq.testing.workload.queues.redrives import Redrives
from pymq.testing.workload.queues.requests import SimulatedService, serve_of
from pymq.testing.workload.queues.routes import RouteRules

KINDS = ("redrive", "cancel", "serve", "ask")
LAST = "last"  # the processes that the end of a run needs
LONG_US = 600 * SECOND


class QueueOperations:
    """The processes of a run that make public calls."""

    def __init__(
        self,
        cluster: Cluster,
        watch: StoreWatch,
        plan: Plan,
        history: WorkloadHistory,
        promises: TopicPromises,
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._plan = plan
        self._history = history
        self._callers: dict[str, CallingProcess] = {}
        routed = {str(topic["name"]) for topic in plan.topics if "route" in topic["config"]}
        history.routes.topics = routed
        self._cancels = Cancellations(cluster, history, promises, watch.fail)
        self._redrives = Redrives(history.letters, history.sent, promises, watch.fail)
        self._service = SimulatedService(cluster, watch.fail)
        self._routes = RouteRules(history.routes, plan, promises, watch.fail)

    def do(self, step: Step) -> None:
        """Carry out one operation of a plan; a process that is busy is left alone."""
        kind, slot = str(step[1]), int(step[2])
        caller = self._caller(f"{kind}-{slot}")
        if caller.is_busy:
            return
        if kind == "redrive":
            self._redrives.watch(caller.host)
            caller.do(self._redrives.work(step))
            if step[-1]:
                caller.kill_later(int(step[-1]))
        elif kind == "cancel":
            if (work := self._cancels.work(int(step[3]))) is not None:
                caller.do(work)
        elif kind == "serve":
            until, is_clean = serve_of(step, self._cluster.world.now)
            caller.do(self._serve(caller, until, is_clean=is_clean))
        else:
            caller.do(partial(self._service.ask, int(step[3]), int(step[4])))

    def _caller(self, name: str) -> CallingProcess:
        if name not in self._callers:
            self._callers[name] = CallingProcess(self._cluster, name)
        return self._callers[name]

    def _serve(
        self, caller: CallingProcess, until: int, *, is_clean: bool
    ) -> Callable[[Client], None]:
        return lambda mq: self._service.serve(caller, until, is_clean=is_clean, mq=mq)

    # --- the end of a run -----------------------------------------------------------------------

    def kill_all(self) -> None:
        """Kill all processes, in the middle of their calls."""
        for caller in self._callers.values():
            caller.kill()

    def settle(self, liveness: Liveness) -> None:
        """Check that redrives and requests get done once the faults have ended."""
        kinds = {str(step[1]) for step in self._plan.ops}
        letters = {sent.topic for sent in self._history.sent if sent.home}
        if topics := sorted(letters):
            caller = self._caller(f"redrive-{LAST}")
            caller.do(partial(self._redrives.redrive_all, topics))
            liveness.until(lambda: not caller.is_busy, "letters-go-back")
        if kinds & {"serve", "ask"}:
            self._settle_requests(liveness)

    def _settle_requests(self, liveness: Liveness) -> None:
        server, asker = self._caller(f"serve-{LAST}"), self._caller(f"ask-{LAST}")
        server.do(self._serve(server, self._cluster.world.now + LONG_US, is_clean=True))
        done: list[bool] = []
        asker.do(partial(self._service.ask_until_answered, lambda: done.append(True)))
        liveness.until(lambda: len(done) == 1, "requests-are-answered")
        for name, caller in self._callers.items():
            if name.startswith("serve"):
                caller.kill()
        liveness.until(self._service.is_deserted, "no-responders-at-once")
        asker.do(partial(self._service.ask_nobody, lambda: done.append(True)))
        liveness.until(lambda: len(done) == 2, "no-responders-at-once")

    def check(self) -> None:
        """Compare what all operations did with the records; called after these were read."""
        self._redrives.check()
        self._routes.check(self._history.sent)
