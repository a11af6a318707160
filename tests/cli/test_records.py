"""``pymq produce`` and ``pymq consume``, on a folder and on a cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pymq
from pymq.cli.record_text import printable, shorten
from tests.cli.conftest import Queue
from tests.client.helpers import polled

PYMQ = [sys.executable, "-m", "pymq"]
WAIT_S = 60


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"a|one\nb|two\r\n|three\nfour\n\nlast without end")
    return path


def text_rows(out: str) -> list[list[str]]:
    """Return place, key and value of records that were printed as text."""
    return [re.split(r"\s{2,}", line) for line in out.splitlines()]


# --- producing ----------------------------------------------------------------------------------


def test_lines_are_records(queue: Queue, topic: str, lines: Path) -> None:
    queue.run("topic", "create", topic)
    told = queue.run("produce", topic, "--file", lines)
    summary, offsets = told.out.splitlines()
    assert summary.startswith(f"6 records, 36 B, into {topic} in ")
    assert offsets == "  partition 0: offsets 0 to 5"
    with queue.open() as mq, mq.consumer(topic, mode="psb") as consumer:
        records = list(consumer.until_end())
    expected = [b"a|one", b"b|two", b"|three", b"four", b"", b"last without end"]
    assert [record.value for record in records] == expected
    assert {record.key for record in records} == {None}


def test_keys_and_headers(queue: Queue, topic: str, lines: Path) -> None:
    queue.run("topic", "create", topic, "--partitions", 2)
    argv = ("produce", topic, "--file", lines, "--key-separator", "|")
    found = queue.json(*argv)
    assert (found["topic"], found["records"], found["bytes"]) == (topic, 6, 36)
    assert sum(last - first + 1 for first, last in found["offsets"].values()) == 6
    queue.run(*argv, "--header", "from=test", "--partition", "1")
    with queue.open() as mq, mq.consumer(topic, mode="psb") as consumer:
        records = list(consumer.until_end())
    keyed = {(record.key, record.value) for record in records}
    assert {(b"a", b"one"), (b"b", b"two"), (b"", b"three"), (None, b"four")} <= keyed
    marked = [record for record in records if record.headers]
    assert {record.headers for record in marked} == {(("from", b"test"),)}
    assert {record.partition for record in marked} == {"1"}


def test_what_cannot_be_sent(queue: Queue, topic: str, lines: Path, tmp_path: Path) -> None:
    queue.run("topic", "create", topic, "--config", "max_record_bytes=10")
    assert queue.fails("produce", topic, "--file", lines)["code"] == "RECORD_TOO_LARGE"
    error = queue.fails("produce", f"{topic}x", "--file", lines)
    assert (error["code"], error["hints"]) == ("UNKNOWN_TOPIC", [f"did you mean '{topic}'?"])
    (tmp_path / "empty").touch()
    error = queue.fails("produce", f"{topic}x", "--file", tmp_path / "empty")
    assert error["code"] == "UNKNOWN_TOPIC"
    error = queue.fails("produce", topic, "--file", tmp_path / "empty", "--partition", "x")
    assert error["code"] == "UNKNOWN_PARTITION"
    assert queue.json("produce", topic, "--file", tmp_path / "empty")["records"] == 0
    assert queue.fails("produce", topic, "--file", tmp_path / "none")["code"] == "OS_ERROR"
    assert "is a folder" in queue.fails("produce", topic, "--file", tmp_path)["message"]
    assert "--header" in queue.fails("produce", topic, "--header", "x")["message"]
    both = ("--format", "json", "--key-separator", ":")
    assert queue.fails("produce", topic, "--file", lines, *both)["code"] == "CONFIG_ERROR"
    (tmp_path / "bad").write_text('{"value": "x"}\n\n{"key": "k"}\n')
    error = queue.fails("produce", topic, "--file", tmp_path / "bad", "--format", "json")
    assert error["message"].startswith("line 3: ")
    assert error["message"].endswith("it has no value")
    (tmp_path / "deep").write_text("[" * 200_000)
    error = queue.fails("produce", topic, "--file", tmp_path / "deep", "--format", "json")
    assert error["code"] == "INVALID_REQUEST"


def test_what_is_no_text_on_the_command_line(queue: Queue, topic: str, lines: Path) -> None:
    """Non-text bytes in an argument become the same bytes of the header.

    An earlier version raised a traceback.
    """
    queue.run("topic", "create", topic)
    odd = os.fsdecode(b"from=\xff")
    queue.run("produce", topic, "--file", lines, "--header", odd)
    queue.run("produce", topic, "--file", lines, "--key-separator", os.fsdecode(b"\xfe"))
    (first, *_) = queue.run("consume", topic, "--json").out.splitlines()
    assert json.loads(first)["headers"] == [{"name": "from", "value_base64": "/w=="}]


def test_nobody_answers_what_nobody_is_to_answer(queue: Queue, topic: str, lines: Path) -> None:
    queue.run("topic", "create", topic)
    found = queue.json("produce", topic, "--file", lines, "--acks", "none")
    assert (found["records"], found["offsets"]) == (6, {})


def test_a_topic_is_copied_by_a_pipe(queue: Queue, topic: str, tmp_path: Path) -> None:
    """``produce --format json`` reads the output of ``consume --json``: keys, headers, and any
    bytes.
    """
    queue.run("topic", "create", topic)
    queue.run("topic", "create", f"{topic}.copy")
    with queue.open() as mq, mq.producer() as producer:
        producer.send(topic, b"\xff\x00", key=b"\xfe", headers=[("h", b"\xfd"), ("i", b"1")])
        producer.send(topic, "wörld\n".encode(), key=b"k", timestamp_ms=1_000)
        producer.send(topic, b"", timestamp_ms=2_000)
    told = queue.run("consume", topic, "--json")
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert rows[0]["value_base64"] == "/wA="
    assert rows[1] == {
        "topic": topic,
        "partition": "0",
        "offset": 1,
        "timestamp_ms": 1_000,
        "key": "k",
        "value": "wörld\n",
        "headers": [],
        "delivery_count": 1,
    }
    (tmp_path / "rows").write_text(told.out)
    queue.run("produce", f"{topic}.copy", "--format", "json", "--file", tmp_path / "rows")

    def records(name: str) -> list[tuple[object, ...]]:
        with queue.open() as mq, mq.consumer(name, mode="psb") as consumer:
            return [(r.key, r.value, r.headers, r.timestamp_ms) for r in consumer.until_end()]

    assert records(f"{topic}.copy") == records(topic)


# --- consuming ----------------------------------------------------------------------------------


def test_records_as_text(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    with queue.open() as mq, mq.producer() as producer:
        producer.send(topic, b"one", key=b"k", headers=[("h", b"1")], timestamp_ms=1_234)
        producer.send(topic, b"\x1b[2J\n\xff", timestamp_ms=5)
    told = queue.run("consume", topic, "--headers")
    assert text_rows(told.out) == [
        ["0/0", "1970-01-01T00:00:01.234Z", "k", "one", "h=1"],
        ["0/1", "1970-01-01T00:00:00.005Z", "-", "\\x1b[2J\\n\\xff"],
    ]
    assert queue.run("consume", topic, "--format", "value", "--max", 1).out == "one\n"


def test_where_to_begin(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    with queue.open() as mq, mq.producer() as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, timestamp_ms=n * 1_000)
        producer.send(topic, b"10")  # this record has the present time
    for place, expected in {
        "earliest": range(11),
        "7": range(7, 11),
        "-2": range(9, 11),
        "-99": range(11),
        "99": range(0),
        "latest": range(0),
        "1970-01-01T00:00:08": range(8, 11),
        "1h": range(10, 11),
    }.items():
        told = queue.run("consume", topic, "--from", place, "--format", "value")
        assert [int(line) for line in told.out.split()] == list(expected), place


def test_some_partitions(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--partitions", 3)
    for name in "012":
        queue.put(topic, [name] * 2, name)
    told = queue.run("consume", topic, "--partition", 2, "--format", "value")
    assert told.out.split() == ["2", "2"]
    both = queue.run("consume", topic, "--partition", 0, "--partition", 2, "--format", "value")
    assert sorted(both.out.split()) == ["0", "0", "2", "2"]
    assert sorted(queue.run("consume", topic, "--format", "value").out.split()) == sorted("001122")


def test_a_group_goes_on_where_it_stopped(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(10))
    group = f"{topic}.g"
    argv = ("consume", topic, "--group", group, "--format", "value")
    assert queue.run(*argv, "--max", 4).out.split() == list("0123")
    assert queue.run(*argv).out.split() == list("456789")
    assert queue.run(*argv).out == ""
    with queue.open() as mq:
        found = mq.describe_group(group)
        assert (found.committed[topic, "0"], found.members) == (10, ())


def test_a_group_that_begins_at_the_end(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(10))
    argv = ("consume", topic, "--group", f"{topic}.g", "--format", "json")
    assert queue.run(*argv, "--from", "latest").out == ""
    queue.put(topic, ["new"])
    (row,) = queue.run(*argv).out.splitlines()
    assert json.loads(row)["value"] == "new"


def test_what_cannot_be_consumed(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    for argv, complaint in (
        (["--from", "yesterday"], "is not a position in a topic"),
        (["--max", "0"], "--max 0"),
        (["--group", "g", "--partition", "0"], "a group consumes all partitions"),
        (["--group", "g", "--from", "5"], f"'pymq group reset g {topic} --to 5' changes them"),
        (["--partition", "seven"], "no partition 'seven'"),
    ):
        assert complaint in queue.fails("consume", topic, *argv)["message"]


def test_an_unknown_topic_is_not_consumed(queue: Queue, topic: str) -> None:
    assert queue.fails("consume", topic)["code"] == "UNKNOWN_TOPIC"


def test_offsets_without_a_record_are_passed(remote: Queue, topic: str) -> None:
    """If pymq itself uses the last offsets of a partition, reading still reaches its end."""
    remote.run("topic", "create", topic, "--acks", "raft", "--replicas", 3)
    (only,) = remote.put(topic, ["only"])
    remote.run("cluster", "reassign", topic, 0, "broker-1", "broker-2")
    assert remote.json("topic", "describe", topic)["partitions"][0]["high_watermark"] > only + 1
    assert remote.run("consume", topic, "--format", "value").out == "only\n"
    assert remote.run("consume", topic, "--from", only + 1).out == ""
    group = ("consume", topic, "--group", f"{topic}.g", "--format", "value")
    assert remote.run(*group).out == "only\n"


# --- as processes -------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(*argv: str, **settings: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*PYMQ, *argv], stdin=pipe, stdout=pipe, stderr=pipe, env=environment() | settings
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_the_group(remote: Queue, topic: str, number: int) -> None:
    """After an interrupt the command leaves the group at once, without waiting for its session to
    end.

    Printed records are acknowledged.
    """
    remote.run("topic", "create", topic)
    remote.put(topic, ["first"])
    group = f"{topic}.g"
    argv = ["consume", topic, "--group", group, "--follow", "--format", "value"]
    with start(*argv, "--url", remote.url) as process, remote.open() as mq:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
        found = mq.describe_group(group)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert (found.members, found.committed[topic, "0"]) == ((), 1)


def test_following_shows_what_comes(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic, "--partitions", 2)
    argv = ["consume", topic, "--follow", "--format", "value", "--max", "3"]
    with start(*argv, "--url", remote.url) as process:
        for n in range(3):
            remote.put(topic, [n], str(n % 2))
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, sorted(out.split()), err) == (0, [b"0", b"1", b"2"], b"")


def test_what_is_typed_is_sent_at_once(remote: Queue, topic: str) -> None:
    """Each typed line is sent at once.

    An interrupt ends the command, and the sent lines are written.
    """
    remote.run("topic", "create", topic)
    with (
        start("produce", topic, "--url", remote.url) as process,
        pymq.open(remote.url) as mq,
        mq.consumer(topic, mode="psb") as consumer,
    ):
        assert process.stdin is not None
        for line in (b"one", b"two"):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert [record.value for record in consumer.poll(1, timeout=WAIT_S)] == [line]
        process.stdin.write(b"half a li")
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 130
        assert out.startswith(b"2 records, 6 B, into ")
        assert err == b"error: interrupted; all records sent before are written (INTERRUPTED)\n"
        assert mq.describe_topic(topic).partitions[0].end_offset == 2


@pytest.mark.parametrize(
    ("argv", "closed", "code", "told"),
    [
        (["produce", "t"], "<&-", 2, "standard input is closed"),
        (["topic", "delete", "t"], "<&-", 2, "give --yes if there is no terminal"),
        (["consume", "t"], ">&-", 2, "standard output is closed"),
        (["topic", "list"], ">&-", 0, ""),
    ],
)
def test_what_the_shell_has_closed(
    argv: list[str], closed: str, code: int, told: str, tmp_path: Path
) -> None:
    with pymq.open(tmp_path / "data") as mq:
        mq.create_topic("t")
    command = shlex.join([*PYMQ, *argv, "--url", str(tmp_path / "data")])
    found = subprocess.run(
        ["sh", "-c", f"exec {command} {closed}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(),
    )
    assert (found.returncode, found.stdout) == (code, "")
    assert told in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.count("error: ") == (code != 0)


def test_who_types_sees_no_bar(tmp_path: Path) -> None:
    """On a terminal the command shows only the typed lines, and the result at the end."""
    with pymq.open(tmp_path / "data") as mq:
        mq.create_topic("t")
    ours, theirs = os.openpty()
    command = [*PYMQ, "produce", "t", "--url", str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()):
        os.close(theirs)
        shown = b""
        while b"\n" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"hello\n\x04")
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:
            pass  # Linux reports this error when the other side is closed.
    os.close(ours)
    lines = shown.decode().splitlines()
    assert lines[:2] == ["one record per line; Ctrl-D ends the input", "hello"]
    assert lines[2].startswith("1 record, 5 B, into t in ")
    assert len(lines) == 4


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_acknowledges_no_more(
    unbuffered: str, tmp_path: Path
) -> None:
    """After ``pymq consume --group g | head -1`` the group gets all other records later."""
    folder = str(tmp_path / "data")
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"x" * 10_000] * 300).wait(WAIT_S)
    with start(
        *("consume", "t", "--group", "g", "--url", folder), PYTHONUNBUFFERED=unbuffered
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    # A pipe holds less than the command prints at a time, so no reader can have got all of it.
    with pymq.open(folder) as mq, mq.consumer("t", group="g") as consumer:
        assert polled(consumer, 1)[0].offset == 0


def test_what_nobody_reads_is_not_acknowledged(tmp_path: Path) -> None:
    """Unread records are not acknowledged, even if the output is so small that it stays in a
    buffer.
    """
    folder = str(tmp_path / "data")
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"x"] * 3).wait(WAIT_S)
    reads, writes = os.pipe()
    os.close(reads)
    command = [*PYMQ, "consume", "t", "--group", "g", "--url", folder]
    settings = environment() | {"PYTHONUNBUFFERED": ""}
    try:
        assert (
            subprocess.run(
                command, check=False, stdout=writes, env=settings, timeout=WAIT_S
            ).returncode
            == 0
        )
    finally:
        os.close(writes)
    with pymq.open(folder) as mq, mq.consumer("t", group="g") as consumer:
        assert polled(consumer, 1)[0].offset == 0


def test_what_a_terminal_is_shown() -> None:
    assert printable("ä\t\x7f\x9b".encode()) == "ä\\t\\x7f\\x9b"
    assert printable(b"\xff\x1b") == "\\xff\\x1b"
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."
