"""A table has each record once, whenever the process that keeps it is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.errors import StoreLocked
from pymq.table.view import table_view
from tests.table.reading import FORMATS, log, read, rows

ROOT = Path(__file__).resolve().parents[2]


def die(tmp_path: Path, format: str, *arguments: str) -> int:
    """Keep a table in processes that are killed; return the number of killed ones."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(format, "pyarrow"))
    queue = str(tmp_path / "queue")
    with pymq.open(queue) as mq:
        mq.create_topic("numbers", partitions=2)
    command = [sys.executable, "-m", "tests.table.dying", queue, str(tmp_path / "table"), format]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["killed"])


# strides that spread the deaths over the steps of a commit and a compaction
@pytest.mark.parametrize(
    ("format", "kills", "stride"),
    [
        ("parquet", 8, 15),
        ("delta", 4, 60),
        pytest.param("iceberg", 2, 9000, marks=pytest.mark.slow),
    ],
)
def test_killed_within_commits(tmp_path: Path, format: str, kills: int, stride: int) -> None:
    """Processes die before or after calls of each commit; each new process first checks the
    table.
    """
    killed = die(tmp_path, format, "--kills", str(kills), "--stride", str(stride))
    assert killed == kills


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("format", "stride"), [("parquet", 1), ("delta", 5), ("iceberg", 397)])
def test_killed_at_each_step(tmp_path: Path, format: str, stride: int) -> None:
    """Processes die at each step of a commit, from the first to the last, until a process
    survives.
    """
    killed = die(tmp_path, format, "--kills", "1000", "--stride", str(stride), "--heals")
    assert killed >= 40


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_times(tmp_path: Path, format: str, seed: int) -> None:
    """Processes die at random times, in any thread and also in C code."""
    more = ("--kills", "20", "--random-us", "60000", "--seed", str(seed))
    assert die(tmp_path, format, *more) == 20


@pytest.mark.parametrize("format", FORMATS)
def test_two_processes_do_not_keep_one_table(tmp_path: Path, format: Any) -> None:
    """The overtaken process is refused, and no record is twice in the table."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(format, "pyarrow"))
    location = str(tmp_path / "table")
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("numbers")
        producer.send_many("numbers", [b"1", b"2"]).result()
        with (
            table_view("numbers", location, format, url=mq) as one,
            table_view("numbers", location, format, url=mq) as other,
        ):
            one.sync()
            if format == "parquet":
                with pytest.raises(StoreLocked, match="another process keeps"):
                    other.sync()
            else:
                other.sync()
                producer.send_many("numbers", [b"3", b"4"]).result()
                other.sync()
                with pytest.raises(StoreLocked, match="another process"):
                    one.sync()
        with table_view("numbers", location, format, url=mq) as again:
            again.sync()
        found = rows(read(location, format), "partition", "offset", "value")
        assert found == [(each.partition, each.offset, each.value) for each in log(mq, "numbers")]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_two_processes_begin_one_table(tmp_path: Path, format: Any) -> None:
    """Both processes have opened the table before the first commit."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[format])
    location = str(tmp_path / "table")
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("numbers")
        with (
            table_view("numbers", location, format, url=mq) as one,
            table_view("numbers", location, format, url=mq) as other,
        ):
            one.sync()  # The topic has no records yet.
            other.sync()
            producer.send("numbers", b"1").result()
            one.sync()
            with pytest.raises(StoreLocked):
                other.sync()
            producer.send("numbers", b"2").result()
            other.sync()  # This process has started again, at the table's end.
        assert rows(read(location, format), "offset", "value") == [(0, b"1"), (1, b"2")]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_writer_that_is_overtaken_within_its_commit_is_refused(
    tmp_path: Path, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process commits between this writer's check of the positions and its commit."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[format])
    location = str(tmp_path / "table")
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("numbers")
        producer.send("numbers", b"1").result()
        with (
            table_view("numbers", location, format, url=mq) as one,
            table_view("numbers", location, format, url=mq) as other,
        ):
            one.sync()
            other.sync()
            producer.send("numbers", b"2").result()
            module = sys.modules[f"pymq.table.format.{format}"]
            conform = module.conform

            def overtake(*args: Any) -> Any:
                monkeypatch.setattr(module, "conform", conform)
                other.sync()
                return conform(*args)

            monkeypatch.setattr(module, "conform", overtake)
            with pytest.raises(StoreLocked):
                one.sync()
        found = rows(read(location, format), "offset", "value")
        assert found == [(0, b"1"), (1, b"2")]
