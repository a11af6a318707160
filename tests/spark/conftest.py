"""One Spark for all tests; without Java they are skipped with a message."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pymq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parents[2]
MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBased"
TRIES, TOO_SLOW = 4, "failed to connect back"  # Spark waits ten seconds, which cannot be changed
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # this halves the start time
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": f"{MANAGER}CheckpointFileManager",
}


@pytest.fixture(scope="session")
def java() -> None:
    """Check that Spark can be started."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")
    if shutil.which("java") is None:
        pytest.skip("there is no java: Spark needs Java 17 (openjdk-17-jre-headless)")


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a session with two slots, in which a task may fail twice; the last test stops it."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    import pymq.spark

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,3]").config("spark.local.dir", str(folder))
    for name, setting in SETTINGS.items():
        builder = builder.config(name, setting)
    session = builder.config("spark.sql.warehouse.dir", str(folder / "tables")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    pymq.spark.register(session)
    session.range(1).count()
    try:
        yield session
    finally:
        _stop(session)


def _stop(session: SparkSession) -> None:
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(30)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return the folder of an embedded queue."""
    return str(tmp_path / "queue")


@pytest.fixture
def checkpoint() -> Iterator[str]:
    """Return the checkpoint folder of a query; in memory where possible."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="pymq-spark-") as found:
        yield found


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """Read a table: ``load(url, subscribe="orders")``."""

    def load(url: str, *, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("pymq").options(url=url, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, checkpoint: str) -> Callable[..., list[list[Any]]]:
    """Run a query until it has read everything; returns the rows of each batch."""

    def stream(url: str, **options: Any) -> list[list[Any]]:
        batches: list[list[Any]] = []
        source = spark.readStream.format("pymq").options(url=url, **options).load()

        def take(frame: DataFrame, number: int) -> None:
            batches.append(frame.collect())

        writer = source.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        run(writer.trigger(availableNow=True))
        return batches

    return stream


def run(writer: DataStreamWriter) -> None:
    """Run a query to its end; on a busy machine its Python may take longer than Spark waits."""
    for left in reversed(range(TRIES)):
        query = writer.start()
        try:
            query.awaitTermination()
        except Exception as error:
            if not left or TOO_SLOW not in str(error):
                raise
        else:
            return


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that keeps running; returns once it has read everything."""
    for left in reversed(range(TRIES)):
        query = writer.start()
        try:
            query.processAllAvailable()
        except Exception as error:
            if not left or TOO_SLOW not in str(error):
                raise
        else:
            break
    return query


def fill(client: pymq.Client, topic: str, count: int, *, start: int = 0, **more: Any) -> None:
    """Send the numbers from *start* on, as text of one length, to a topic that may exist."""
    with client.producer() as producer:
        producer.send_many(
            topic, [b"%08d" % number for number in range(start, start + count)], **more
        ).result()
