"""Opening, closing and reopening: the data that is kept or lost, and the parts that keep
running.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import pymq
from pymq.errors import Closed
from tests.acceptance.helpers import python, values


def send(mq: pymq.Client, *sent: bytes) -> None:
    with mq.producer(linger_ms=0) as producer:
        for value in sent:
            producer.send("t", value).result()


def test_memory_keeps_nothing() -> None:
    for url in ("memory:", ":memory:"):
        with pymq.open(url) as mq:
            assert mq.topics() == []
            mq.create_topic("t")
            send(mq, b"1")


def test_two_in_memory_know_nothing_of_each_other() -> None:
    with pymq.open("memory:") as first, pymq.open("memory:") as second:
        first.create_topic("t")
        assert second.topics() == []


@pytest.mark.parametrize("kind", ["path", "text", "slash", "file", "relative"])
def test_a_folder_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A folder keeps all records, whichever form its path has.

    Missing parent folders are created.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "some" / "where" / "deep"
    urls: dict[str, str | os.PathLike[str]] = {
        "path": folder,
        "text": str(folder),
        "slash": f"{folder}/",
        "file": f"file://{folder}",
        "relative": "some/where/deep",
    }
    with pymq.open(urls[kind]) as mq:
        mq.create_topic("t", retention_ms=1 << 40, acks="raft")
        monkeypatch.chdir("/")  # a relative path is resolved when the queue is opened
        send(mq, b"1", b"2")
        before = mq.describe_topic("t")
    with pymq.open(folder) as mq:
        assert values(mq, "t") == [b"1", b"2"]
        after = mq.describe_topic("t")
        assert after.config == before.config
        assert after.partitions[0].acks is pymq.AckMode.RAFT
        send(mq, b"3")
        assert values(mq, "t") == [b"1", b"2", b"3"]


def test_a_folder_with_spaces_and_umlauts(tmp_path: Path) -> None:
    folder = tmp_path / "Größe ☃ of it"
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        send(mq, b"1")
    with pymq.open(folder) as mq:
        assert values(mq, "t") == [b"1"]


def test_many_openings(tmp_path: Path) -> None:
    """Each opening adds a record, and each reads the records of all earlier openings."""
    for life in range(20):
        with pymq.open(tmp_path) as mq:
            mq.create_topic("t", exist_ok=True)
            assert len(values(mq, "t")) == life
            send(mq, b"%d" % life)


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """A closed queue leaves neither a file nor a thread open."""
    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with pymq.open(tmp_path) as mq:
            mq.create_topic("t", exist_ok=True, partitions=3)
            send(mq, b"1", b"2")
            values(mq, "t")
    assert len(os.listdir("/proc/self/fd")) == handles
    assert threading.active_count() == threads


def test_a_failed_opening_leaves_nothing(tmp_path: Path) -> None:
    """No lock and no file remains, so the next try can succeed."""
    pymq.open(tmp_path).close()
    database = tmp_path / "metadata.db"
    good = database.read_bytes()
    database.write_bytes(b"not a database, and long enough to be looked at" * 100)
    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with pytest.raises(pymq.errors.StoreError):
        pymq.open(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == handles
    assert threading.active_count() == threads
    database.write_bytes(good)
    pymq.open(tmp_path).close()


def test_opening_needs_no_thread() -> None:
    """Opening and requests need no thread.

    A background thread starts when work is due and no caller waits for it.
    """
    before = threading.active_count()
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        assert mq.topics() == ["t"]
        assert mq.describe_topic("t").partitions[0].end_offset == 0
        assert threading.active_count() == before
        with mq.producer() as producer:
            producer.send("t", b"").result()
    assert threading.active_count() == before


def test_the_client_closes_what_it_made() -> None:
    mq = pymq.open("memory:")
    mq.create_topic("t")
    producer = mq.producer(linger_ms=600_000)
    delivery = producer.send("t", b"1")
    consumer = mq.consumer("t", mode="psb")
    mq.close()
    assert delivery.done()
    assert delivery.result().offset == 0
    with pytest.raises(Closed):
        producer.send("t", b"")
    with pytest.raises(Closed):
        consumer.poll()


def test_closing_while_others_use_it() -> None:
    """Closing makes blocked calls raise Closed at once."""
    mq = pymq.open("memory:")
    mq.create_topic("t")
    ended: list[type[BaseException]] = []
    begun = threading.Barrier(4)

    def use(what: str) -> None:
        try:
            if what == "send":
                producer = mq.producer(linger_ms=1)
                begun.wait()
                while True:
                    producer.send("t", b"").result(timeout=10)
            elif what == "poll":
                consumer = mq.consumer("t", mode="psb", offset="end")
                begun.wait()
                while True:
                    consumer.poll(timeout=10)
            else:
                begun.wait()
                while True:
                    mq.topics()
        except BaseException as error:
            ended.append(type(error))

    threads = [threading.Thread(target=use, args=(what,)) for what in ("send", "poll", "ask")]
    for thread in threads:
        thread.start()
    begun.wait()
    mq.close()
    for thread in threads:
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert set(ended) == {Closed}


def test_closing_in_the_middle_of_an_error() -> None:
    """Closing during an error raises the first error."""

    def fail() -> None:
        with pymq.open("memory:") as mq:
            mq.create_topic("t")
            mq.producer().send("t", b"")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_closed_client_can_be_forgotten(tmp_path: Path) -> None:
    """At the interpreter's exit, an open client has no work left and prints nothing."""
    code = """
import sys, pymq
mq = pymq.open(sys.argv[1])
mq.close()
del mq
first = pymq.open(sys.argv[1])
second = pymq.open("memory:")
"""
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
