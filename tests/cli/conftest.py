"""The command line against a folder, and against a small cluster over ZeroMQ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pymq
from pymq.cli import main

BROKERS = ("broker-0", "broker-1", "broker-2")
_numbers = itertools.count(1)


class Told(NamedTuple):
    """The output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The lines of the output, split into words."""
        return [line.split() for line in self.out.splitlines()]


class Queue:
    """A queue, and the command line for it."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def run(self, *argv: object) -> Told:
        """Run a command that ends well."""
        told = self.call(*argv)
        assert told.code == 0, told
        return told

    def call(self, *argv: object) -> Told:
        """Run a command; return its output and exit code."""
        return self.plain(*argv, "--url", self.url)

    def plain(self, *argv: object) -> Told:
        """Run a command that needs no queue, or that names another queue."""
        self._capsys.readouterr()
        code = main([*map(str, argv)])
        return Told(code, *self._capsys.readouterr())

    def json(self, *argv: object, code: int = 0) -> Any:
        """Run a command with --json, and parse its output."""
        told = self.call(*argv, "--json")
        assert told.code == code, told
        return json.loads(told.out)

    def fails(self, *argv: object) -> dict[str, Any]:
        """Run a command that fails, with and without --json; return its JSON output."""
        told = self.call(*argv)
        as_json = self.call(*argv, "--json")
        assert told.code == as_json.code != 0
        error: dict[str, Any] = json.loads(as_json.err)["error"]
        first, *hints = told.err.splitlines()
        assert first == f"error: {' '.join(error['message'].split())} ({error['code']})"
        assert [line.removeprefix("  hint: ") for line in hints] == error["hints"]
        return error

    def open(self) -> pymq.Client:
        """A client; a folder can have only one at a time, and no command can run beside it."""
        return pymq.open(self.url)

    def put(self, topic: str, values: Sequence[object], partition: str = "0") -> list[int]:
        """Send values; returns their offsets."""
        with self.open() as mq, mq.producer() as producer:
            rows = [str(item).encode() for item in values]
            sent = producer.send_many(topic, rows, partition=partition).result(60)
            return [record.offset for record in sent]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The URL of a cluster of one zkserver and three brokers."""
    # However slow this machine is, the zkserver must not declare its brokers dead.
    with pymq.ZkServer(offsets_partitions=1, session_ms=0).start() as zkserver:
        brokers = [pymq.Broker(name, zkservers=[zkserver.endpoint]) for name in BROKERS]
        try:
            for broker in brokers:
                broker.start()
            yield f"zmq+{zkserver.endpoint}"
        finally:
            for broker in brokers:
                broker.close()


@pytest.fixture(params=["folder", "zmq"])
def queue(
    request: pytest.FixtureRequest,
    cluster: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Queue:
    """A queue in a folder or on brokers."""
    if request.param == "zmq":
        return Queue(cluster, capsys)
    pymq.open(tmp_path / "data").close()
    return Queue(str(tmp_path / "data"), capsys)


@pytest.fixture
def remote(cluster: str, capsys: pytest.CaptureFixture[str]) -> Queue:
    """A cluster, for commands that do not work on a folder."""
    return Queue(cluster, capsys)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(_numbers)}"
