"""The result backend: a compacted topic, whose keys are the ids of tasks."""

from __future__ import annotations

import logging
import os
from typing import Any, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultBackendError
from taskiq.labels import prepare_label
from taskiq.serializers import JSONSerializer

from pymq.contrib.connection import Connection, Queue
from pymq.contrib.taskiq.keyed_topic import KeyedTopic
from pymq.errors import RecordTooLarge

log = logging.getLogger(__name__)
T = TypeVar("T")
DAY_S = 86_400.0


class ResultMissing(ResultBackendError):
    """There is no result of the task: the task is not done, or its result has expired."""

    __template__ = "There is no result of task {task_id}."
    task_id: str


class ResultNotStored(RuntimeError):
    """The task returned, but its result could not be stored: it is not JSON, or too large."""


class PymqResultBackend(AsyncResultBackend[T]):
    """Results and progress of tasks, in the compacted topic *topic*.

    A worker only writes. A process that waits for results reads the topic once, and then only new
    records, however many tasks it waits for.

    If a result is not JSON, or is too large, the worker stores the error ``ResultNotStored``
    instead, so that callers do not wait until their timeout.

    Args:
        url: as for :class:`PymqBroker`; the same URL uses the same client.
        topic: the topic of the results. If it does not exist, :meth:`startup` creates it, with
            *partitions* and *replicas*, by default as many as there are brokers, three at most.
        keep_results: False deletes a result when it is read.
        expires_s: how long results are kept; None: without limit. It is also the retention of the
            topic, if :meth:`startup` creates the topic.
        max_results: how many of the newest results a process remembers.
        cache_bytes: how many bytes of the newest results a process keeps in memory; it reads older
            results from the log.
        serializer: converts results to bytes; taskiq's JSON by default.
        curve_dir, principal: as for :func:`pymq.open`.
    """

    def __init__(
        self,
        url: Queue,
        *,
        topic: str = "taskiq.results",
        partitions: int = 4,
        replicas: int | None = None,
        keep_results: bool = True,
        expires_s: float | None = DAY_S,
        max_results: int = 100_000,
        cache_bytes: int = 16 << 20,
        serializer: TaskiqSerializer | None = None,
        curve_dir: str | os.PathLike[str] | None = None,
        principal: str | None = None,
    ) -> None:
        self.keep_results = keep_results
        self.serializer = JSONSerializer() if serializer is None else serializer
        self._table = KeyedTopic(
            Connection(url, curve_dir, principal),
            topic,
            partitions=partitions,
            replicas=replicas,
            expires_s=expires_s,
            keys_max=max_results,
            cache_bytes=cache_bytes,
        )

    async def startup(self) -> None:
        """Connect, and create the topic if it does not exist. Raises as :func:`pymq.open`."""
        await self._table.open()

    async def shutdown(self) -> None:
        """Disconnect."""
        await self._table.close()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        """Store a result, and wait until it is durable."""
        try:
            await self._table.put(_result_key(task_id), self._dump(result))
        except (RecordTooLarge, ValueError, TypeError) as error:
            log.error("the result of task %s cannot be stored: %s", task_id, error)
            lost: TaskiqResult[Any] = TaskiqResult(
                is_err=True,
                return_value=None,
                execution_time=result.execution_time,
                error=ResultNotStored(f"{type(error).__name__}: {error}"[:1000]),
            )
            await self._table.put(_result_key(task_id), self._dump(lost))

    def _dump(self, result: TaskiqResult[Any]) -> bytes:
        # taskiq also sends labels of bytes as text in its messages.
        labels = {name: _text(value) for name, value in result.labels.items()}
        found = result.model_copy(update={"labels": labels}).model_dump(mode="json")
        return self.serializer.dumpb(found)

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether there is a result; the answer may be 20 ms old."""
        return await self._table.has(_result_key(task_id))

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """Return a result.

        Raises:
            ResultMissing: there is no result.
        """
        key = _result_key(task_id)
        found = await self._table.get(key)
        if found is None:
            raise ResultMissing(task_id=task_id)
        result: TaskiqResult[T] = TaskiqResult.model_validate(self.serializer.loadb(found))
        if not with_logs:
            result.log = None
        if not self.keep_results:
            await self._table.delete(key)
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task."""
        value = self.serializer.dumpb(progress.model_dump(mode="json"))
        await self._table.put(_progress_key(task_id), value)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task; None if the task has reported none."""
        found = await self._table.get(_progress_key(task_id))
        return None if found is None else TaskProgress.model_validate(self.serializer.loadb(found))


def _text(label: Any) -> Any:
    return prepare_label(label)[0] if isinstance(label, bytes) else label


def _result_key(task_id: str) -> str:
    return f"result/{task_id}"


def _progress_key(task_id: str) -> str:
    return f"progress/{task_id}"
