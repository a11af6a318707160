"""Changes of the metadata tree: the zkserver plans, commits and adopts each change.

1. A task has a plan, a function that fills a :class:`~pymq.controller.state.image.Draft`.
2. One commit is in flight at a time. Tasks that arrive meanwhile share the next commit if they
   concern different partitions. Waiting tasks are in :mod:`~pymq.controller.state.commit_queues`.
3. When the coordinator backend has committed, the image adopts the drafts. If the commit loses a
   race, the tasks are planned again on the new tree.

Large changes: a plan that changes many nodes stops when its draft is full, and returns
:attr:`Later.MORE`. The zkserver commits this part, and queues the task again for the rest. After
each part, another zkserver must be able to continue from the tree, because a plan reads the
remaining work from the tree. If a part changed nothing, the next part waits for the next turn.

Lost answers: the zkserver submits the same commit again. Only the active zkserver writes, so if the
first commit was done, the first operation of the repeated commit fails. So the commit is done
exactly once, without a read.

Fencing: each commit checks the controller epoch, so a replaced zkserver cannot change the tree
(K1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.commit_events import events
from pymq.controller.state.commit_queues import (
    CommitQueues,
    CommitTask,
    Later,
    OpenRequests,
    Plan,
)
from pymq.controller.state.image import SLICE_BYTES, SLICE_OPS, Draft, Image
from pymq.coord import paths
from pymq.core.message import Answer, Message, Result
from pymq.core.metadata.coordination import (
    Check,
    Committed,
    Conflicted,
    CoordRequest,
    Create,
    Delete,
    Op,
    Put,
    Uncertain,
)
from pymq.core.metadata.coordination import Commit as CommitRequest
from pymq.core.observe.coverage import mark
from pymq.core.observe.events import EventLog
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import InvalidRequest, NotController, NotEnoughBrokers, PymqError, RequestTimeout

TRIES_MAX = 5  # number of lost races after which a plan fails
# number of times that a commit without an answer is repeated before the tree is read again
REPEATS_MAX = 3
PASSED_MAX = 1_000  # tasks that may be skipped in favour of later tasks while a commit is filled

Send = Callable[[str, Message], None]


class Backend(Protocol):
    """The interface of the controller's parts to the coordinator backend."""

    def next_tag(self) -> int:
        """Return a tag that no other request has."""
        ...

    def ask(self, request: CoordRequest) -> None:
        """Send *request* to the coordinator backend."""
        ...


@define
class CommitInFlight:
    """A commit in progress."""

    tag: int = 0
    items: list[tuple[CommitTask, Draft, Result | Later]] = Factory(list)
    ops: list[Op] = Factory(list)  # operations of all items
    size: int = 0  # approximate bytes of the operations
    scopes: set[TopicPartition | None] = Factory(set)
    repeats: int = 0  # number of times the commit was submitted again after a lost answer


class Transactions:
    """The changes of the tree, one commit at a time, and the image from which they are planned."""

    def __init__(
        self,
        backend: Backend,
        send: Send,
        reload: Callable[[], None],
        members: BrokerLiveness,
        journal: EventLog,
    ) -> None:
        self.image = Image()
        self.lost = 0  # lost races, for the metrics
        self.journal = journal
        self.queues = CommitQueues()
        self.requests = OpenRequests()
        self._members = members
        self._backend = backend
        self._send = send
        self._reload = reload
        self._fence: tuple[Check, ...] = ()
        self._flight: CommitInFlight | None = None
        self._is_open = False
        self._is_reading = False  # the tree is being read again
        self._bytes_max = SLICE_BYTES  # largest part; less if the coordinator backend accepts less

    def __len__(self) -> int:
        """Return the number of changes that wait or are in progress."""
        return len(self.queues) + (len(self._flight.items) if self._flight else 0)

    def do(
        self,
        plan: Plan,
        *,
        answer: tuple[str, int] = ("", 0),
        scope: TopicPartition | None = None,
        done: Callable[[int], None] | None = None,
        failed: Callable[[PymqError, int], None] | None = None,
        sliced: Callable[[int], None] | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Queue *plan*; tasks of the same urgency run in order.

        Later tasks of the other queue may run first, so a plan must rely only on the current tree.
        """
        self._add(CommitTask(plan, *answer, scope, done, failed, sliced, is_urgent=is_urgent))

    def read(
        self,
        look: Callable[[Image], Result | Later],
        *,
        answer: tuple[str, int],
        is_urgent: bool = False,
    ) -> None:
        """Answer with the result of *look*, which sees the effects of all earlier requests.

        A long read is split into parts, one in each turn (:mod:`~pymq.controller.gradual_reads`).
        """

        def plan(draft: Draft) -> Result | Later:
            return look(draft.image)

        self._add(CommitTask(plan, *answer, is_urgent=is_urgent, is_read=True))

    def _add(self, task: CommitTask) -> None:
        self.requests.add(task)
        self.queues.add(task)

    # --- election of this zkserver ----------------------------------------------------------------

    def begin(self, image: Image) -> None:
        """Begin as the active zkserver, with *image*."""
        epoch = paths.controller_epoch()
        self.image = image
        # The first check fences this zkserver after another one has taken over. The second check
        # covers the time before: another zkserver that finds no active one, and then reads the
        # tree, must not miss a later commit of this zkserver.
        self._fence = (Check(epoch, image.versions[epoch]), Check(paths.controller(), 0))
        self._is_open, self._is_reading = True, False

    def pause(self) -> None:
        """Commit nothing until :meth:`resume` or :meth:`loaded`."""
        self._is_open = False

    def resume(self) -> None:
        """Allow commits again, unless the tree is being read, since the image is then outdated."""
        self._is_open = not self._is_reading

    def end(self, error: NotController) -> None:
        """End all tasks, because this zkserver is no longer active; answer all requests with
        *error*.
        """
        tasks = self.queues.clear()
        if self._flight is not None:
            tasks = [*(task for task, _, _ in self._flight.items), *tasks]
            self._flight = None
        self._is_open = self._is_reading = False
        for task in tasks:
            self._answer(task, None, error)

    # --- planning -------------------------------------------------------------------------------

    def pump(self, now: int) -> None:
        """Plan and submit the next commit, if none is in flight."""
        while self.queues.has_next and self._flight is None and self._is_open:
            self._next(now)

    def _next(self, now: int) -> None:
        """Commit the next task, together with later tasks of other partitions."""
        flight = CommitInFlight()
        for tasks in self.queues.in_turn():
            self._fill(flight, tasks, now)
        if flight.items:
            self.queues.was_urgent = flight.items[0][0].is_urgent
            self._flight = flight
            self._submit(flight)

    def _fill(self, flight: CommitInFlight, tasks: deque[CommitTask], now: int) -> None:
        """Move tasks into *flight*; tasks of one scope stay in order."""
        scopes = flight.scopes
        passed: list[CommitTask] = []
        while tasks and len(flight.ops) < SLICE_OPS and len(passed) < PASSED_MAX:
            task = tasks[0]
            if flight.items and (task.scope is None or None in scopes or task.scope in scopes):
                if not task.is_read and (task.scope is None or None in scopes):
                    break
                # The skipped task runs after this commit. Later tasks of other scopes need not wait
                # for the skipped task.
                passed.append(tasks.popleft())
                continue
            tasks.popleft()
            draft = Draft(self.image, self._bytes_max)
            try:
                result = task.plan(draft)
            except PymqError as error:
                self._fail(task, error, now)
                continue
            if not draft.ops:
                self._finish(task, result, now, is_resting=True)
                continue
            if flight.items and flight.size + draft.size > self._bytes_max:
                # The backend may refuse a large commit, and other tasks in it would also fail.
                tasks.appendleft(task)
                break
            mark("commits.planned")
            flight.items.append((task, draft, result))
            flight.size += draft.size
            flight.ops += draft.ops
            scopes.add(task.scope)
        tasks.extendleft(reversed(passed))

    # --- outcomes of commits --------------------------------------------------------------------

    def settle(self, event: Committed | Conflicted | Uncertain, now: int) -> None:
        """Handle the coordinator backend's answer to a commit."""
        flight = self._flight
        if flight is None or flight.tag != event.tag:
            return
        if isinstance(event, Uncertain):
            mark("commits.uncertain")
            if flight.repeats < REPEATS_MAX:
                flight.repeats += 1
                self._submit(flight)
            else:
                self._look_up()
            return
        if isinstance(event, Conflicted):
            if not flight.repeats:
                mark("commits.conflicted")
                self._flight = None
                self.lost += 1
                self._again(flight, now)
                self._read_anew()
            elif event.index == len(self._fence) and event.reason == _done_already(flight.ops[0]):
                mark("commits.was_done")
                self._adopt(flight, tuple(map(_version, flight.ops)), now)
            else:
                # This zkserver is no longer active, or another program writes to the tree.
                self._look_up()
            return
        if flight.repeats:
            mark("commits.was_not_done")
        self._adopt(flight, event.versions[len(self._fence) :], now)

    def _submit(self, flight: CommitInFlight) -> None:
        """Send *flight* to the coordinator backend, for the first time or again."""
        flight.tag = self._backend.next_tag()
        self._backend.ask(CommitRequest(flight.tag, (*self._fence, *flight.ops)))

    def _look_up(self) -> None:
        """Read the tree to find out whether the commit was done."""
        mark("commits.looked_up")
        self._read_anew()

    def _read_anew(self) -> None:
        self._is_open, self._is_reading = False, True
        self._reload()

    def _adopt(self, flight: CommitInFlight, versions: tuple[int, ...], now: int) -> None:
        self._flight = None
        at = 0
        for _, draft, _ in flight.items:
            for what, fields in events(draft):
                self.journal.note(what, **fields)
            draft.adopt(versions[at : at + len(draft.ops)])
            at += len(draft.ops)
        for task, _, result in flight.items:
            self._finish(task, result, now)

    def loaded(self, image: Image, now: int) -> None:
        """Handle the tree that was read again; this zkserver is still active."""
        self.image = image
        self._is_open, self._is_reading = True, False
        flight, self._flight = self._flight, None
        if flight is None:
            return
        # Only the active zkserver writes, and commits are atomic, so one operation shows the
        # outcome of all.
        if _was_done(flight.items[0][1].ops[0], image):
            for task, _, result in flight.items:
                self._finish(task, result, now)
        else:
            self._again(flight, now)

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """Note that the backend could not carry out the commit; the tree is unchanged."""
        flight = self._flight
        if flight is None or flight.tag != tag:
            return
        if flight.repeats:
            self._look_up()  # An earlier attempt may have been carried out.
            return
        self._flight = None
        limit = error.details.get("limit") if isinstance(error, InvalidRequest) else None
        if isinstance(limit, int):
            self.journal.note("change_refused", nodes=len(flight.ops), why=error.message)
            if (smaller := max(1, limit // 4)) < self._bytes_max:
                mark("commits.smaller_slices")
                self._bytes_max = smaller
                self.queues.put_back(task for task, _, _ in flight.items)
                return
        for task, _, _ in flight.items:
            self._fail(task, error, now)

    def _again(self, flight: CommitInFlight, now: int) -> None:
        for task, _, _ in reversed(flight.items):
            task.tries += 1
            if task.tries < TRIES_MAX:
                self.queues.put_back([task])
            else:
                busy = RequestTimeout(f"the metadata changed {task.tries} times meanwhile")
                self._fail(task, busy, now)

    def _finish(
        self, task: CommitTask, result: Result | Later, now: int, *, is_resting: bool = False
    ) -> None:
        if task.sliced is not None:
            task.sliced(now)
        if result is Later.MORE:
            mark("commits.rests" if is_resting else "commits.sliced")
            task.tries = 0
            self.requests.sliced(task)
            if is_resting:
                self.queues.rest(task, now)
            else:
                self.queues.add(task)
            return
        if task.done is not None:
            task.done(now)
        if isinstance(result, Later):
            self.requests.forget(task)
        else:
            self._answer(task, result, None)

    def _fail(self, task: CommitTask, error: PymqError, now: int) -> None:
        if isinstance(error, NotEnoughBrokers) and task.request and not self._members.is_settled:
            self.queues.hold(task)
            return
        if task.failed is not None:
            task.failed(error, now)
        self._answer(task, None, error)

    def _answer(self, task: CommitTask, result: Result, error: PymqError | None) -> None:
        if task.request:
            self.requests.forget(task)
            self._send(task.source, Answer(task.request, result, error))


def _was_done(op: Op, image: Image) -> bool:
    """Whether *op* was carried out, by the content of *image*, if no other node has written."""
    match op:
        case Create(path=path):
            return path in image.versions
        case Put(path=path, version=version) | Check(path=path, version=version):
            return image.versions.get(path) == version + isinstance(op, Put)
        case Delete(path=path):
            return path not in image.versions


def _done_already(op: Op) -> str:
    """Return the reason why the backend refuses a repeated *op*, if no other node has written."""
    match op:
        case Create():
            return "exists"
        case Put() | Check():
            return "version"
        case Delete():
            return "missing"


def _version(op: Op) -> int:
    """Return the version of the node after *op*."""
    match op:
        case Create():
            return 0
        case Put(version=version) | Check(version=version):
            return version + isinstance(op, Put)
        case Delete():
            return -1
