"""Runs each command three times: with text output, with JSON output, and with an error.

Details of the output are tested in the command's own module; if a new command is missing here, a
test fails.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pymq
from pymq.cli import main, parser
from tests.cli.conftest import Queue, Told
from tests.cli.test_docs import commands

# These run for longer than the others, and have tests of their own: test_kafka.py, test_ui.py,
# test_demo.py and test_nodes.py.
ELSEWHERE = {"kafka", "mirror", "ui", "demo", "group delete", "broker", "zkserver", "cluster start"}
NUMBERS = itertools.count(1)


class Row(NamedTuple):
    """A command's arguments and a part of its output, and arguments that fail, with the expected
    error.
    """

    typed: str
    said: str
    in_vain: str
    code: str


# {it} is an existing topic and {who} an existing group, {fresh} the name of a new topic, {free} an
# unused name, and {nowhere} a folder without a queue.
ROWS = {
    # This must run before a group exists, because the offsets topic needs three brokers.
    "cluster decommission": Row("broker-2", "broker-2", "nobody", "INVALID_REQUEST"),
    "cluster recommission": Row("broker-2", "broker-2", "nobody", "INVALID_REQUEST"),
    "topic create": Row("{free}", "{free} is created", "{it}", "TOPIC_EXISTS"),
    "topic list": Row("", "{it}", "--url {nowhere}", "STORE_ERROR"),
    "topic describe": Row("{it}", "broker-", "{free}", "UNKNOWN_TOPIC"),
    "topic alter": Row("{fresh} --config fsync=os", "{fresh}", "{it} --config f", "CONFIG_ERROR"),
    "topic delete": Row("{fresh} --yes", "{fresh}", "{free} --yes", "UNKNOWN_TOPIC"),
    "topic set-state": Row("{fresh} 0 raft", "raft", "{it} 9 raft", "UNKNOWN_PARTITION"),
    "produce": Row("{fresh} --file {lines}", "2 records", "{free} --file {lines}", "UNKNOWN_TOPIC"),
    "consume": Row("{it}", "tea", "{free}", "UNKNOWN_TOPIC"),
    "group list": Row("", "{who}", "--url {nowhere}", "STORE_ERROR"),
    "group describe": Row("{who}", "{it}", "{free}", "UNKNOWN_GROUP"),
    "group unsubscribe": Row("{who}", "{it}", "{who} {free}", "UNKNOWN_TOPIC"),
    "group reset": Row("{who} {it} --to 0", "--execute", "{who} {free} --to 0", "UNKNOWN_TOPIC"),
    "dlq list": Row("{it}", "unknown", "{free}", "UNKNOWN_TOPIC"),
    "dlq show": Row("{it}", "deliveries", "{free}", "UNKNOWN_TOPIC"),
    "dlq redrive": Row("{it} --dry-run", "would stay", "{free}", "UNKNOWN_TOPIC"),
    "dlq purge": Row("{it}", "would be purged", "{free}", "UNKNOWN_TOPIC"),
    "table sync": Row("{url} {it} {table} --once", "new row", "{url} {free} t", "UNKNOWN_TOPIC"),
    "cluster status": Row("", "broker-2", "--url {nowhere}", "STORE_ERROR"),
    "cluster reassign": Row("{fresh} 0 broker-1", "broker-1", "{it} 0 x", "NOT_ENOUGH_BROKERS"),
    "cluster balance": Row("", "", "--url {nowhere}", "STORE_ERROR"),
    "cluster recover": Row("{it} 0 --accept-loss", "nothing to recover", "{it} 0", "CONFIG_ERROR"),
    "explain": Row("{it} 0 0", "visible", "{free} 0 0", "UNKNOWN_TOPIC"),
    "doctor": Row("", "all with a leader and in sync", "--url {nowhere}", ""),
    "bench": Row("--records 500 --samples 5", "500 records", "--replicas 9", "NOT_ENOUGH_BROKERS"),
    "verify": Row("{folder}", "", "{nowhere}", "STORE_ERROR"),
    "keys make": Row("{keys} {free}", "{free}", "{keys} alice", "CONFIG_ERROR"),
    "keys list": Row("{keys}", "alice", "{nowhere}", "CONFIG_ERROR"),
    "keys revoke": Row("{keys} {fresh_key}", "{fresh_key}", "{keys} nobody", "CONFIG_ERROR"),
    "keys token": Row("{keys} {free}", "{free}", "{nowhere} a", "CONFIG_ERROR"),
    "keys kafka-user": Row("{nowhere} {free}", "{free}", "{nowhere} x --remove", "CONFIG_ERROR"),
    "keys policy": Row("{unruled}", "policy.toml", "{keys}", "CONFIG_ERROR"),
    "completion": Row("bash", "complete", "none", "CONFIG_ERROR"),
}  # fmt: skip


def test_every_command_is_here() -> None:
    named = {name.removeprefix("pymq ") for name, _ in commands(parser())}
    leaves = {n for n in named if not any(other.startswith(f"{n} ") for other in named)}
    assert leaves == ROWS.keys() | ELSEWHERE


class World:
    """The objects that the commands work on."""

    def __init__(self, queue: Queue, tmp_path: Path) -> None:
        self._queue = queue
        self._folder = tmp_path
        self.names = {
            name: str(tmp_path / name) for name in ("nowhere", "folder", "keys", "lines", "table")
        } | {"it": "everything", "who": "everybody", "url": queue.url}
        (tmp_path / "lines").write_text("one\ntwo\n")
        pymq.open(tmp_path / "folder").close()
        assert main(["keys", "make", self.names["keys"], "alice", "--node"]) == 0
        assert main(["keys", "policy", self.names["keys"]]) == 0
        with queue.open() as mq:
            mq.create_topic("everything", exist_ok=True)
            with mq.producer() as producer:
                producer.send("everything", b"tea").result(60)

    def fill(self, name: str, text: str) -> str:
        """Fill the placeholders of a command line, with new names each time."""
        number = next(NUMBERS)
        new = {kind: f"{kind}-{number}" for kind in ("free", "fresh", "fresh_key", "unruled")}
        if "{fresh}" in text:
            with self._queue.open() as mq:
                mq.create_topic(new["fresh"])
        if "group" in name or "{who}" in text:
            with self._queue.open() as mq:
                mq.consumer("everything", group="everybody").close()
        if "{fresh_key}" in text:
            assert main(["keys", "make", self.names["keys"], new["fresh_key"]]) == 0
        new["unruled"] = str(self._folder / new["unruled"])
        if "{unruled}" in text:
            assert main(["keys", "make", new["unruled"], "bob", "--node"]) == 0
        self.names |= new
        return text.format(**self.names)

    def call(self, name: str, typed: str, *more: str) -> Told:
        """Have a command run."""
        argv = [*name.split(), *typed.split(), *more]
        is_plain = name.startswith(("verify", "keys", "completion", "table")) or "--url" in typed
        return self._queue.plain(*argv) if is_plain else self._queue.call(*argv)


@pytest.fixture
def world(remote: Queue, tmp_path: Path) -> Iterator[World]:
    yield World(remote, tmp_path)
    remote.call("cluster", "recommission", "broker-2")


@pytest.mark.parametrize("name", ROWS)
def test_a_command(name: str, world: World) -> None:
    row = ROWS[name]
    told = world.call(name, world.fill(name, row.typed))
    assert (told.code, told.err) == (0, ""), told
    assert told.out.strip()
    assert row.said.format(**world.names) in told.out

    told = world.call(name, world.fill(name, row.typed), "--json")
    assert (told.code, told.err) == (0, ""), told
    assert [json.loads(line) for line in documents(name, told.out)]

    typed = world.fill(name, row.in_vain)
    told = world.call(name, typed)
    assert told.code in (1, 2)
    told_json = world.call(name, typed, "--json")
    assert told_json.code == told.code
    if name == "doctor":  # its output is the list of failures
        assert "fail" in told.out
        assert "next: " in told.out
        assert json.loads(told_json.out)["ok"] is False
        return
    # these commands report the finished part even if the rest fails
    if name not in ("keys revoke", "topic delete"):
        assert (told.out, told_json.out) == ("", "")
    error = json.loads(told_json.err)["error"]
    assert error["code"] == row.code
    assert f"({row.code})" in told.err.splitlines()[0]


def documents(name: str, out: str) -> list[str]:
    """The JSON documents of an output: ``consume`` prints one for each record, all other commands
    print one.
    """
    return out.splitlines() if name == "consume" else [out]
