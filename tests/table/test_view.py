"""The content of a topic's table."""

from __future__ import annotations

import datetime
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pymq
import pymq.spark
from pymq.errors import (
    ConfigError,
    OffsetOutOfRange,
    SchemaIncompatible,
    StoreError,
    UnknownTopic,
)
from pymq.table.view import table_view
from tests.table.reading import FORMATS, log, read, rows

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg", "parquet": "pyarrow"}


@attrs.frozen
class Order:
    item: str
    count: int


@attrs.frozen
class OrderWithPrice:
    item: str
    count: int
    price: float | None = None
    at: datetime.datetime | None = None
    tags: list[str] = attrs.Factory(list)


@attrs.frozen
class OrderWithTextCount:
    item: str
    count: str


@attrs.frozen
class Inner:
    a: int
    b: str


@attrs.frozen
class InnerLater:
    a: int
    c: float


@attrs.frozen
class Nested:
    one: Inner
    many: list[Inner]


@attrs.frozen
class NestedLater:
    one: InnerLater
    many: list[InnerLater]


def sync(topic: str, location: Path, format: Any, mq: pymq.Client, **more: Any) -> Any:
    with table_view(topic, str(location), format, url=mq, **more) as view:
        return view.sync()


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def test_bytes_keys_headers_and_tombstones(tmp_path: Path, format: Any) -> None:
    """The table of a topic without a schema has the bytes; a tombstone has no value."""
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders", partitions=["a", "b"])
        producer.send("orders", b"tea", partition="a", timestamp_ms=1_700_000_000_001).result()
        producer.send("orders", b"", key=b"k", partition="b", headers=[("h", b"1")]).result()
        dead = [("pymq.tombstone", b"")]
        producer.send("orders", b"", key=b"k", partition="b", headers=dead).result()
        sync("orders", tmp_path / "t", format, mq, headers=True)
        found = read(str(tmp_path / "t"), format)
        assert rows(found, "topic", "partition", "offset", "key", "value", "tombstone") == [
            ("orders", "a", 0, None, b"tea", False),
            ("orders", "b", 0, b"k", b"", False),
            ("orders", "b", 1, b"k", None, True),
        ]
        times = rows(found, "timestamp")
        assert times[0][0] == datetime.datetime.fromtimestamp(1_700_000_000.001, datetime.UTC)
        assert [pairs for (pairs,) in rows(found, "headers")][1:] == [
            [{"key": "h", "value": b"1"}],
            [{"key": "pymq.tombstone", "value": b""}],
        ]


def test_typed_columns_follow_the_registry(tmp_path: Path, format: Any) -> None:
    """A later schema adds columns, in which earlier rows have null; no record is left out."""
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        with mq.topic("orders", Order, compatibility="backward") as orders:
            orders.send(Order("tea", 2))
        with table_view("orders", str(tmp_path / "t"), format, url=mq) as view:
            view.sync()
            at = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
            with mq.topic("orders", OrderWithPrice, compatibility="backward") as orders:
                orders.send(OrderWithPrice("milk", 3, 1.5, at, ["cold"]))
            producer.send("orders", b"no order").result()
            progress = view.sync()
        assert (progress.rows, progress.undecoded) == (3, 1)
        found = read(str(tmp_path / "t"), format) if format != "parquet" else merged(tmp_path / "t")
        assert rows(found, "offset", "item", "count", "price", "at", "tags", "undecoded") == [
            (0, "tea", 2, None, None, None, None),
            (1, "milk", 3, 1.5, at, ["cold"], None),
            (2, None, None, None, None, None, b"no order"),
        ]


def merged(location: Path) -> pa.Table:
    """Read files with several schemas, as Spark's ``mergeSchema`` does."""
    return pa.concat_tables(
        [pq.read_table(path) for path in sorted(location.glob("*.parquet"))],
        promote_options="default",
    )


def test_a_column_never_changes_its_type(tmp_path: Path, format: Any) -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with mq.topic("orders", Order, compatibility="none") as orders:
            orders.send(Order("tea", 2))
        sync("orders", tmp_path / "t", format, mq)
        with mq.topic("orders", OrderWithTextCount, compatibility="none") as orders:
            orders.send(OrderWithTextCount("tea", "2"))
        with table_view("orders", str(tmp_path / "t"), format, url=mq) as view:
            for _ in range(2):  # The second run begins where the table ends.
                with pytest.raises(SchemaIncompatible, match="column 'count' was int64"):
                    view.sync()
        assert len(read(str(tmp_path / "t"), format)) == 1


def test_values_of_avro(tmp_path: Path, format: Any) -> None:
    """Each value is read with its own schema, also fields that a later schema lacks."""
    pytest.importorskip("fastavro")
    text, count = {"name": "item", "type": "string"}, {"name": "count", "type": "int"}
    old, long_count = {"name": "old", "type": "int", "default": 7}, {**count, "type": "long"}
    dates = {
        "name": "at",
        "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        "default": None,
    }
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        for fields, order in (
            ([text, count, old], {"item": "tea", "count": 2, "old": 1}),
            ([long_count, text, dates], {"item": "milk", "count": 1 << 40, "at": when}),
        ):
            schema = pymq.serde.Avro({"type": "record", "name": "Order", "fields": fields})
            with mq.topic("orders", dict, schema, compatibility="backward") as orders:
                orders.send(order)
        sync("orders", tmp_path / "t", format, mq)
        found = read(str(tmp_path / "t"), format)
        assert rows(found, "item", "count", "old", "at") == [
            ("tea", 2, 1, None),
            ("milk", 1 << 40, None, when),
        ]


def test_small_files_are_merged(tmp_path: Path, format: Any) -> None:
    """Small files are merged, also those with different schemas, and the rows stay the same."""
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders", partitions=2)
        with table_view(
            "orders", str(tmp_path / "t"), format, url=mq, schema="n long", compact_files=4
        ) as view:
            for number in range(7):
                values = [b'{"n":%d}' % (10 * number + each) for each in range(10)]
                producer.send_many("orders", values, keys=values).result()
                view.sync()
            progress = view.progress()
        assert (progress.rows, progress.commits) == (70, 7)
        assert progress.compactions in (1, 2)
        found = read(str(tmp_path / "t"), format)
        assert rows(found, "partition", "offset", "key") == [
            (each.partition, each.offset, each.value) for each in log(mq, "orders")
        ]
        if format == "parquet":
            assert len(list((tmp_path / "t").glob("*.parquet"))) <= 4


def test_a_later_schema_adds_fields_inside_of_objects_and_lists(
    tmp_path: Path, format: Any
) -> None:
    """Fields that only an earlier schema has stay."""
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with table_view("orders", str(tmp_path / "t"), format, url=mq, schema="raw") as raw:
            raw.sync()
        for kind, order in (
            (Nested, Nested(Inner(1, "x"), [Inner(2, "y")])),
            (NestedLater, NestedLater(InnerLater(3, 0.5), [InnerLater(4, 1.5)])),
        ):
            with mq.topic("orders", kind, compatibility="none") as orders:
                orders.send(order)
            sync("orders", tmp_path / "u u", format, mq)
        found = read(str(tmp_path / "u u"), format) if format != "parquet" else None
        if found is None:
            sync("orders", tmp_path / "v", format, mq)
            found = read(str(tmp_path / "v"), format)
        (first, first_list), (second, second_list) = rows(found, "one", "many")
        assert (first["a"], first["b"], first["c"]) == (1, "x", None)
        assert (second["a"], second["b"], second["c"]) == (3, None, 0.5)
        assert [(each["a"], each["b"], each["c"]) for each in first_list] == [(2, "y", None)]
        assert [(each["a"], each["b"], each["c"]) for each in second_list] == [(4, None, 1.5)]


def test_partitions_that_are_added_are_read(tmp_path: Path) -> None:
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        producer.send("orders", b"1", partition="0").result()
        sync("orders", tmp_path / "t", "parquet", mq)
        mq.create_partition("orders", "more")
        producer.send("orders", b"2", partition="more").result()
        sync("orders", tmp_path / "t", "parquet", mq)
        found = read(str(tmp_path / "t"), "parquet")
        assert rows(found, "partition", "value") == [("0", b"1"), ("more", b"2")]


def test_records_that_retention_has_removed(tmp_path: Path) -> None:
    """The view raises an error, or continues behind the removed records."""
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders", block_bytes=4096, retention_bytes=8192)
        producer.send("orders", b"first").result()
        sync("orders", tmp_path / "t", "parquet", mq)
        while not mq.describe_topic("orders").partitions[0].start_offset:
            producer.send_many("orders", [b"x" * 500] * 40).result()
        with pytest.raises(OffsetOutOfRange, match="retention has removed records"):
            sync("orders", tmp_path / "t", "parquet", mq)
        sync("orders", tmp_path / "t", "parquet", mq, on_gap="continue")
        found = rows(read(str(tmp_path / "t"), "parquet"), "offset")
        wanted = [each.offset for each in log(mq, "orders")]
        assert [offset for (offset,) in found] == [0, *wanted]


def test_a_topic_that_was_created_again(tmp_path: Path, format: Any) -> None:
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        producer.send("orders", b"1").result()
        sync("orders", tmp_path / "t", format, mq)
        mq.delete_topic("orders")
        mq.create_topic("orders")
        with pytest.raises(UnknownTopic, match="deleted and created again"):
            sync("orders", tmp_path / "t", format, mq)


def test_other_tables_and_other_options_are_refused(tmp_path: Path, format: Any) -> None:
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        mq.create_topic("others")
        producer.send("orders", b"{}").result()
        sync("orders", tmp_path / "t", format, mq)
        with pytest.raises(ConfigError, match="the table is of topic 'orders'"):
            sync("others", tmp_path / "t", format, mq)
        with pytest.raises(ConfigError, match="fixed when a table is created; it has raw values"):
            sync("orders", tmp_path / "t", format, mq, schema="n long")
        with pytest.raises(ConfigError, match="also a column of the table"):
            sync("orders", tmp_path / "u", format, mq, schema="Offset long")
        sync("orders", tmp_path / "u", format, mq, schema="Offset long", prefix="_")
        assert "_offset" in read(str(tmp_path / "u"), format).column_names


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine.parquet")
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with pytest.raises(StoreError, match=r"holds other files, as mine\.parquet"):
            sync("orders", tmp_path, "parquet", mq)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"format": "orc"}, "format 'orc' is not one of"),
        ({"on_gap": "ignore"}, "on_gap='ignore'"),
        ({"commit_bytes": 0}, "commit_bytes=0 must be at least 1"),
        ({"compact_files": 1}, "compact_files=1 must be at least 2"),
        ({"catalog": "c"}, "catalog= is for format='iceberg'"),
        ({"storage_options": {}}, "storage_options= is for format='delta'"),
        ({"schema": "a"}, "'a' is no name and type"),
        ({"schema": "a long, a long"}, "'a' is there twice"),
    ],
)
def test_options_are_checked(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        pymq.spark.table_view("orders", "nowhere", url="memory:", **more)


def test_the_command_ends_at_a_signal(tmp_path: Path) -> None:
    """The command prints the rows that each commit has added, and the total."""
    with pymq.open(tmp_path / "queue") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        producer.send_many("orders", [b"1", b"2", b"3"]).result()
    command = [
        sys.executable,
        "-u",
        "-m",
        "pymq",
        "table",
        "sync",
        str(tmp_path / "queue"),
        "orders",
    ]
    with subprocess.Popen(
        [*command, str(tmp_path / "table"), "--every", "1ms"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said += process.stdout.read()
    assert process.returncode == 0
    first, *_, last = said.splitlines()
    assert first.endswith("table: 3 new rows")
    assert last.endswith("table: 3 new rows in 1 commit")
    assert rows(read(str(tmp_path / "table"), "parquet"), "value") == [(b"1",), (b"2",), (b"3",)]


def test_it_runs_until_it_is_stopped(tmp_path: Path) -> None:
    """The view commits rows that are old enough, and the remaining rows when it stops."""
    committed = threading.Event()
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("orders")
        with table_view("orders", str(tmp_path), url=mq, commit_s=0.01) as view:
            worker = threading.Thread(
                target=view.run, args=(committed.is_set, lambda _: committed.set())
            )
            worker.start()
            producer.send("orders", b"1").result()
            worker.join(60)
        assert committed.is_set()
        assert rows(read(str(tmp_path), "parquet"), "value") == [(b"1",)]
