"""Results and progress in a compacted topic: who can read them, for how long, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("taskiq")

from pydantic import BaseModel
from taskiq import TaskiqDepends, TaskiqResult
from taskiq.depends.progress_tracker import ProgressTracker, TaskProgress, TaskState

import pymq
import pymq.aio
from pymq.contrib.taskiq import PymqResultBackend, ResultMissing, ResultNotStored
from pymq.core.batch.record import Record
from tests.contrib.taskiq_workers import make, play, value, working


def result(found: Any, **fields: Any) -> TaskiqResult[Any]:
    return TaskiqResult(**{"is_err": False, "return_value": found, "execution_time": 0.5, **fields})


@asynccontextmanager
async def started(
    url: str | Path | pymq.aio.AsyncClient = "memory:", **options: Any
) -> AsyncIterator[PymqResultBackend[Any]]:
    backend: PymqResultBackend[Any] = PymqResultBackend(url, **options)
    await backend.startup()
    try:
        yield backend
    finally:
        await backend.shutdown()


@pytest.mark.parametrize(
    "found", [None, 0, 1.5, "text \u2615", [1, [2]], {"a": {"b": None}}, True, "", []]
)
def test_a_result_comes_back(found: object) -> None:
    async def script() -> None:
        async with started() as backend:
            assert not await backend.is_result_ready("1")
            stored = result(found, labels={"number": 1, "raw": b"\xff"}, log="a line")
            await backend.set_result("1", stored)
            assert await backend.is_result_ready("1")
            back = await backend.get_result("1", with_logs=True)
            assert (back.return_value, back.is_err, back.error) == (found, False, None)
            assert (back.execution_time, back.log) == (0.5, "a line")
            assert back.labels == {"number": 1, "raw": "/w=="}
            assert (await backend.get_result("1")).log is None
            assert not await backend.is_result_ready("2")

    play(script)


class Order(BaseModel):
    item: str
    at: datetime


def test_models_and_times_are_json() -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        async def buy(item: str) -> Order:
            return Order(item=item, at=datetime(2026, 1, 2, tzinfo=UTC))

        async with working(broker):
            order = await value(await buy.kiq("teapot"))
            assert order == Order(item="teapot", at=datetime(2026, 1, 2, tzinfo=UTC))

    play(script)


def test_an_error_keeps_its_type() -> None:
    async def script() -> None:
        async with started() as backend:
            await backend.set_result("1", result(None, is_err=True, error=KeyError("teapot")))
            back = await backend.get_result("1")
            assert back.is_err
            assert isinstance(back.error, KeyError)
            assert back.error.args == ("teapot",)

    play(script)


def test_a_result_that_is_not_there() -> None:
    async def script() -> None:
        async with started() as backend:
            with pytest.raises(ResultMissing, match="no result of task 7"):
                await backend.get_result("7")

    play(script)


def test_the_last_result_counts() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq, started(mq) as one, started(mq) as other:
            await one.set_result("1", result("first"))
            assert (await other.get_result("1")).return_value == "first"
            await one.set_result("1", result("second"))
            assert (await other.get_result("1")).return_value == "second"

    play(script)


def test_a_result_is_kept_or_not() -> None:
    async def script() -> None:
        async with (
            pymq.aio.open("memory:") as mq,
            started(mq) as one,
            started(mq, keep_results=False) as other,
        ):
            await one.set_result("1", result("read once"))
            assert (await one.get_result("1")).return_value == "read once"
            assert (await other.get_result("1")).return_value == "read once"
            for backend in (other, one):
                with pytest.raises(ResultMissing):
                    await backend.get_result("1")
                assert not await backend.is_result_ready("1")
            await one.set_result("1", result("again"))
            assert (await other.get_result("1")).return_value == "again"

    play(script)


def test_results_survive_in_a_folder(tmp_path: Path) -> None:
    async def script() -> None:
        async with started(tmp_path) as backend:
            await backend.set_result("1", result("kept"))
        async with started(tmp_path) as backend:
            assert (await backend.get_result("1")).return_value == "kept"

    play(script)


def test_results_expire() -> None:
    async def script() -> None:
        async with started(expires_s=0.3) as backend:
            await backend.set_result("1", result("soon gone"))
            assert await backend.is_result_ready("1")
            while await backend.is_result_ready("1"):
                await asyncio.sleep(0.01)
            with pytest.raises(ResultMissing):
                await backend.get_result("1")

    play(script)


def test_the_retention_of_the_topic_is_the_expiry() -> None:
    async def script() -> None:
        async with (
            pymq.aio.open("memory:") as mq,
            started(mq, expires_s=3600),
            started(mq, topic="kept", expires_s=None),
        ):
            config = (await mq.describe_topic("taskiq.results")).config
            assert (config.cleanup_policy, config.retention_ms) == ("compact", 3_600_000)
            assert config.block_ms == 900_000  # otherwise the last block would stay for a week
            config = (await mq.describe_topic("kept")).config
            assert (config.cleanup_policy, config.retention_ms) == ("compact", None)

    play(script)


@pytest.mark.parametrize("found", [object(), b"\xff", {1, 2}, "x" * 1_100_000])
def test_nobody_waits_for_a_result_that_cannot_be_stored(found: object) -> None:
    async def script() -> None:
        async with started() as backend:
            await backend.set_result("1", result(found))
            if isinstance(found, set):  # JSON has no sets, so compare lists
                assert sorted((await backend.get_result("1")).return_value) == [1, 2]
                return
            back = await backend.get_result("1")
            assert back.is_err
            assert isinstance(back.error, ResultNotStored)

    play(script)


def test_progress() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq, started(mq) as one, started(mq) as other:
            assert await other.get_progress("1") is None
            await one.set_progress("1", TaskProgress(state="half", meta={"done": 5}))
            assert await other.get_progress("1") == TaskProgress(state="half", meta={"done": 5})
            await one.set_progress("1", TaskProgress(state=TaskState.SUCCESS, meta=None))
            assert await other.get_progress("1") == TaskProgress(state="SUCCESS", meta=None)
            assert not await other.is_result_ready("1")

    play(script)


def test_a_task_tells_its_progress() -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        async def work(tracker: ProgressTracker[int] = TaskiqDepends()) -> str:
            await tracker.set_progress(TaskState.STARTED, 41)
            await tracker.set_progress("nearly")
            return "done"

        async with working(broker):
            task = await work.kiq()
            assert await value(task) == "done"
            assert await task.get_progress() == TaskProgress(state="nearly", meta=41)

    play(script)


# --- the cost of results ------------------------------------------------------------------------


def test_results_beyond_the_cache_are_read_from_the_log() -> None:
    async def script() -> None:
        async with started(cache_bytes=3_000) as backend:
            for number in range(30):
                await backend.set_result(str(number), result([number] * 200))
            for number in (0, 29, 15):
                assert (await backend.get_result(str(number))).return_value == [number] * 200
            assert 0 < backend._table._value_bytes <= 3_000
            assert len(backend._table._entries) == 30

    play(script)


def test_a_process_knows_the_newest_results() -> None:
    async def script() -> None:
        async with started(max_results=10, partitions=1) as backend:
            for number in range(30):
                await backend.set_result(str(number), result(number))
            known = [n for n in range(30) if await backend.is_result_ready(str(n))]
            assert known == [*range(20, 30)]
            assert len(backend._table._entries) == len(backend._table._values) == 10

    play(script)


def test_each_result_is_read_once_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq, started(mq) as one, started(mq) as other:
            taken: list[int] = []
            take = other._table._take

            def count(record: Record) -> None:
                taken.append(record.offset)
                take(record)

            monkeypatch.setattr(other._table, "_take", count)

            async def wait(task_id: str) -> Any:
                while not await other.is_result_ready(task_id):
                    await asyncio.sleep(0.001)
                return (await other.get_result(task_id)).return_value

            waiting = [asyncio.create_task(wait(str(number))) for number in range(50)]
            for number in range(50):
                await one.set_result(str(number), result(number))
            assert await asyncio.gather(*waiting) == [*range(50)]
            assert len(taken) == 50

    play(script)


def test_a_worker_reads_no_results() -> None:
    async def script() -> None:
        async with started() as backend:
            for number in range(5):
                await backend.set_result(str(number), result(number))
            assert backend._table._reader is None

    play(script)


def test_a_cancelled_question_does_not_disturb_the_others() -> None:
    async def script() -> None:
        async with started() as backend:
            await backend.set_result("1", result("there"))
            asking = [asyncio.create_task(backend.get_result("1")) for _ in range(10)]
            await asyncio.sleep(0)
            for question in asking[::2]:
                question.cancel()
            found = await asyncio.gather(*asking, return_exceptions=True)
            assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, False] * 5
            assert all(
                each.return_value == "there" for each in found if isinstance(each, TaskiqResult)
            )

    play(script)


def test_records_of_other_programs_are_no_results() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq, started(mq) as backend:
            async with mq.producer() as producer:
                await producer.send("taskiq.results", b"no key")
                await producer.send("taskiq.results", b"", key=b"\xff")
            await backend.set_result("1", result(1))
            assert (await backend.get_result("1")).return_value == 1

    play(script)


def test_a_backend_that_is_not_started_says_so() -> None:
    async def script() -> None:
        backend: PymqResultBackend[Any] = PymqResultBackend("memory:")
        with pytest.raises(pymq.errors.Closed, match="startup"):
            await backend.set_result("1", result(1))
        with pytest.raises(pymq.errors.Closed, match="startup"):
            await backend.get_result("1")

    play(script)
