"""Requirements of taskiq for a broker: tasks arrive once, can be delayed, expire and are
acknowledged.

taskiq has no test suite for brokers of other packages. The test suites of taskiq's own brokers test
these behaviours, and its documentation promises them (decision 164).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import AckableMessage, AsyncTaskiqTask, Context, TaskiqDepends, TaskiqResult
from taskiq.exceptions import SendTaskError

import pymq
import pymq.aio
from pymq.contrib.taskiq import PymqBroker, PymqResultBackend
from pymq.errors import Closed, ConfigError
from tests.contrib.taskiq_workers import (
    SECONDS,
    acknowledge,
    make,
    message,
    play,
    settled,
    take,
    value,
    working,
)

# --- sending and receiving ----------------------------------------------------------------------


def test_a_task_arrives_with_its_bytes_and_id() -> None:
    async def script() -> None:
        broker = make()
        await broker.startup()
        await broker.kick(message("7", b"\x00any bytes\xff"))
        found = await take(broker)
        assert found.data == b"\x00any bytes\xff"
        assert broker.deliveries("7") == 1
        await acknowledge(found)
        assert broker.deliveries("7") is None
        await broker.shutdown()

    play(script)


def test_an_acknowledged_task_does_not_come_again(tmp_path: Path) -> None:
    async def script() -> None:
        first = make(tmp_path)
        await first.startup()
        await first.kick(message("1", b"one"))
        await first.kick(message("2", b"two"))
        bodies = set()
        for _ in range(2):
            found = await take(first)
            bodies.add(found.data)
            if found.data == b"one":
                await acknowledge(found)
        assert bodies == {b"one", b"two"}
        await first.shutdown()
        second = make(tmp_path)
        await second.startup()
        assert (await take(second)).data == b"two"
        assert second.deliveries("2") == 2
        with pytest.raises(TimeoutError):
            await take(second, timeout=0.2)
        await second.shutdown()

    play(script)


@pytest.mark.parametrize("prefetch", [1, 5])
def test_a_worker_leases_as_many_tasks_at_a_time_as_it_prefetches(prefetch: int) -> None:
    async def script() -> None:
        broker = make(partitions=1, prefetch=prefetch)
        await broker.startup()
        for number in range(10):
            await broker.kick(message(str(number)))
        await take(broker)
        group = await broker.client.describe_group(broker.group)
        assert group.delivered == {(broker.topic, "0"): prefetch}
        await broker.shutdown()

    play(script)


def test_tasks_that_were_sent_before_there_was_a_worker_wait() -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        def double(number: int) -> int:  # this task runs in a thread
            return 2 * number

        await broker.startup()
        tasks = [await double.kiq(number) for number in range(20)]
        async with working(broker):
            assert [await value(task) for task in tasks] == [2 * number for number in range(20)]

    play(script)


def test_workers_share_the_tasks() -> None:
    """A busy worker leases no further task, so an idle one gets the rest."""

    async def script() -> None:
        release, started = asyncio.Event(), asyncio.Event()
        brokers = [make(), make()]
        ran: list[tuple[int, int]] = []

        def define(worker: int) -> Any:
            @brokers[worker].task(task_name="work")
            async def work(number: int) -> None:
                ran.append((worker, number))
                if number == 0:
                    started.set()
                    await release.wait()

            return work

        tasks = [define(worker) for worker in range(2)]
        async with working(*brokers, max_async_tasks=1):
            slow = await tasks[0].kiq(0)
            await started.wait()
            quick = [await tasks[0].kiq(number) for number in range(1, 21)]
            for task in quick:
                await value(task)
            (busy,) = (worker for worker, number in ran if number == 0)
            assert sorted(ran) == sorted([(busy, 0), *((1 - busy, n) for n in range(1, 21))])
            release.set()
            await value(slow)

    play(script)


def test_two_groups_both_get_each_task() -> None:
    async def script() -> None:
        brokers = [make(group="one"), make(group="two")]
        for broker in brokers:
            await broker.startup()
        await brokers[0].kick(message(body=b"for both"))
        assert [(await take(broker)).data for broker in brokers] == [b"for both"] * 2
        for broker in brokers:
            await broker.shutdown()

    play(script)


def test_labels_travel_with_their_types() -> None:
    async def script() -> None:
        broker = make()

        @broker.task(always="here")
        async def labels(context: Context = TaskiqDepends()) -> str:
            return repr(sorted(context.message.labels.items()))

        sent: dict[str, Any] = {"i": 1, "f": 0.5, "b": True, "s": "text", "raw": b"\xff"}
        async with working(broker):
            told = await value(await labels.kicker().with_labels(**sent).kiq())
            assert told == repr(sorted({**sent, "always": "here"}.items()))

    play(script)


def test_a_delayed_task_comes_at_its_time() -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        async def now() -> float:
            return time.time()

        async with working(broker):
            sent = time.time()
            late = await now.kicker().with_labels(delay=0.5).kiq()
            assert await value(await now.kiq()) < sent + 0.5
            assert await value(late) >= sent + 0.5

    play(script)


def test_an_expired_task_does_not_run() -> None:
    async def script() -> None:
        broker = make(partitions=1)
        await broker.startup()
        await broker.kick(message("1", b"stale", expires="0.001"))
        await broker.kick(message("2", b"fresh", expires="600"))
        while time.time() < (await first_time(broker)) + 0.01:
            await asyncio.sleep(0.001)
        assert (await take(broker)).data == b"fresh"
        await broker.shutdown()

    play(script)


async def first_time(broker: PymqBroker) -> float:
    """The time at which the first task was sent."""
    async with broker.client.consumer(broker.topic, mode="reader") as reader:
        return (await reader.poll())[0].timestamp_ms / 1000


def test_urgent_tasks_run_first() -> None:
    """A delayed task, too, keeps its priority when it is due."""

    async def script() -> None:
        broker = make()
        ran: list[str] = []

        @broker.task
        async def work(name: str) -> None:
            ran.append(name)

        async def send(name: str, **labels: float) -> AsyncTaskiqTask[None]:
            return await work.kicker().with_labels(**labels).kiq(name)

        await broker.startup()
        due = await send("due", priority=5, delay=0.05)
        sent = [await send("later") for _ in range(10)]
        sent += [await send("urgent", priority=9), await send("soon", priority=1), due]
        lag = 0
        while lag < len(sent):  # a delayed record counts only when it is due
            await asyncio.sleep(0.01)
            lag = await waiting(broker)
        async with working(broker, max_async_tasks=1):
            for task in sent:
                await value(task)
        assert ran == ["urgent", "due", "soon", *["later"] * 10]

    play(script)


async def waiting(broker: PymqBroker) -> int:
    """The lag of a group that starts at the beginning."""
    partitions = (await broker.client.describe_topic(broker.topic)).partitions
    return sum(partition.high_watermark for partition in partitions) - 1  # one task was sent twice


@pytest.mark.parametrize("label", ["delay", "expires", "priority"])
def test_a_label_that_is_no_number(label: str) -> None:
    async def script() -> None:
        broker = make()

        @broker.task
        async def nothing() -> None: ...

        await broker.startup()
        with pytest.raises(SendTaskError) as caught:
            await nothing.kicker().with_labels(**{label: "soon"}).kiq()
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(SendTaskError) as caught:
            await nothing.kicker().with_labels(**{label: -1}).kiq()
        assert isinstance(caught.value.__cause__, ConfigError)
        await broker.shutdown()

    play(script)


def test_a_broker_that_is_not_started_says_so() -> None:
    async def script() -> None:
        broker = make()
        with pytest.raises(Closed, match=r"broker\.startup\(\)"):
            await broker.kick(message())
        with pytest.raises(Closed, match=r"broker\.startup\(\)"):
            await take(broker)

    play(script)


def test_what_is_no_task_is_skipped() -> None:
    """Other bytes, an unknown name, and records of other programs do not stop a worker."""

    async def script() -> None:
        broker = make()

        @broker.task
        async def fine() -> str:
            return "fine"

        async with working(broker):
            async with broker.client.producer() as producer:
                await producer.send(broker.topic, b"no task")
            await broker.kick(message(body=b"{"))
            await broker.kick(message(body=b'{"task_id":"1","task_name":"none","labels":{},'))
            assert await value(await fine.kiq()) == "fine"
            await settled(broker)

    play(script)


# --- acknowledging ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ack_type", "held"),
    [
        ("when_received", [None, None]),
        ("when_executed", [1, None]),
        ("when_saved", [1, 1]),
        ("manual", [1, 1]),
    ],
)
def test_when_a_task_is_acknowledged(ack_type: str, held: list[int | None]) -> None:
    """Whether the worker holds the task while it runs, and while its result is saved."""

    async def script() -> None:
        seen: list[int | None] = []
        broker = PymqBroker("memory:")

        class Backend(PymqResultBackend[Any]):
            async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
                seen.append(broker.deliveries(task_id))
                await super().set_result(task_id, result)

        broker.with_result_backend(Backend("memory:"))

        @broker.task(ack_type=ack_type)
        async def look(context: Context = TaskiqDepends()) -> None:
            seen.append(broker.deliveries(context.message.task_id))

        async with working(broker):
            task = await look.kiq()
            await value(task)
            assert seen == held
            if ack_type == "manual":
                assert broker.deliveries(task.task_id) == 1
                return
            await settled(broker)

    play(script)


def test_a_task_acknowledges_itself() -> None:
    async def script() -> None:
        broker = make()

        @broker.task(ack_type="manual")
        async def work(context: Context = TaskiqDepends()) -> bool:
            await context.ack()
            return broker.deliveries(context.message.task_id) is None

        async with working(broker):
            assert await value(await work.kiq())

    play(script)


def test_a_task_may_be_acknowledged_after_its_receiver_ended() -> None:
    """When a receiver stops, it first stops listening, and then waits for the running tasks."""

    async def script() -> None:
        broker, other = make(), make()
        await broker.startup()
        await other.startup()
        await broker.kick(message("1"))
        found = await take(broker)  # receiving a task here ends listen()
        await acknowledge(found)
        await broker.shutdown()
        with pytest.raises(TimeoutError):
            await take(other, timeout=0.2)
        await other.shutdown()

    play(script)


def test_an_acknowledgement_after_the_shutdown_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        broker = make()
        await broker.startup()
        await broker.kick(message("late"))
        found = await take(broker)
        await broker.shutdown()
        await acknowledge(found)

    play(script)
    assert "task late ended after shutdown()" in caplog.text


def test_receivers_of_one_broker_have_consumers_of_their_own() -> None:
    async def script() -> None:
        broker = make()
        await broker.startup()
        for number in range(2):
            await broker.kick(message(str(number), b"%d" % number))
        streams = [broker.listen(), broker.listen()]
        found = [await asyncio.wait_for(anext(stream), SECONDS) for stream in streams]
        assert {each.data for each in found if isinstance(each, AckableMessage)} == {b"0", b"1"}
        assert len((await broker.client.describe_group(broker.group)).members) == 2
        for stream in streams:
            await stream.aclose()
        await broker.kick(message("2", b"2"))
        assert (await take(broker)).data == b"2"
        assert len((await broker.client.describe_group(broker.group)).members) == 2
        await broker.shutdown()

    play(script)


# --- the client ---------------------------------------------------------------------------------


def test_a_folder_is_opened_once_and_closed_at_last(tmp_path: Path) -> None:
    async def script() -> None:
        brokers = [make(tmp_path), make(f"{tmp_path}/../{tmp_path.name}")]
        await asyncio.gather(*(broker.startup() for broker in brokers))
        assert brokers[0].client is brokers[1].client
        await brokers[0].shutdown()
        await brokers[1].kick(message())
        await brokers[1].shutdown()
        async with pymq.aio.open(tmp_path) as mq:  # the broker does not hold the folder's lock yet
            assert await mq.topics() == ["taskiq", "taskiq.results"]

    play(script)


def test_a_client_of_the_application_stays_open() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            broker = make(mq, topic="mine", partitions=2)
            await broker.startup()
            await broker.kick(message())
            await broker.shutdown()
            assert len((await mq.describe_topic("mine")).partitions) == 2

    play(script)


def test_a_queue_that_cannot_be_opened(tmp_path: Path) -> None:
    async def script() -> None:
        async with pymq.aio.open(tmp_path):
            broker = make(tmp_path)
            with pytest.raises(pymq.errors.StoreLocked):
                await broker.startup()
        await broker.startup()  # the client has released the folder's lock
        await broker.shutdown()

    play(script)


def test_a_topic_that_exists_stays_as_it_is() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            await mq.create_topic("taskiq", partitions=1, retention_ms=5_000)
            broker = make(mq)
            await broker.startup()
            described = await mq.describe_topic("taskiq")
            assert (len(described.partitions), described.config.retention_ms) == (1, 5_000)
            await broker.shutdown()

    play(script)


def test_tasks_are_synced_before_they_are_answered() -> None:
    async def script() -> None:
        broker = make()
        await broker.startup()
        for topic in (broker.topic, "taskiq.results"):
            (acks,) = {p.acks for p in (await broker.client.describe_topic(topic)).partitions}
            assert acks is pymq.AckMode.RAFT
        await broker.shutdown()

    play(script)
