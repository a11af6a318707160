"""The changes of the tree that wait for a commit, and the requests behind them.

There are two queues, because a commit may take half a second. Urgent tasks (registrations and
deaths of brokers, leaders, in-sync sets, ends of blocks) do not wait for requests of administrators
and applications, or for clean-up. The queues alternate, so neither starves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum

from pymq.controller.state.image import Draft
from pymq.core.message import Result
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import define
from pymq.errors import PymqError


class Later(Enum):
    """The result of a plan whose answer comes later."""

    ANSWER = 0
    MORE = 1  # this was one part of the change; plan the next part


Plan = Callable[[Draft], Result | Later]


@define
class CommitTask:
    """A change to plan; if its commit loses a race, the change is planned again."""

    plan: Plan
    source: str = ""  # node that gets the answer
    request: int = 0  # id of that node's request; 0: no answer
    scope: TopicPartition | None = None  # the only partition that the plan reads and changes
    # called after the commit, or at once if there is nothing to commit
    done: Callable[[int], None] | None = None
    failed: Callable[[PymqError, int], None] | None = None
    sliced: Callable[[int], None] | None = None  # called after each part, including the last one
    is_urgent: bool = False  # whether a partition cannot continue without this task
    is_read: bool = False  # whether the task changes nothing
    tries: int = 0


class CommitQueues:
    """The tasks that wait for their turn."""

    def __init__(self) -> None:
        self.deadline = NEVER  # when the resting tasks are queued again
        # whether the last commit was urgent; if so, the other queue is next
        self.was_urgent = False
        self._tasks: deque[CommitTask] = deque()
        self._urgent: deque[CommitTask] = deque()
        self._resting: list[CommitTask] = []  # tasks whose next part waits for the next turn
        self._held: list[CommitTask] = []  # requests that wait until brokers had time to register

    def __len__(self) -> int:
        """Return the number of waiting tasks, without those that are held back."""
        return len(self._tasks) + len(self._urgent) + len(self._resting)

    @property
    def has_next(self) -> bool:
        """Whether a task can be planned now."""
        return bool(self._urgent or self._tasks)

    def add(self, task: CommitTask) -> None:
        """Queue a task, or the next part of it."""
        (self._urgent if task.is_urgent else self._tasks).append(task)

    def put_back(self, tasks: Iterable[CommitTask]) -> None:
        """Queue tasks before all others, to be planned again."""
        for task in reversed(list(tasks)):
            (self._urgent if task.is_urgent else self._tasks).appendleft(task)

    def in_turn(self) -> tuple[deque[CommitTask], deque[CommitTask]]:
        """Return both queues, beginning with the one that is next."""
        if self.was_urgent:
            return self._tasks, self._urgent
        if self._urgent and self._tasks:
            mark("commits.overtaken")
        return self._urgent, self._tasks

    def rest(self, task: CommitTask, now: int) -> None:
        """Queue a task in the next turn."""
        self._resting.append(task)
        self.deadline = now + 1

    def tick(self, now: int) -> None:
        """Queue the tasks whose next part has waited for this turn."""
        if self.deadline <= now:
            resting, self._resting, self.deadline = self._resting, [], NEVER
            for task in resting:
                self.add(task)

    def hold(self, task: CommitTask) -> None:
        """Hold a request back until :meth:`redo_held`."""
        mark("registry.held")
        self._held.append(task)

    def redo_held(self) -> None:
        """Queue the requests that waited for brokers to register."""
        held, self._held = self._held, []
        for task in held:
            self.add(task)

    def clear(self) -> list[CommitTask]:
        """Remove and return all tasks that are not held back."""
        tasks = [*self._urgent, *self._tasks, *self._resting]
        self._urgent.clear()
        self._tasks.clear()
        self._resting.clear()
        self.deadline = NEVER
        return tasks


class OpenRequests:
    """The requests that have no answer yet.

    If a client repeats such a request, the repeated request is not queued, because it would add
    load just when the zkserver is slow.
    """

    def __init__(self) -> None:
        self._asked: set[tuple[str, int]] = set()
        self._begun: set[tuple[str, int]] = set()  # requests with a committed part

    def add(self, task: CommitTask) -> None:
        """Note the request of a task, if the task has one."""
        if task.request:
            self._asked.add((task.source, task.request))

    def sliced(self, task: CommitTask) -> None:
        """Note that a part of a task was committed, but not the last one."""
        if task.request:
            self._begun.add((task.source, task.request))

    def forget(self, task: CommitTask) -> None:
        """Note that a request was answered, or that another part will answer it."""
        self._asked.discard((task.source, task.request))
        self._begun.discard((task.source, task.request))

    def is_asked(self, source: str, request: int) -> bool:
        """Whether a request is already waiting."""
        return (source, request) in self._asked

    def is_begun(self, source: str, request: int) -> bool:
        """Whether some parts of a request were committed, but not the last one."""
        return (source, request) in self._begun
