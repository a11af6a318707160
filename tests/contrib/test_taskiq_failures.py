"""Tasks that fail: retries by the group, dead letters, and taskiq's own retries."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import (
    Context,
    InMemoryBroker,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
)
from taskiq.exceptions import TaskiqResultTimeoutError

from pymq.contrib.taskiq import PymqRetryMiddleware
from pymq.errors import ConfigError
from tests.contrib.taskiq_workers import SECONDS, letters, make, play, settled, value, working


def test_an_error_is_a_result() -> None:
    """Without a middleware a failed task is done, as with any broker of taskiq."""

    async def script() -> None:
        broker = make()

        @broker.task
        async def fail() -> None:
            raise LookupError("nothing there")

        async with working(broker):
            with pytest.raises(LookupError, match="nothing there"):
                await value(await fail.kiq())
            await settled(broker)
            assert "taskiq.dlq" not in await broker.client.topics()

    play(script)


def test_a_failed_task_runs_again_until_it_succeeds() -> None:
    async def script() -> None:
        broker = make().with_middlewares(PymqRetryMiddleware())
        times: list[float] = []

        @broker.task(retry_on_error=True)
        async def third(context: Context = TaskiqDepends()) -> int | None:
            times.append(time.monotonic())
            if len(times) < 3:
                raise OSError("not yet")
            return broker.deliveries(context.message.task_id)

        async with working(broker):
            assert await value(await third.kiq()) == 3
            first, second, last = times
            assert second - first >= 0.009  # with jitter
            assert last - second >= 0.018

    play(script)


@pytest.mark.parametrize(("labels", "runs"), [({}, 4), ({"max_retries": 2}, 2)])
def test_a_task_that_fails_each_time_is_a_dead_letter(labels: dict[str, Any], runs: int) -> None:
    async def script() -> None:
        broker = make(max_deliver=4).with_middlewares(PymqRetryMiddleware(True))
        ran: list[int] = []

        @broker.task("fail")
        async def fail() -> None:
            ran.append(1)
            raise OSError("never")

        async with working(broker):
            task = await fail.kicker().with_labels(**labels).kiq()
            with pytest.raises(OSError, match="never"):
                await value(task)
            (letter,) = await letters(broker)
            assert letter["taskiq.task_id"].decode() == task.task_id
            assert letter["taskiq.task_name"] == b"fail"
            assert b"never" in letter["pymq.error"]
            assert len(ran) == runs

    play(script)


def test_a_dead_letter_goes_back_and_runs() -> None:
    async def script() -> None:
        broker = make(max_deliver=1).with_middlewares(PymqRetryMiddleware(True))
        is_mended = False

        @broker.task
        async def work() -> str:
            if not is_mended:
                raise OSError("broken")
            return "mended"

        async with working(broker):
            task = await work.kiq()
            with pytest.raises(OSError, match="broken"):
                await value(task)
            is_mended = True
            assert (await broker.client.redrive("taskiq.dlq")).count == 1
            while (await task.get_result()).is_err:
                await asyncio.sleep(0.01)
            assert await value(task) == "mended"

    play(script)


def test_only_errors_of_some_types_run_again() -> None:
    async def script() -> None:
        middleware = PymqRetryMiddleware(True, types_of_exceptions=[OSError])
        broker = make().with_middlewares(middleware)
        ran: list[str] = []

        @broker.task
        async def fail(kind: str) -> None:
            ran.append(kind)
            raise OSError if kind == "os" and ran.count("os") < 2 else ValueError(kind)

        async with working(broker):
            for kind in ("os", "value"):
                with pytest.raises(ValueError, match=kind):
                    await value(await fail.kiq(kind))
        assert ran == ["os", "os", "value"]

    play(script)


@pytest.mark.parametrize(
    "labels", [{"ack_type": "when_received"}, {"retry_on_error": False}, {"retry_on_error": "no"}]
)
def test_some_tasks_do_not_run_again(labels: dict[str, Any]) -> None:
    async def script() -> None:
        broker = make().with_middlewares(PymqRetryMiddleware(True))
        ran: list[int] = []

        @broker.task
        async def fail() -> None:
            ran.append(1)
            raise OSError("once")

        async with working(broker):
            with pytest.raises(OSError, match="once"):
                await value(await fail.kicker().with_labels(**labels).kiq())
            await settled(broker)
        assert ran == [1]

    play(script)


def test_a_rejected_task_is_a_dead_letter_at_once() -> None:
    async def script() -> None:
        broker = make().with_middlewares(PymqRetryMiddleware(True))

        @broker.task
        async def refuse(context: Context = TaskiqDepends()) -> None:
            context.reject()

        async with working(broker):
            result = await (await refuse.kiq()).wait_result(check_interval=0.01, timeout=SECONDS)
            assert result.is_err
            (letter,) = await letters(broker)
            assert letter["pymq.deliveries"] == b"1"

    play(script)


def test_a_requeued_task_is_sent_again() -> None:
    async def script() -> None:
        broker = make().with_middlewares(PymqRetryMiddleware(True))

        @broker.task
        async def second(context: Context = TaskiqDepends()) -> str:
            if "X-Taskiq-requeue" not in context.message.labels:
                await context.requeue()
            return str(context.message.labels["X-Taskiq-requeue"])

        async with working(broker):
            assert await value(await second.kiq()) == "1"

    play(script)


@pytest.mark.parametrize(
    "middleware",
    [
        SimpleRetryMiddleware(default_retry_count=3),
        SmartRetryMiddleware(default_retry_count=3, default_delay=0.05, use_delay_exponent=True),
    ],
)
def test_the_middlewares_of_taskiq_send_a_task_again(
    middleware: SimpleRetryMiddleware | SmartRetryMiddleware,
) -> None:
    async def script() -> None:
        broker = make().with_middlewares(middleware)
        times: list[float] = []

        @broker.task(retry_on_error=True)
        async def third() -> int:
            times.append(time.monotonic())
            if len(times) < 3:
                raise OSError("not yet")
            return len(times)

        async with working(broker):
            assert await value(await third.kiq()) == 3
            if isinstance(middleware, SmartRetryMiddleware):
                assert times[1] - times[0] >= 0.05

    play(script)


def test_the_middleware_needs_this_broker() -> None:
    with pytest.raises(ConfigError, match="needs a PymqBroker"):
        InMemoryBroker().with_middlewares(PymqRetryMiddleware())


def test_a_task_that_takes_too_long_comes_again() -> None:
    async def script() -> None:
        broker = make(ack_wait_s=0.3)
        runs: list[int] = []

        @broker.task
        async def once() -> int:
            runs.append(1)
            while len(runs) < 2:
                await asyncio.sleep(0.01)
            return len(runs)

        async with working(broker):
            assert await value(await once.kiq()) == 2

    play(script)


def test_a_waiting_caller_may_stop_to_wait() -> None:
    async def script() -> None:
        broker = make()
        await broker.startup()

        @broker.task
        async def nobody_runs_this() -> None: ...

        with pytest.raises(TaskiqResultTimeoutError):
            await (await nobody_runs_this.kiq()).wait_result(check_interval=0.01, timeout=0.1)
        await broker.shutdown()

    play(script)
