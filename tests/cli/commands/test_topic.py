"""``pymq topic``, on a folder and on a cluster."""

from __future__ import annotations

import io
import json

import pytest

import pymq
from pymq.cli.commands import topic as command
from pymq.cli.show import Show
from pymq.core.metadata.descriptions import BlockDescription, PartitionDescription, TopicDescription
from pymq.core.metadata.nodes import Loss
from pymq.core.metadata.topic_config import TopicConfig
from tests.cli.conftest import Queue


def test_a_topic_is_made(queue: Queue, topic: str) -> None:
    told = queue.run("topic", "create", topic, "--partitions", 2, "--config", "retention_ms=7d")
    assert told.out == f"{topic} is created: 2 partitions\n"
    with queue.open() as mq:
        found = mq.describe_topic(topic)
    assert [part.name for part in found.partitions] == ["0", "1"]
    assert found.config.retention_ms == 7 * 24 * 3_600_000
    again = queue.fails("topic", "create", topic)
    assert (again["code"], again["retriable"]) == ("TOPIC_EXISTS", False)
    assert "--if-not-exists" in again["hints"][0]
    assert queue.run("topic", "create", topic, "--if-not-exists").out.startswith(
        f"{topic} exists already"
    )


def test_a_topic_is_made_for_programs(queue: Queue, topic: str) -> None:
    found = queue.json(
        *("topic", "create", topic, "--partition", "xian", "--partition", "beijing"),
        *("--config", "block_bytes=64MiB", "--config", "cleanup_policy=compact"),
    )
    assert (found["created"], found["topic"]) == (True, topic)
    assert [part["name"] for part in found["partitions"]] == ["xian", "beijing"]
    assert found["partitions"][0]["acks"] == "leader"
    assert found["config"]["block_bytes"] == 64 << 20
    assert found["config"]["cleanup_policy"] == "compact"
    assert not queue.json("topic", "create", topic, "--if-not-exists")["created"]


def test_a_topic_that_cannot_be_made(queue: Queue, topic: str) -> None:
    for argv, code, complaint in (
        (["--config", "retention_mss=1"], "CONFIG_ERROR", "did you mean 'retention_ms'?"),
        (["--config", "retention_ms"], "CONFIG_ERROR", "is not NAME=VALUE"),
        (["--config", "block_bytes=much"], "CONFIG_ERROR", "block_bytes='much'"),
        (["--partitions", "0"], "CONFIG_ERROR", "partitions=0"),
        (["--partition", "no/name"], "INVALID_NAME", "no/name"),
        (["--replicas", "9"], "NOT_ENOUGH_BROKERS", "9"),
    ):
        error = queue.fails("topic", "create", topic, *argv)
        assert error["code"] == code
        assert complaint in error["message"]


def test_topics_are_listed(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--partitions", 3)
    queue.put(topic, range(10), "1")
    rows = queue.run("topic", "list").rows
    assert rows[0] == "topic partitions replicas acks records size state".split()
    (row,) = [row for row in rows if row[0] == topic]
    assert (row[1:5], row[-1]) == (["3", "1", "leader", "10"], "ok")
    assert topic in queue.run("topic", "list", "--names").out.splitlines()
    assert topic in queue.json("topic", "list", "--names")["topics"]
    (found,) = [t for t in queue.json("topic", "list")["topics"] if t["topic"] == topic]
    assert [part["high_watermark"] for part in found["partitions"]] == [0, 10, 0]


def test_a_queue_without_topics_says_what_to_do(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(f"{tmp_path}/data", capsys)
    error = queue.fails("topic", "list")
    assert error["code"] == "STORE_ERROR"
    assert "pymq topic create" in error["message"]
    pymq.open(queue.url).close()
    assert "'pymq topic create NAME'" in queue.run("topic", "list").out
    assert queue.json("topic", "list") == {"topics": []}
    assert queue.fails("topic", "describe", "x")["hints"] == ["there is no topic yet"]


def test_creating_is_what_makes_a_folder(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(f"{tmp_path}/fresh", capsys)
    queue.run("topic", "create", "first")
    assert queue.run("topic", "list", "--names").out == "first\n"


def test_a_topic_is_described(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--config", "retention_bytes=1MiB")
    queue.put(topic, range(5))
    told = queue.run("topic", "describe", topic, "--blocks")
    assert told.out.splitlines()[:2] == [
        f"{topic}: 1 partition, ok",
        "  retention_bytes = 1048576 (1.0 MiB)",
    ]
    head, _, row = told.rows[2:5]
    assert head == "partition acks leader epoch replicas in-sync start end size".split()
    assert row[:3] == ["0", "leader", row[4]]
    assert row[5:8] == ["all", "0", "5"]
    assert told.rows[7][:4] == ["0", "NowBlock", "0", "open"]
    found = queue.json("topic", "describe", topic)
    (part,) = found["partitions"]
    assert (part["leader"], part["acks"], part["end_offset"]) == (row[2], "leader", 5)
    (block,) = part["blocks"]
    assert (block["name"], block["end_offset"], block["acks"]) == ("NowBlock", None, "leader")
    error = queue.fails("topic", "describe", f"{topic}x")
    assert error["code"] == "UNKNOWN_TOPIC"
    assert error["hints"] == [f"did you mean '{topic}'?"]


def test_trouble_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Problems that a healthy queue does not have are shown: missing replicas, possible losses,
    uncommitted records.
    """
    part = PartitionDescription(
        *("0", 0, pymq.AckMode.RAFT, None, 3, ("a", "b"), ("a",), 0, 9, 7, ()),
        problem="waits for b",
        losses=(Loss(1, 4, 0, "a", 0),),
    )
    command.tell(TopicDescription("t", TopicConfig(), (part,)), Show(is_json=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "t: 1 partition, 1 stuck, 1 under-replicated"
    assert lines[3].split() == ["0", "raft", "nobody", "3", "a,b", "a", "0", "7", "0", "B"]
    assert lines[4:] == [
        "partition 0: 2 records more, appended and not committed yet",
        "partition 0: waits for b",
        "partition 0: records from offset 4 on may have been lost at 1970-01-01T00:00:00.000Z",
    ]


def test_a_topic_is_altered(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    told = queue.run("topic", "alter", topic, "--config", "retention_ms=1h")
    assert told.out == f"{topic}: retention_ms = 3600000 (1 h)\n"
    told = queue.run("topic", "alter", topic, "--add-partition", "more")
    assert "has 2 partitions now" in told.out
    found = queue.json("topic", "alter", topic, "--config", "retention_ms=none")
    assert found["config"]["retention_ms"] is None
    assert queue.fails("topic", "alter", topic)["code"] == "CONFIG_ERROR"
    assert queue.fails("topic", "alter", topic, "--add-partition", "more")["code"] == (
        "PARTITION_EXISTS"
    )


def test_a_topic_is_deleted(monkeypatch: pytest.MonkeyPatch, queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(3))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "--yes" in queue.fails("topic", "delete", topic)["message"]
    told = queue.call("topic", "delete", "--yes", topic, "nowhere")
    assert (told.code, told.out) == (1, f"{topic} is deleted\n")
    assert "UNKNOWN_TOPIC" in told.err
    queue.run("topic", "create", topic)
    assert queue.json("topic", "delete", "--yes", topic) == {"deleted": [topic], "failed": []}
    told = queue.call("topic", "delete", "--yes", topic, f"{topic}x", "--json")
    assert told.code == 1
    assert [row["code"] for row in json.loads(told.out)["failed"]] == ["UNKNOWN_TOPIC"] * 2
    codes = [json.loads(line)["error"]["code"] for line in told.err.splitlines()]
    assert codes == ["UNKNOWN_TOPIC"] * 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_somebody_is_asked_before_records_go(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, topic: str
) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(3))
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    told = queue.call("topic", "delete", topic)
    assert told.code == 1
    assert told.err.startswith(f"Delete {topic} with 3 records? [y/N] error: nothing was deleted ")
    assert (
        "--yes"
        in json.loads(queue.call("topic", "delete", topic, "--json").err)["error"]["message"]
    )
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert queue.run("topic", "delete", topic).out == f"{topic} is deleted\n"


def test_ack_modes_change(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic, "--partitions", 2, "--acks", "unset")
    assert remote.run("topic", "describe", topic).out.startswith(f"{topic}: 2 partitions, 2 unset")
    told = remote.run("topic", "set-state", topic, "all", "raft", "--replicas", 3)
    assert told.out.count("is now raft on broker-") == 2
    found = remote.json("topic", "set-state", topic, "0", "raft")
    assert found["changed"] == {"0": False}
    assert found["partitions"][0]["acks"] == "raft"
    assert len(found["partitions"][0]["replicas"]) == 3
    error = remote.fails("topic", "set-state", topic, "7", "leader")
    assert error["code"] == "UNKNOWN_PARTITION"
    error = remote.fails("topic", "set-state", topic, "0", "leader", "--replicas", 9)
    assert error["code"] == "NOT_ENOUGH_BROKERS"
    assert error["hints"] == ["'pymq cluster status' shows which brokers are alive"]


def test_an_ack_mode_of_a_folder(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    told = queue.run("topic", "set-state", topic, 0, "none")
    assert f"{topic}/0 is now none on broker-" in told.out


def test_states_in_a_few_words() -> None:
    def part(acks: pymq.AckMode, leader: str | None, in_sync: tuple[str, ...]) -> TopicDescription:
        replicas = () if acks is pymq.AckMode.UNSET else ("a", "b")
        found = PartitionDescription("0", 0, acks, leader, 1, replicas, in_sync, 0, 0, 0, ())
        return TopicDescription("t", TopicConfig(), (found,))

    assert command.states(part(pymq.AckMode.RAFT, "a", ("a", "b"))) == "ok"
    assert command.states(part(pymq.AckMode.RAFT, None, ("a", "b"))) == "1 stuck"
    assert command.states(part(pymq.AckMode.LEADER, "a", ("a",))) == "1 under-replicated"
    assert command.states(part(pymq.AckMode.UNSET, None, ())) == "1 unset"


@pytest.mark.parametrize("holders", [(), ("b",)])
def test_what_nobody_can_be_read_from_is_no_ok(
    holders: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The partition has a leader and is in sync on other brokers, but readers wait for the older
    records.
    """
    mode = pymq.AckMode.LEADER
    blocks = (
        BlockDescription("b0", 0, 5, 1, mode, "b", ("b",), 100, in_sync=holders),
        BlockDescription("now", 5, None, 2, mode, "a", ("a",), 100, 1, ("a",)),
    )
    part = PartitionDescription("0", 0, mode, "a", 2, ("a",), ("a",), 0, 9, 9, blocks)
    topic = TopicDescription("t", TopicConfig(), (part,))
    assert command.states(topic, {"b"}) == "1 partly unreadable"
    assert command.states(topic, {"c"}) == ("ok" if holders else "1 partly unreadable")
    command.tell(topic, Show(is_json=False), {"b"})
    told = capsys.readouterr().out
    assert "t: 1 partition, 1 partly unreadable" in told
    gone = (
        "5 records are on b alone, which is dead"
        if holders
        else "no broker holds 5 records any more"
    )
    assert f"partition 0: {gone}, from offset 0 on (1 block)" in told
