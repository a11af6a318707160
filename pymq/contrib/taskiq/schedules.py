"""A source of schedules: delayed records for tasks with a time, a compacted topic for others."""

from __future__ import annotations

from taskiq import ScheduledTask, ScheduleSource, TaskiqMessage
from taskiq.abc.middleware import TaskiqMiddleware
from taskiq.labels import prepare_label
from taskiq.utils import maybe_awaitable

from pymq.contrib.taskiq.broker import PymqBroker
from pymq.contrib.taskiq.keyed_topic import KeyedTopic
from pymq.errors import ConfigError

AT = "at"  # prefix of the ids of tasks with a time; partition and offset follow


class PymqScheduleSource(ScheduleSource):
    """Schedules of tasks, kept by pymq.

    ``schedule_by_time`` sends the task at once, as a delayed record. So the task needs no
    scheduler, and is delivered within milliseconds of its time. The id of the schedule names the
    record's place; ``unschedule`` cancels a task that is not due yet.

    The compacted topic *topic* keeps the schedules of ``schedule_by_cron`` and
    ``schedule_by_interval`` for ``taskiq scheduler``. Run one scheduler at a time, since each
    scheduler sends every task.

    Args:
        broker: the broker that sends the tasks; it must be started.
        topic: the topic of the schedules; its first use creates it.
    """

    def __init__(self, broker: PymqBroker, topic: str = "taskiq.schedules") -> None:
        self._broker = broker
        self._table = KeyedTopic(broker.connection.twin(), topic)

    async def shutdown(self) -> None:
        """Disconnect."""
        await self._table.close()

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Send a task that has a time, with a new schedule id; store any other schedule."""
        if schedule.time is None:
            await self._table.open()
            await self._table.put(schedule.schedule_id, schedule.model_dump_json().encode())
            return
        if schedule.time.tzinfo is None:
            raise ConfigError(f"{schedule.time} has no time zone; datetime.now(UTC) has one")
        if schedule.task_id is None:
            schedule.task_id = self._broker.id_generator()
        message = await self._message(schedule, schedule.task_id)
        sent = await self._broker.send(self._broker.formatter.dumps(message), schedule.time)
        for middleware in reversed(self._broker.middlewares):
            if type(middleware).post_send != TaskiqMiddleware.post_send:
                await maybe_awaitable(middleware.post_send(message))
        schedule.schedule_id = f"{AT}/{sent.partition}/{sent.offset}"

    async def _message(self, schedule: ScheduledTask, task_id: str) -> TaskiqMessage:
        """Return the message that ``kiq`` would send."""
        labels = {name: prepare_label(value) for name, value in schedule.labels.items()}
        message = TaskiqMessage(
            task_id=task_id,
            task_name=schedule.task_name,
            labels={name: text for name, (text, _) in labels.items()},
            labels_types={name: kind for name, (_, kind) in labels.items()},
            args=schedule.args,
            kwargs=schedule.kwargs,
        )
        for middleware in self._broker.middlewares:
            if type(middleware).pre_send != TaskiqMiddleware.pre_send:
                message = await maybe_awaitable(middleware.pre_send(message))
        return message

    async def delete_schedule(self, schedule_id: str) -> None:
        """Cancel a task; a task that is already due still runs."""
        kind, _, place = schedule_id.partition("/")
        partition, _, offset = place.rpartition("/")
        if kind == AT and partition and offset.isdecimal():
            await self._broker.client.cancel(self._broker.topic, partition, int(offset))
            return
        await self._table.open()
        await self._table.delete(schedule_id)

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return the tasks with a cron expression or an interval."""
        await self._table.open()
        found = await self._table.values()
        return [ScheduledTask.model_validate_json(value) for value in found]
