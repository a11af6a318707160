"""``pymq group``, on a folder and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import pymq
from pymq.cli.offset_args import OffsetArg, parse_place
from pymq.errors import ConfigError
from tests.cli.conftest import Queue
from tests.client.helpers import polled


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}.g"


@pytest.fixture
def used(queue: Queue, topic: str, group: str) -> Queue:
    """A group that has acknowledged 4 of 10 records of one partition, and none of the other."""
    queue.run("topic", "create", topic, "--partitions", 2)
    queue.put(topic, range(10))
    queue.run("consume", topic, "--group", group, "--max", 4)
    return queue


@contextmanager
def consuming(queue: Queue, topic: str, group: str, count: int) -> Iterator[pymq.Consumer]:
    """A consumer that holds leases of a given number of records."""
    with queue.open() as mq, mq.consumer(topic, group=group) as consumer:
        polled(consumer, count)
        yield consumer


def row_of(queue: Queue, group: str, partition: str) -> list[str]:
    rows = queue.run("group", "describe", group).rows
    (row,) = [row for row in rows if row[1:2] == [partition] and row[0].startswith("t")]
    return row


def test_groups_are_listed(used: Queue, topic: str, group: str) -> None:
    rows = used.run("group", "list").rows
    assert rows[0] == "group topics consumers lag in-flight redeliver".split()
    (row,) = [row for row in rows if row[0] == group]
    assert row == [group, topic, "0", "6", "0", "0"]
    (found,) = [g for g in used.json("group", "list")["groups"] if g["group"] == group]
    assert (found["lag"], found["consumers"]) == (6, [])


def test_a_queue_without_groups(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue(f"{tmp_path}/data", capsys)
    queue.run("topic", "create", "t")
    assert "no group yet" in queue.run("group", "list").out
    assert queue.json("group", "list") == {"groups": []}
    error = queue.fails("group", "describe", "g")
    assert (error["code"], error["hints"]) == ("UNKNOWN_GROUP", ["there is no group yet"])


def test_a_group_is_described(used: Queue, topic: str, group: str) -> None:
    told = used.run("group", "describe", group)
    assert told.out.startswith(f"{group}: no consumer, generation ")
    assert "lag 6" in told.out
    assert row_of(used, group, "0") == [topic, "0", "4", "10", "6", "0", "0", "none"]
    found = used.json("group", "describe", group)
    rows = {row["partition"]: row for row in found["partitions"]}
    assert rows["0"] == {
        "topic": topic,
        "partition": "0",
        "committed": 4,
        "delivered": 4,
        "end": 10,
        "lag": 6,
        "in_flight": 0,
        "waiting": 0,
    }
    error = used.fails("group", "describe", f"{group}x")
    assert error["hints"] == [f"did you mean '{group}'?"]


def test_a_route_is_shown(used: Queue, topic: str, group: str) -> None:
    used.run("topic", "alter", topic, "--config", "route=canary:5%")
    told = used.run("group", "describe", group)
    assert f"topic {topic} routes records to a group: canary:5%" in told.out
    assert used.json("group", "describe", group)["routes"] == {topic: "canary:5%"}


def test_consumers_are_shown(remote: Queue, topic: str, group: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(5))
    with consuming(remote, topic, group, 5) as consumer:
        (member,) = remote.json("group", "describe", group)["consumers"]
        assert (member["client"], member["partitions"]) == (consumer.name, ["0"])
        told = remote.run("group", "describe", group)
        assert f"{group}: 1 consumer, generation " in told.out
        (row,) = [row for row in told.rows if row[:1] == [member["name"]]]
        assert row[1:4] == [consumer.name, topic, "0"]
        assert row_of(remote, group, "0")[2:] == ["0", "5", "5", "5", "0", member["name"]]


def test_a_partition_that_was_not_begun(remote: Queue, topic: str, group: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(2))
    remote.run("consume", topic, "--group", group)
    remote.run("topic", "alter", topic, "--add-partition", "new")
    assert row_of(remote, group, "new") == [topic, "new", *"-----", "none"]
    assert remote.json("group", "describe", group)["not_begun"] == [
        {"topic": topic, "partition": "new"}
    ]


def test_a_reset_is_shown_first(used: Queue, topic: str, group: str) -> None:
    argv = ("group", "reset", group, topic, "--partition", 0, "--to", "earliest")
    told = used.run(*argv)
    assert told.rows[0] == "partition from to change lag-then".split()
    assert told.rows[2] == ["0", "4", "0", "-4", "10"]
    assert told.out.endswith("nothing was changed; add --execute to change it\n")
    found = used.json(*argv, "--dry-run")
    assert not found["executed"]
    assert found["partitions"] == [{"partition": "0", "from": 4, "to": 0, "lag": 10}]
    with used.open() as mq:
        assert mq.describe_group(group).committed[topic, "0"] == 4


def test_a_reset(used: Queue, topic: str, group: str) -> None:
    places = {"earliest": 0, "latest": 10, "1970-01-01T00:00:01Z": 0, "7": 7, "-4": 6}
    for place, expected in places.items():
        argv = ("group", "reset", group, topic, "--to", place, "--execute")
        assert used.run(*argv).out.endswith(f"group {group} continues from there\n")
        with used.open() as mq:
            found = mq.describe_group(group).committed
        assert found == {(topic, "0"): expected, (topic, "1"): 0}
    assert used.json(*argv)["executed"]
    rest = used.run("consume", topic, "--group", group, "--format", "value").out.split()
    assert rest == ["6", "7", "8", "9"]


def test_what_cannot_be_reset(used: Queue, topic: str, group: str) -> None:
    argv = ("group", "reset", group, topic)
    assert "is not a position" in used.fails(*argv, "--to", "nowhere")["message"]
    assert used.fails(*argv, "--to", "latest", "--partition", "7")["code"] == "UNKNOWN_PARTITION"
    assert used.fails("group", "reset", group, f"{topic}x", "--to", "latest")["code"] == (
        "UNKNOWN_TOPIC"
    )
    # The command requires the target offset, and does not guess it.
    assert used.call(*argv).code == 2
    told = used.call(*argv, "--to", "1", "--execute", "--dry-run")
    assert (told.code, "not allowed with" in told.err) == (2, True)


def test_a_group_that_is_not_there_can_be_placed(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(3))
    told = queue.run("group", "reset", f"{topic}.new", topic, "--to", 2, "--execute")
    assert told.rows[2] == ["0", "-", "2", "-", "1"]


def test_a_group_with_consumers_is_left_alone(remote: Queue, topic: str, group: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(3))
    argv = ("group", "reset", group, topic, "--to", "latest")
    with consuming(remote, topic, group, 3) as consumer:
        remote.run(*argv)
        error = remote.fails(*argv, "--execute")
    assert error["code"] == "INVALID_REQUEST"
    assert f"1 consumer ({consumer.name}); close them first" in error["message"]


def test_places() -> None:
    now = 1_700_000_000_000
    assert parse_place("begin") == parse_place("earliest") == OffsetArg("earliest")
    assert parse_place("end") == parse_place("latest") == OffsetArg("latest")
    assert parse_place("42") == OffsetArg("offset", 42)
    assert parse_place("-10") == OffsetArg("last", 10)
    assert (
        parse_place("15m", now) == parse_place("15m ago", now) == OffsetArg("time", now - 900_000)
    )
    assert parse_place("1.5h", now) == OffsetArg("time", now - 5_400_000)
    assert parse_place("2026-01-31") == OffsetArg("time", 1_769_817_600_000)
    assert parse_place("2026-01-31T01:00:00+01:00") == OffsetArg("time", 1_769_817_600_000)
    for text in ("", "x", "-", "--1", "1x", "1960-01-01", "٣"):
        with pytest.raises(ConfigError):
            parse_place(text)
