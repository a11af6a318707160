"""A Spark in this process, and the same rows for all sides.

At every scale but a tiny one all sides have as many rows as in a long run, and a warm JVM, so that
the work is measured and not the JVM's compiler (decision 115).
"""

from __future__ import annotations

import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.model import Job, Needs, Stopwatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NEEDS = Needs(("pyspark", "pyarrow", "pandas"), ("java",))
OURS = Needs((*NEEDS.modules, "zmq"), NEEDS.programs)
KAFKA = Needs((*NEEDS.modules, "confluent_kafka"), NEEDS.programs, ("kafka", "spark-kafka"))
FILES = 4  # as many files as partitions: two for each slot
KEYS = 100_000
VALUE_BYTES = 100
PATIENCE = 4  # times that of other parts: a JVM starts slowly on a busy machine
TRIES = 4
WARM = 4  # warm-up runs before a measurement, in which the JVM compiles
MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBased"


@contextmanager
def session(folder: Path, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """Start Spark with two slots and the settings of docs/spark.md, Sizing, for all sides alike;
    *jars* are additional ones.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    import pymq.spark

    settings = {
        "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.jars": ",".join(map(str, jars)),
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": f"{MANAGER}CheckpointFileManager",
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, setting in settings.items():
        builder = builder.config(name, setting)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    pymq.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def passes(job: Job) -> tuple[int, int]:
    """Return how often each work is run: for the warm-up, and then measured."""
    return job.pick(tiny=1, default=WARM), job.pick(tiny=1, default=3, long=5)


def rate(job: Job, count: int, work: Callable[[], float | None]) -> float:
    """Return the median of *count* rows per second; *work* may return its own time.

    A JVM first interprets code, and then compiles code that runs often. Until then, for some
    millions of rows, it has a third of its final rate, and most of any side's time would be the
    JVM's. Each side therefore gets the same warm-up, even if a side does not need one.
    """
    warm, measured = passes(job)
    found = []
    for _ in range(warm + measured):
        with Stopwatch() as watch:
            said = work()
        found.append(count / (watch.seconds if said is None else said))
    return statistics.median(found[warm:])


def took(sink: DataStreamWriter) -> float:
    """Run a query until it ends; return the seconds of its batches that had rows."""
    for left in reversed(range(TRIES)):
        query = sink.start()
        try:
            query.awaitTermination()
        except Exception as error:
            if not left or "failed to connect back" not in str(error):
                # a failure here means that a Python process took more than the ten seconds that
                # Spark allows for its start
                raise
        else:
            break
    batches = [each for each in query.recentProgress if each.numInputRows]
    return float(sum(each.durationMs["triggerExecution"] for each in batches)) / 1000


def table(first: int, count: int) -> pa.Table:
    """Return rows from number *first* on, in the columns of pymq's source."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(first)
    offsets = np.arange(first, first + count, dtype=np.int64)
    keys = np.char.zfill((offsets % KEYS).astype("U8"), 8).astype("S8")
    return pa.table(
        {
            "key": _fixed(keys.tobytes(), 8),
            "value": _fixed(rng.bytes(count * VALUE_BYTES), VALUE_BYTES),
            "topic": pa.array(["rows"]).take(pa.array(np.zeros(count, np.int32))),
            "partition": pa.array(["0"]).take(pa.array(np.zeros(count, np.int32))),
            "offset": pa.array(offsets),
            "timestamp": pa.array(1_700_000_000_000_000 + offsets, pa.timestamp("us", "UTC")),
        }
    )


def _fixed(data: bytes, size: int) -> Any:
    """Return byte strings of one length."""
    import pyarrow as pa

    rows = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), len(data) // size, [None, pa.py_buffer(data)]
    )
    return rows.cast(pa.binary())
