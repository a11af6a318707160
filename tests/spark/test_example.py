"""The example: flights through Spark, killed at random, and each counted once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pymq
from examples.spark_check import Hour, difference, direct
from pymq.cli.commands.demo.flights import data_folder, read_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "spark_pipeline.py"


def test_spark_counts_as_we_do(folder: str, load: Callable[..., DataFrame]) -> None:
    """The query's computation, without its stream, equals the plain count."""
    from examples.spark_query import hours

    flights = read_flights(data_folder())[:5000]
    with pymq.open(folder) as mq, mq.producer() as producer:
        mq.create_topic("flights", partitions=4)
        producer.send_many("flights", [flight.to_json() for flight in flights]).result()
    rows = hours(load(folder, subscribe="flights")).collect()
    found = [Hour.read(row.value) for row in rows]
    assert {row.key for row in rows} == {hour.origin for hour in found}
    assert difference(found, direct(flights)) == ""
    assert "1 hours are missing" in difference(found[1:], direct(flights))
    assert "1 are there twice" in difference([*found, found[0]], direct(flights))


class AtOnce(random.Random):
    """A source of random numbers that makes every wait zero."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.mark.parametrize("seed", range(8))
def test_a_query_that_has_counted_all_is_killed_as_often_as_was_asked_for(seed: int) -> None:
    """A fast query does not end before its last kill."""
    from examples.spark_pipeline import Position, Reaper

    reaper, at = Reaper(3, 10, AtOnce(seed)), Position(9, 10, 1000)
    for done in range(3):
        assert not reaper.is_done
        reaper.begin(at)
        assert not reaper.strikes(at, has_all=True)
        assert reaper.strikes(at, has_all=True)
        assert reaper.done == done + 1
    reaper.begin(at)
    assert reaper.is_done
    assert not reaper.strikes(at, has_all=True)


@pytest.mark.slow  # each life of the query starts a Spark of its own
@pytest.mark.timeout(900)
def test_a_query_that_is_killed_once(java: None, tmp_path: Path) -> None:
    said = run(tmp_path, "--quick", "2000", "--kills", "1")
    assert "1 kills" in said
    assert "flights, each once" in said
    assert (tmp_path / "spark-data.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_year_and_twenty_kills(java: None, tmp_path: Path) -> None:
    said = run(tmp_path, "--kills", "20")
    assert "20 kills" in said
    assert "336,776 flights, each once" in said
    again = run(tmp_path, "--kills", "0")  # in the same folder: nothing is counted again
    assert "336,776 flights, each once" in again


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    log = folder / "spark-data" / "spark.log"
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr + tail
    return done.stdout
