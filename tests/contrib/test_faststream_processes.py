"""FastStream's own command on three brokers: handlers run in processes that are stopped or
killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("faststream")
pytest.importorskip("zmq")

import pymq
from pymq.contrib.faststream import PymqMessage
from pymq.testing.child import environment
from tests.contrib.faststream_apps import SOON, Seen, make, play, settled, started
from tests.nodes.processes import ROOT, processes
from tests.simulator.processes import ProcessCluster
from tests.test_howto import blocks

SECONDS = 60.0
STARTED = "app started successfully"
DYING = """
import os, signal
from faststream import FastStream
from pymq.contrib.faststream import PymqBroker, PymqMessage

broker = PymqBroker(os.environ["PYMQ_URL"])
app = FastStream(broker)

@broker.subscriber("dying", session_timeout_s=2)
@broker.publisher("survived")
async def die_once(body: str, message: PymqMessage) -> str:
    if message.delivery_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{body}, delivery {message.delivery_count}"
"""
SLOW = """
import asyncio, os
from faststream import FastStream
from pymq.contrib.faststream import PymqBroker

broker = PymqBroker(os.environ["PYMQ_URL"])
app = FastStream(broker)

@broker.subscriber("slow", session_timeout_s=600, ack_wait_s=600)
async def work(number: int) -> None:
    await broker.publish(number, "begun")
    await asyncio.sleep(1)
    await broker.publish(number, "ended")
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of three brokers."""
    with processes(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.url


class Running:
    """``faststream run`` in a process."""

    def __init__(self, app: str, folder: Path, url: str, *options: str) -> None:
        self.log = folder / f"run-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "faststream", "run", app, *options]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=told(url),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def until(self, text: str) -> None:
        """Wait until the log of the process contains a text."""
        ends = time.monotonic() + SECONDS
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.02)  # The log is a file, and nothing signals that it has grown.

    def stop(self) -> None:
        """Tell the process to stop, and wait until it has ended."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 0, self.log.read_text()

    def clear(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # kill the children, too
            self.process.wait()


@contextmanager
def running(*apps: Running) -> Iterator[None]:
    try:
        yield
    finally:
        for app in apps:
            app.clear()


def told(url: str) -> dict[str, str]:
    return {**environment(), "PYMQ_URL": url}


def run(folder: Path, url: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=told(url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def spoken(output: str) -> list[str]:
    """The program's own output, without the lines of FastStream's log and tracebacks."""
    lines = re.sub(r"(?ms)^Traceback.*?^\w+Error: [^\n]*\n", "", output).splitlines()
    return [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d ", line)]


def test_a_message_whose_worker_dies_goes_to_another(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DYING)
    apps = [Running("app:app", tmp_path, url) for _ in range(2)]
    with running(*apps):
        for app in apps:
            app.until(STARTED)
        with pymq.open(url) as mq, mq.producer() as producer:
            producer.send("dying", b"tea").result()
            with mq.consumer("survived", mode="reader") as reader:
                (record,) = reader.poll(timeout=SECONDS)
                assert record.value == b"tea, delivery 2"
        assert sorted(app.process.poll() is None for app in apps) == [False, True]
        (alive,) = (app for app in apps if app.process.poll() is None)
        alive.stop()


@pytest.mark.slow
def test_a_worker_that_stops_ends_its_work_and_gives_the_rest_back(
    url: str, tmp_path: Path
) -> None:
    """Otherwise its session and its leases would last for another ten minutes."""
    (tmp_path / "app.py").write_text(SLOW)
    first = Running("app:app", tmp_path, url)
    with running(first), pymq.open(url) as mq:
        first.until(STARTED)
        mq.create_topic("begun", exist_ok=True)
        with mq.producer() as producer:
            producer.send_many("slow", [b"%d" % number for number in range(3)]).result()
        with mq.consumer("begun", mode="reader") as reader:
            assert reader.poll(timeout=SECONDS)
        first.stop()
        second = Running("app:app", tmp_path, url)
        with running(second), mq.consumer("ended", mode="reader") as reader:
            ended: list[bytes] = []
            while len(ended) < 3:
                ended += [record.value for record in reader.poll(timeout=SECONDS)]
            assert sorted(ended) == [b"0", b"1", b"2"]
            second.stop()


SHOP = ["Ann paid 12 euros", "Ann, was the tea good?"]
EXAMPLE = str(ROOT / "examples/faststream_app.py")


def test_the_example_in_a_folder(tmp_path: Path) -> None:
    """The example also works when it is run again."""
    for _ in range(2):
        assert spoken(run(tmp_path, "data", EXAMPLE)) == SHOP


@pytest.mark.slow
def test_the_example_on_brokers(url: str, tmp_path: Path) -> None:
    """The example's own handlers and those of the command share the messages."""
    app = Running("examples.faststream_app:app", tmp_path, url, "--workers", "2")
    with running(app):
        app.until("`Remind` waiting for messages")
        assert spoken(run(tmp_path, url, EXAMPLE)) == SHOP
        app.stop()


def test_the_document_of_the_example(tmp_path: Path) -> None:
    """The document can be made without opening a queue."""
    file = tmp_path / "asyncapi.json"
    options = "-m faststream docs gen examples.faststream_app:app --out asyncapi.json".split()
    run(tmp_path, "zmq+tcp://127.0.0.1:1", *options)
    found = json.loads(file.read_text())
    (server,) = found["servers"].values()
    assert server["protocol"] == "pymq"
    assert {channel["address"] for channel in found["channels"].values()} == {
        "charges",
        "receipts",
        "reminders",
    }


@pytest.mark.slow
def test_the_program_of_the_page_for_celery_users(url: str, tmp_path: Path) -> None:
    """Run the program twice in a folder, then on brokers, given by URL, beside a worker of the
    command.
    """
    (program,) = (text for text in blocks("from-celery.md", "python") if "faststream" in text)
    (told_by_page,) = blocks("from-celery.md", "text")
    (tmp_path / "app.py").write_text(program)
    for _ in range(2):
        assert spoken(run(tmp_path, "shop/", "app.py")) == told_by_page.splitlines()
    app = Running("app:app", tmp_path, url)
    with running(app):
        app.until(STARTED)
        assert spoken(run(tmp_path, url, "app.py")) == told_by_page.splitlines()
        app.stop()


def test_the_test_of_the_page(tmp_path: Path) -> None:
    """The test is in a separate file, since FastStream reads its source."""
    (program,) = blocks("faststream.md", "py")
    (tmp_path / "test_bill.py").write_text(program)
    run(tmp_path, "", "-W", "error", "test_bill.py")
    assert "assert" in program


def test_messages_survive_a_broker(tmp_path: Path) -> None:
    """A leader dies while messages are sent and handled; the client reconnects."""

    async def script(cluster: ProcessCluster) -> None:
        broker, seen = make(cluster.url), Seen()
        leader: str | None = None

        @broker.subscriber("orders", max_workers=10, retry=SOON)
        async def handle(number: int) -> int:
            if number == 50:
                assert leader is not None
                if cluster.nodes[leader].is_running:
                    cluster.nodes[leader].kill()
            return number

        @broker.subscriber("handled")
        async def note(number: int, message: PymqMessage) -> None:
            await seen.put(number)

        async with started(broker):
            leader = (await broker.client.describe_topic("orders")).partitions[0].leader
            for number in range(200):
                await broker.publish(number, "orders", reply_to="handled")
            numbers: set[int] = set()
            while len(numbers) < 200:
                numbers.add(await seen.next(SECONDS))
            await settled(broker, "orders")
            assert numbers == set(range(200))
            assert [node.is_running for node in cluster.nodes.values()].count(False) == 1

    with processes(tmp_path) as cluster:
        play(lambda: script(cluster), 3 * SECONDS)
