"""pymq as a broker of taskiq: tasks, their results, retries and schedules.

::

    from pymq.contrib.taskiq import PymqBroker, PymqResultBackend

    URL = "data/"  # or "zmq+tcp://127.0.0.1:7878"
    broker = PymqBroker(URL).with_result_backend(PymqResultBackend(URL))

    @broker.task
    async def add(one: int, two: int) -> int:
        return one + two

It needs the extra ``taskiq``.

A task is a record of the topic ``taskiq``, which the workers consume as a group: each record is
leased to one worker, and delivered to another worker if the first one dies. A result is a record of
the compacted topic ``taskiq.results``, whose key is the task's id. Tasks and results are JSON,
never pickles.
"""

from __future__ import annotations

from pymq.errors import MissingExtra

try:
    import taskiq  # noqa: F401 # says which extra is missing before a module below fails
except ImportError as error:
    raise MissingExtra.of("taskiq is missing", "taskiq") from error

from pymq.contrib.taskiq.broker import PymqBroker
from pymq.contrib.taskiq.results import PymqResultBackend, ResultMissing, ResultNotStored
from pymq.contrib.taskiq.retries import PymqRetryMiddleware
from pymq.contrib.taskiq.schedules import PymqScheduleSource

__all__ = [
    "PymqBroker",
    "PymqResultBackend",
    "PymqRetryMiddleware",
    "PymqScheduleSource",
    "ResultMissing",
    "ResultNotStored",
]
