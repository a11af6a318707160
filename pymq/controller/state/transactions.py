"""Plan, commit, adopt: how the zkserver changes the tree.

A plan is a function of a :class:`~pymq.controller.state.image.Draft`. One commit is out at a time;
while it is, further tasks queue up, and those of different partitions then share the next commit.
A commit that loses a race is planned again on what the tree has become.

There are two queues, since a coordinator may take half a second for a commit, and may be asked for
many. What a partition cannot go on without (a broker that registers or is gone, a leader, an
in-sync set, the end of a block) does not wait for what administrators and applications ask for, nor
for what is tidied up. They take turns while both have something, so neither waits for ever.

A change of many nodes is made in *slices*: its plan stops when the draft is full and returns
:attr:`Later.MORE`. What it has drafted is committed, and the plan is asked again for the rest,
behind all that waits meanwhile. Each slice must leave the tree such that a zkserver that takes over
in between can go on, and a plan finds in the tree what is left to do. A slice that has looked at
much and drafted nothing is followed by the next one a turn later.

A commit whose answer was lost is submitted once more, just as it was. Its first operation holds
unless the commit was done, because nobody else writes; so it is done once, and nothing is read.

Every commit carries the zkserver's *fence*, so that one that has been replaced can change nothing,
however late it notices (K1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from pymq.controller.state.commit_events import events
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
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import InvalidRequest, NotController, PymqError, RequestTimeout

TRIES_MAX = 5  # a plan that loses so many races is given up
REPEATS_MAX = 3  # of a commit whose answer is lost each time; then the tree is read
PASSED_MAX = 1_000  # tasks that a commit passes over for others behind them, while it is filled

Send = Callable[[str, Message], None]


class Later(Enum):
    """What a plan returns when its answer comes later."""

    ANSWER = 0
    MORE = 1  # this was a slice, and the plan is to be asked for the next one


Plan = Callable[[Draft], Result | Later]


class Backend(Protocol):
    """The coordinator, as the machine's parts ask it."""

    def next_tag(self) -> int:
        """A tag that no other request has."""
        ...

    def ask(self, request: CoordRequest) -> None:
        """Have *request* carried out."""
        ...


@define
class CommitTask:
    """Something to be planned; planned again when its commit loses a race."""

    plan: Plan
    source: str = ""  # whom to answer; nobody when *request* is 0
    request: int = 0
    scope: TopicPartition | None = None  # all that the plan looks at and changes, if it is set
    done: Callable[[int], None] | None = None  # when it is committed, or there is nothing to commit
    failed: Callable[[PymqError, int], None] | None = None
    sliced: Callable[[int], None] | None = None  # when any slice is committed, the last one too
    is_urgent: bool = False  # partitions stand still for it
    is_read: bool = False  # changes nothing
    tries: int = 0


@define
class CommitInFlight:
    """A commit under way."""

    tag: int = 0
    items: list[tuple[CommitTask, Draft, Result | Later]] = Factory(list)
    ops: list[Op] = Factory(list)  # of all of them
    size: int = 0  # about how many bytes they are
    scopes: set[TopicPartition | None] = Factory(set)
    repeats: int = 0  # how often it was submitted again, because nobody knew what became of it


class Transactions:
    """The queue of what is to be changed, and the image that it is planned on."""

    def __init__(self, backend: Backend, send: Send, reload: Callable[[], None]) -> None:
        self.image = Image()
        self.hold: Callable[[CommitTask, PymqError], bool] = lambda task, error: False
        self.lost = 0  # races, for the metrics
        self.journal = EventLog()
        self._backend = backend
        self._send = send
        self._reload = reload
        self._fence: tuple[Check, ...] = ()
        self._tasks: deque[CommitTask] = deque()
        self._urgent: deque[CommitTask] = deque()
        self._was_urgent = False  # whether the last commit was, so that it is the others' turn
        self._resting: list[CommitTask] = []  # slices that go on with the next turn
        self.deadline = NEVER  # when that is
        self._asked: set[tuple[str, int]] = set()  # requests of those tasks, until they are over
        self._begun: set[tuple[str, int]] = set()  # those of which a slice was committed
        self._flight: CommitInFlight | None = None
        self._is_open = False
        self._is_reading = False  # the tree is being read anew, since it is not what it should be
        self._bytes_max = SLICE_BYTES  # of a slice; less where the coordinator takes less

    def __len__(self) -> int:
        """How many changes wait, or are being made."""
        under_way = len(self._flight.items) if self._flight else 0
        return len(self._tasks) + len(self._urgent) + len(self._resting) + under_way

    @property
    def is_busy(self) -> bool:
        """Whether something is to be changed, or being so."""
        return len(self) > 0

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
        """Have *plan* carried out after all of its kind, urgent or not, that was asked for before.

        Of the other kind some may come first that were asked for later: a plan must look at the
        tree as it finds it.
        """
        self._add(CommitTask(plan, *answer, scope, done, failed, sliced, is_urgent=is_urgent))

    def is_asked(self, source: str, request: int) -> bool:
        """Whether a request waits already: whoever sends it again has just not been answered yet.

        Were it carried out each time, there would be the more to do the longer it takes.
        """
        return (source, request) in self._asked

    def is_begun(self, source: str, request: int) -> bool:
        """Whether a slice of a request was committed, and not the last one."""
        return (source, request) in self._begun

    def read(
        self,
        look: Callable[[Image], Result | Later],
        *,
        answer: tuple[str, int],
        is_urgent: bool = False,
    ) -> None:
        """Answer what *look* finds in the tree, as it is after all that was asked for before.

        What takes long it does in parts, one in a turn (:mod:`~pymq.controller.gradual_reads`).
        """

        def plan(draft: Draft) -> Result | Later:
            return look(draft.image)

        self._add(CommitTask(plan, *answer, is_urgent=is_urgent, is_read=True))

    def _add(self, task: CommitTask) -> None:
        if task.request:
            self._asked.add((task.source, task.request))
        self._queue(task.is_urgent).append(task)

    def redo(self, task: CommitTask) -> None:
        """Have a task that was held back planned now."""
        self._queue(task.is_urgent).append(task)

    def _queue(self, is_urgent: bool) -> deque[CommitTask]:
        return self._urgent if is_urgent else self._tasks

    # --- the right to commit --------------------------------------------------------------------

    def begin(self, image: Image) -> None:
        """This zkserver is the active one from now on, and *image* is what it begins with."""
        epoch = paths.controller_epoch()
        self.image = image
        # The second check matters until somebody else takes over: whoever saw that nobody was
        # active, and has read the tree since, must not have missed anything.
        self._fence = (Check(epoch, image.versions[epoch]), Check(paths.controller(), 0))
        self._is_open, self._is_reading = True, False

    def pause(self) -> None:
        """Commit nothing until :meth:`resume` or :meth:`loaded`."""
        self._is_open = False

    def resume(self) -> None:
        """Go on as before; while the tree is being read, what is known of it is out of date."""
        self._is_open = not self._is_reading

    def end(self, error: NotController) -> None:
        """This zkserver is active no more: everybody who waits is told *error*."""
        tasks = deque((*self._urgent, *self._tasks, *self._resting))
        self._resting.clear()
        self.deadline = NEVER
        self._urgent.clear()
        self._tasks.clear()
        if self._flight is not None:
            tasks.extendleft(task for task, _, _ in reversed(self._flight.items))
            self._flight = None
        self._is_open = self._is_reading = False
        for task in tasks:
            self._answer(task, None, error)

    # --- planning -------------------------------------------------------------------------------

    def pump(self, now: int) -> None:
        """Plan what is next; there is one commit at a time."""
        while (self._urgent or self._tasks) and self._flight is None and self._is_open:
            self._next(now)

    def tick(self, now: int) -> None:
        """Go on with slices that have left the rest of the turn to others."""
        if self.deadline <= now:
            resting, self._resting, self.deadline = self._resting, [], NEVER
            for task in resting:
                self._queue(task.is_urgent).append(task)

    def _next(self, now: int) -> None:
        """Commit the next task, together with those behind it that have nothing to do with it."""
        flight = CommitInFlight()
        if self._was_urgent:
            self._fill(flight, self._tasks, now)
            self._fill(flight, self._urgent, now)
        else:
            if self._urgent and self._tasks:
                mark("commits.overtaken")
            self._fill(flight, self._urgent, now)
            self._fill(flight, self._tasks, now)
        if flight.items:
            self._was_urgent = flight.items[0][0].is_urgent
            self._flight = flight
            self._submit(flight)

    def _fill(self, flight: CommitInFlight, tasks: deque[CommitTask], now: int) -> None:
        """Have *flight* take the first of *tasks*, in the order of each scope, as far as it may."""
        scopes = flight.scopes
        passed: list[CommitTask] = []
        while tasks and len(flight.ops) < SLICE_OPS and len(passed) < PASSED_MAX:
            task = tasks[0]
            if flight.items and (task.scope is None or None in scopes or task.scope in scopes):
                if not task.is_read and (task.scope is None or None in scopes):
                    break
                # It comes after this commit, and keeps nothing out of it that it does not touch.
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
                # A large change must not take others down with it.
                tasks.appendleft(task)
                break
            mark("commits.planned")
            flight.items.append((task, draft, result))
            flight.size += draft.size
            flight.ops += draft.ops
            scopes.add(task.scope)
        tasks.extendleft(reversed(passed))

    # --- what became of it ----------------------------------------------------------------------

    def settle(self, event: Committed | Conflicted | Uncertain, now: int) -> None:
        """The coordinator has answered."""
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
                # Not the active zkserver any more, or somebody writes who should not.
                self._look_up()
            return
        if flight.repeats:
            mark("commits.was_not_done")
        self._adopt(flight, event.versions[len(self._fence) :], now)

    def _submit(self, flight: CommitInFlight) -> None:
        """Have *flight* done by the coordinator: for the first time, or once more."""
        flight.tag = self._backend.next_tag()
        self._backend.ask(CommitRequest(flight.tag, (*self._fence, *flight.ops)))

    def _look_up(self) -> None:
        """It was done or it was not; the tree will tell."""
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
        """The tree was read anew, and this zkserver is still the active one."""
        self.image = image
        self._is_open, self._is_reading = True, False
        flight, self._flight = self._flight, None
        if flight is None:
            return
        # Nobody else may write and a commit is whole or nothing: one operation tells for all.
        if _was_done(flight.items[0][1].ops[0], image):
            for task, _, result in flight.items:
                self._finish(task, result, now)
        else:
            self._again(flight, now)

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """The backend could not carry the commit out, and nothing is changed."""
        flight = self._flight
        if flight is None or flight.tag != tag:
            return
        if flight.repeats:
            self._look_up()  # Not by this attempt; but by an earlier one, perhaps.
            return
        self._flight = None
        limit = error.details.get("limit") if isinstance(error, InvalidRequest) else None
        if isinstance(limit, int):
            self.journal.note("change_refused", nodes=len(flight.ops), why=error.message)
            if (smaller := max(1, limit // 4)) < self._bytes_max:
                mark("commits.smaller_slices")
                self._bytes_max = smaller
                for task, _, _ in reversed(flight.items):
                    self._queue(task.is_urgent).appendleft(task)
                return
        for task, _, _ in flight.items:
            self._fail(task, error, now)

    def _again(self, flight: CommitInFlight, now: int) -> None:
        for task, _, _ in reversed(flight.items):
            task.tries += 1
            if task.tries < TRIES_MAX:
                self._queue(task.is_urgent).appendleft(task)
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
            if task.request:
                self._begun.add((task.source, task.request))
            if is_resting:
                self._resting.append(task)
                self.deadline = now + 1
            else:
                self._queue(task.is_urgent).append(task)
            return
        if task.done is not None:
            task.done(now)
        if isinstance(result, Later):
            self._forget(task)
        else:
            self._answer(task, result, None)

    def _fail(self, task: CommitTask, error: PymqError, now: int) -> None:
        if self.hold(task, error):
            return
        if task.failed is not None:
            task.failed(error, now)
        self._answer(task, None, error)

    def _answer(self, task: CommitTask, result: Result, error: PymqError | None) -> None:
        if task.request:
            self._forget(task)
            self._send(task.source, Answer(task.request, result, error))

    def _forget(self, task: CommitTask) -> None:
        self._asked.discard((task.source, task.request))
        self._begun.discard((task.source, task.request))


def _was_done(op: Op, image: Image) -> bool:
    """Whether an operation that may have been carried out was, if nobody else has written."""
    match op:
        case Create(path=path):
            return path in image.versions
        case Put(path=path, version=version) | Check(path=path, version=version):
            return image.versions.get(path) == version + isinstance(op, Put)
        case Delete(path=path):
            return path not in image.versions


def _done_already(op: Op) -> str:
    """Why an operation is refused if it was carried out before, and nobody else has written."""
    match op:
        case Create():
            return "exists"
        case Put() | Check():
            return "version"
        case Delete():
            return "missing"


def _version(op: Op) -> int:
    """The version of an operation's node, once it was carried out."""
    match op:
        case Create():
            return 0
        case Put(version=version) | Check(version=version):
            return version + isinstance(op, Put)
        case Delete():
            return -1
