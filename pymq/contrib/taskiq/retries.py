"""Retries by the group: a worker returns a failed task, and the group delivers it again later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskiq import AsyncBroker, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.exceptions import NoResultError, TaskRejectedError

from pymq.contrib.taskiq.broker import PymqBroker
from pymq.errors import ConfigError


class PymqRetryMiddleware(TaskiqMiddleware):
    """Runs failed tasks again, and moves tasks that always fail to the dead-letter topic.

    taskiq's own middlewares send a failed task again, as a new task. This middleware returns the
    record to the group, so that no task is lost between an acknowledgement and a new task, and the
    death of a worker counts as an attempt. The broker's ``retry`` sets how long the group waits.
    The result is saved when the task has succeeded, or has failed for the last time.

    Labels of a task:

    ==================  =================================================================
    ``retry_on_error``  whether the task runs again; by default *default_retry_label*
    ``max_retries``     most runs of the task; the broker's ``max_deliver`` limits it
    ==================  =================================================================

    A task that calls ``Context.reject()`` goes to the dead-letter topic at once. A task that was
    acknowledged when it was received does not run again.

    Args:
        default_retry_label: whether tasks without the label ``retry_on_error`` run again.
        types_of_exceptions: the exceptions after which a task runs again; None: after all.
    """

    def __init__(
        self,
        default_retry_label: bool = False,
        types_of_exceptions: Iterable[type[BaseException]] | None = None,
    ) -> None:
        super().__init__()
        self._default = default_retry_label
        self._types = BaseException if types_of_exceptions is None else tuple(types_of_exceptions)

    def set_broker(self, broker: AsyncBroker) -> None:
        """Set the broker, which must be a :class:`PymqBroker`.

        Raises:
            ConfigError: *broker* is of another class.
        """
        if not isinstance(broker, PymqBroker):
            raise ConfigError("PymqRetryMiddleware needs a PymqBroker")
        super().set_broker(broker)

    async def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException
    ) -> None:
        """Return the task to the group, or put it into the dead-letter topic."""
        broker = self.broker
        assert isinstance(broker, PymqBroker)
        deliveries = broker.deliveries(message.task_id)
        if deliveries is None or isinstance(exception, NoResultError):
            return  # The worker has already acknowledged or returned the task.
        if isinstance(exception, TaskRejectedError):
            await broker.bury(message.task_id, exception)
        elif self._is_wanted(message) and isinstance(exception, self._types):
            wanted = int(message.labels.get("max_retries", broker.max_deliver))
            if deliveries < min(wanted, broker.max_deliver):
                result.error = NoResultError()
                broker.give_back(message.task_id, exception)
            else:
                await broker.bury(message.task_id, exception)

    def _is_wanted(self, message: TaskiqMessage) -> bool:
        found = message.labels.get("retry_on_error", self._default)
        return found.lower() == "true" if isinstance(found, str) else bool(found)
