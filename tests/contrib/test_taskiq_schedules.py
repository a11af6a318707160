"""Schedules: pymq runs tasks at a given time without a scheduler.

Taskiq's scheduler runs all other scheduled tasks.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import ScheduleSource, TaskiqMessage, TaskiqMiddleware, TaskiqResult, TaskiqScheduler
from taskiq.api import run_scheduler_task

from pymq.contrib.taskiq import PymqScheduleSource
from pymq.errors import ConfigError
from tests.contrib.taskiq_workers import make, play, take, working


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_task_comes_at_its_time_without_a_scheduler() -> None:
    async def script() -> None:
        broker = make()
        source = PymqScheduleSource(broker)

        @broker.task
        async def add(one: int, two: int) -> tuple[float, int]:
            return time.time(), one + two

        async with working(broker):
            due = soon(0.3)
            schedule = await add.schedule_by_time(source, due, 1, two=2)
            task_id = schedule.task.task_id
            assert task_id is not None
            while not await broker.result_backend.is_result_ready(task_id):
                await asyncio.sleep(0.01)
            found: TaskiqResult[Any] = await broker.result_backend.get_result(task_id)
            at, total = found.return_value
            assert total == 3
            assert at >= due.timestamp() - 0.001
            await schedule.unschedule()  # the call comes too late, which does no harm
            assert await source.get_schedules() == []
        await source.shutdown()

    play(script)


def test_an_unscheduled_task_does_not_come(tmp_path: Path) -> None:
    """A schedule's id contains the place of its record, so that other processes can cancel it."""

    async def script() -> None:
        broker = make(tmp_path, partitions=1)
        source = PymqScheduleSource(broker)

        @broker.task
        async def nothing() -> None: ...

        await broker.startup()
        kept, *cancelled = [
            await nothing.schedule_by_time(source, soon(0.3 + late)) for late in (0.2, 0.1, 0)
        ]
        await cancelled[0].unschedule()
        await broker.shutdown()
        await broker.startup()
        await PymqScheduleSource(broker).delete_schedule(cancelled[1].schedule_id)
        first = await take(broker)
        assert str(kept.task.task_id).encode() in first.data
        await broker.shutdown()

    play(script)


def test_a_time_without_a_zone_is_refused() -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        async def nothing() -> None: ...

        await broker.startup()
        with pytest.raises(ConfigError, match="no time zone"):
            await nothing.schedule_by_time(PymqScheduleSource(broker), soon(1).replace(tzinfo=None))
        await broker.shutdown()

    play(script)


def test_middlewares_see_a_scheduled_task() -> None:
    class Mark(TaskiqMiddleware):
        sent: list[str]

        def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            message.labels["marked"] = "yes"
            return message

        def post_send(self, message: TaskiqMessage) -> None:
            self.sent = [message.task_id]

    async def script() -> None:
        mark = Mark()
        broker = make().with_middlewares(mark)

        @broker.task(number=1)
        async def nothing() -> None: ...

        await broker.startup()
        kicker = nothing.kicker().with_task_id("mine")
        await kicker.schedule_by_time(PymqScheduleSource(broker), soon(0.01))
        assert mark.sent == ["mine"]
        message = broker.formatter.loads((await take(broker)).data)
        message.parse_labels()
        assert message.labels == {"number": "1", "marked": "yes"}
        await broker.shutdown()

    play(script)


def test_cron_and_intervals_are_kept_until_they_are_deleted(tmp_path: Path) -> None:
    async def script() -> None:
        broker = make(tmp_path)
        source: ScheduleSource = PymqScheduleSource(broker)

        @broker.task
        async def nothing(number: int) -> None: ...

        await broker.startup()
        daily = await nothing.schedule_by_cron(source, "0 3 * * *", 1)
        often = await nothing.kicker().with_schedule_id("often").schedule_by_interval(source, 5, 2)
        await source.shutdown()
        await broker.shutdown()

        await broker.startup()
        source = PymqScheduleSource(broker)
        found = {schedule.schedule_id: schedule for schedule in await source.get_schedules()}
        assert found == {daily.schedule_id: daily.task, "often": often.task}
        assert (found["often"].args, found["often"].interval) == ([2], 5)
        await source.delete_schedule("often")
        await source.delete_schedule("unknown")
        assert await source.get_schedules() == [daily.task]
        await source.shutdown()
        await broker.shutdown()

    play(script)


def test_the_scheduler_of_taskiq_sends_them() -> None:
    async def script() -> None:
        broker = make()
        source = PymqScheduleSource(broker)
        ran = asyncio.Event()

        @broker.task
        async def tick() -> None:
            ran.set()

        async with working(broker):
            await tick.schedule_by_interval(source, 1)
            scheduler = TaskiqScheduler(broker, [source])
            running = asyncio.create_task(run_scheduler_task(scheduler))
            await ran.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await source.shutdown()

    play(script)
