"""Python processes of Spark: kept clients, cached checks and quick answers."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pyarrow as pa

import pymq
from pymq.nodes.embedded import METADATA
from pymq.spark import process
from pymq.spark.log.folder_log import FolderLog, is_settled, metadata_state
from pymq.spark.options import sink_options
from pymq.spark.write.produce import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = sink_options({"url": "zmq+tcp://127.0.0.1:1"})
needs_linux = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"), reason="only Linux can be told to acknowledge at once"
)


def become_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = find_spec(process.DAEMON)
    assert main.__spec__ is not None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(process, "_caches", {})


def test_only_a_process_of_sparks_daemon_stops_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    process.settle()
    assert gc.get_freeze_count() == 0
    become_a_worker(monkeypatch)
    try:
        process.settle()
        count = gc.get_freeze_count()
        assert count > 10_000
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated] # they stay empty
        process.settle()
        assert gc.get_freeze_count() <= count
        assert len(kept) == 1000
    finally:
        gc.unfreeze()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_has_one_client_of_a_cluster_and_its_fork_another() -> None:
    """Later tasks in the same process use the connection of the first one."""
    found = process.client(OPTIONS.url)
    try:
        assert process.client(OPTIONS.url) is found
        child = os.fork()
        if not child:  # pragma: no cover
            code = 1
            try:
                own = process.client(OPTIONS.url)
                code = 0 if own is not found and process.client(OPTIONS.url) is own else 2
                own.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        found.close()
    another = process.client(OPTIONS.url)
    another.close()
    assert another is not found


@needs_linux
def test_only_a_process_of_sparks_daemon_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> tuple[int, int]:
        return (
            server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            server.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK),
        )

    task = pickle.dumps(Work(OPTIONS, "a", 3))
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()):
        server, _ = listener.accept()
        with server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            assert pickle.loads(task) == Work(OPTIONS, "a", 3)
            assert state() == (0, 0)
            become_a_worker(monkeypatch)
            assert pickle.loads(task) == Work(OPTIONS, "a", 3)
            assert state() == (1, 1)


@pytest.mark.spark
@needs_linux
def test_tasks_run_in_processes_of_that_daemon(spark: SparkSession) -> None:
    work = Work(OPTIONS, None)

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pymq.spark.process import connections, is_daemons

        for _ in batches:
            assert work.job is None  # The job was pickled with the function.
            with connections() as found:
                sent = {s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in found}
            yield pa.RecordBatch.from_pydict({"there": [is_daemons()], "prompt": [sent == {1}]})

    (found,) = spark.range(1).mapInArrow(ask, "there boolean, prompt boolean").collect()
    assert found.there
    assert found.prompt


def test_a_folder_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    with pymq.open(str(folder)) as mq:
        mq.create_topic("old")
    log, path = FolderLog(str(folder)), str(folder / METADATA)
    log.look()
    assert log.topics() == ["old"]
    long_ago = time.time_ns() - 10 * 60 * 1_000_000_000
    for name in (path, path + "-wal"):
        if os.path.exists(name):
            os.utime(name, ns=(long_ago, long_ago))
    log.look()
    first = log._tree()
    log.look()
    assert log._tree() is first  # The folder has not changed for a long time.
    with pymq.open(str(folder)) as mq:
        mq.create_topic("new")
        log.look()
        assert log.topics() == ["new", "old"]
        # After a recent change the folder may change again without a change of its times.
        assert not is_settled(metadata_state(path), time.time_ns())
        mq.delete_topic("old")
        log.look()
        assert log.topics() == ["new"]
