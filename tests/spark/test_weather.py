"""The example: flights joined with weather as streams, kept as a table, and killed at random."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pymq
from examples import weather_pipeline as pipeline
from pymq.cli.commands.demo.flights import data_folder, read_flights
from pymq.spark import table_view
from pymq.table.schema import parse_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_spark_joins_as_we_do(
    spark: SparkSession, folder: str, tmp_path: Path, load: Callable[..., DataFrame]
) -> None:
    """The query's join, without its streams, equals a plain join; and Spark reads a table view."""
    from examples.weather_query import enriched

    flights = read_flights(data_folder())[:1000]
    hours = pipeline.read_weather(data_folder(), flights[-1].timestamp_ms)
    with pymq.open(folder) as mq:
        pipeline.send(mq, flights, hours)
        with table_view(
            "flights", str(tmp_path / "table"), url=mq, schema="id long, carrier string"
        ) as view:
            view.sync()
    rows = enriched(load(folder, subscribe="flights"), load(folder, subscribe="weather")).collect()
    found = pa.Table.from_pylist(
        [json.loads(row.value) for row in rows],
        schema=parse_columns(pipeline.COLUMNS),
    )
    found = found.filter(pc.field("id") >= 0)  # the record that ends the year
    assert pipeline.compare(found, flights, hours) == ""
    assert "is missing" in pipeline.compare(found.slice(1), flights, hours)
    twice = pa.concat_tables([found, found.slice(0, 1)])
    assert "is there twice" in pipeline.compare(twice, flights, hours)
    assert "is missing or has not its weather" in pipeline.compare(found, flights, {})
    table = spark.read.parquet(str(tmp_path / "table"))
    (row,) = table.where("partition = '1' and offset = 4").collect()
    assert (row.id, row.carrier) == (9, flights[9].carrier)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_pipeline_that_is_killed_twice(java: None, tmp_path: Path) -> None:
    said = run(tmp_path, "--quick", "4000", "--kills", "2", "--format", "delta")
    assert "4,000 flights, each once, with its weather; 2 kills" in said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_year_and_twenty_kills(java: None, tmp_path: Path) -> None:
    said = run(tmp_path, "--kills", "20")
    assert "336,776 flights, each once, with its weather; 20 kills" in said


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "examples.weather_pipeline", "--dir", str(folder / "data")]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    log = folder / "data" / "query.log"
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr + tail
    return done.stdout
