"""taskiq's own command on three brokers: its workers are processes, which are stopped or killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("taskiq")
pytest.importorskip("zmq")

from pymq.testing.child import environment
from tests.contrib.taskiq_workers import make, play, value, working
from tests.nodes.processes import ROOT, processes
from tests.simulator.processes import ProcessCluster
from tests.test_howto import blocks

SECONDS = 60.0
DYING = """
import asyncio, os, signal
from taskiq import Context, TaskiqDepends
from pymq.contrib.taskiq import PymqBroker, PymqResultBackend

URL = os.environ["PYMQ_URL"]
broker = PymqBroker(URL, topic="dying", group="dying", session_timeout_s=2)
broker.with_result_backend(PymqResultBackend(URL))

@broker.task("die_once")
async def die_once(context: Context = TaskiqDepends()) -> int | None:
    count = broker.deliveries(context.message.task_id)
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count

async def main() -> None:
    await broker.startup()
    task = await die_once.kiq()
    print("deliveries:", (await task.wait_result(timeout=50)).raise_for_error().return_value)
    await broker.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


TICKING = """
import asyncio, os, sys
from taskiq import TaskiqScheduler
from pymq.contrib.taskiq import PymqBroker, PymqScheduleSource

broker = PymqBroker(os.environ["PYMQ_URL"], topic="ticking", group="ticking")
source = PymqScheduleSource(broker)
scheduler = TaskiqScheduler(broker, [source])

@broker.task("tick")
async def tick(number: int) -> None:
    async with broker.client.producer() as producer:
        await producer.send("ticks", b"%d" % number)

async def main() -> None:
    await broker.startup()
    await broker.client.create_topic("ticks", exist_ok=True)
    if sys.argv[1] == "schedule":
        await tick.schedule_by_interval(source, 1, 7)
    else:
        async with broker.client.consumer("ticks", mode="reader", offset="begin") as reader:
            ticks = []
            while len(ticks) < 2:
                ticks += await reader.poll(timeout=50)
        print("ticks:", {record.value for record in ticks})
    await source.shutdown()
    await broker.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of three brokers."""
    with processes(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.url


def told(url: str) -> dict[str, str]:
    return {**environment(), "PYMQ_URL": url}


@contextmanager
def taskiq(what: str, app: str, folder: Path, url: str) -> Iterator[Path]:
    """Run ``taskiq worker`` or ``taskiq scheduler``, yield its log, and stop the process in an
    orderly way.
    """
    log = folder / f"{what}.log"
    command = [sys.executable, "-m", "taskiq", what, app]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=told(url), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield log
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # kill also the worker's child processes
            process.wait()


def run(program: Path, folder: Path, url: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(program), *options],
        cwd=folder,
        env=told(url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_task_whose_worker_dies_goes_to_another(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DYING)
    with taskiq("worker", "app:broker", tmp_path, url) as log:
        assert run(tmp_path / "app.py", tmp_path, url) == "deliveries: 2\n"
    started = re.findall(r"\]\[(worker-\d)\] Executing task die_once", log.read_text())
    assert len(started) == 2


SHOP = [
    "Ann paid 12 euros",
    "6 cups are packed; state='packing' meta=6",
    "Ann, was the tea good?",
]


def test_the_example_in_a_folder(tmp_path: Path) -> None:
    assert run(ROOT / "examples/taskiq_app.py", tmp_path, "data").splitlines() == SHOP


@pytest.mark.slow
def test_the_example_on_brokers(url: str, tmp_path: Path) -> None:
    """The program's own worker and those of the command share the tasks."""
    example = ROOT / "examples/taskiq_app.py"
    with taskiq("worker", "examples.taskiq_app:broker", tmp_path, url):
        assert run(example, tmp_path, url).splitlines() == SHOP


def test_the_program_of_the_page_for_celery_users(url: str, tmp_path: Path) -> None:
    """Run the program twice in a folder, where the second run finds the first one's data, then
    twice with brokers.
    """
    (program,) = (text for text in blocks("from-celery.md", "python") if "taskiq" in text)
    (told,) = blocks("from-celery.md", "text")
    (tmp_path / "app.py").write_text(program)
    assert run(tmp_path / "app.py", tmp_path, "shop/") == told
    assert run(tmp_path / "app.py", tmp_path, url) == told
    with taskiq("worker", "app:broker", tmp_path, url):
        assert run(tmp_path / "app.py", tmp_path, url) == told


@pytest.mark.slow
def test_the_scheduler_of_taskiq_on_brokers(url: str, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(TICKING)
    run(app, tmp_path, url, "schedule")
    with (
        taskiq("worker", "app:broker", tmp_path, url),
        taskiq("scheduler", "app:scheduler", tmp_path, url),
    ):
        assert run(app, tmp_path, url, "wait") == "ticks: {b'7'}\n"


def test_tasks_and_results_survive_a_broker(tmp_path: Path) -> None:
    """A leader dies while tasks are sent and run: each task is done, and its caller gets the
    result.
    """

    async def script(cluster: ProcessCluster) -> None:
        broker = make(cluster.url)
        leader: str | None = None

        @broker.task
        async def double(number: int) -> int:
            if number == 50:
                assert leader is not None
                cluster.nodes[leader].kill()
            return 2 * number

        async with working(broker):
            leader = (await broker.client.describe_topic("taskiq")).partitions[0].leader
            tasks = [await double.kiq(number) for number in range(200)]
            assert [await value(task) for task in tasks] == [2 * number for number in range(200)]
            assert [node.is_running for node in cluster.nodes.values()].count(False) == 1

    with processes(tmp_path) as cluster:
        play(lambda: script(cluster))
