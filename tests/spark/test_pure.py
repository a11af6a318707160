"""Options, positions, ranges and columns, as far as they can be tested without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pymq.core.batch.compression import codec_number
from pymq.core.batch.kafka.batch import crc32c_function, serve, wrap
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import (
    ConfigError,
    InvalidRequest,
    InvalidTimestamp,
    RecordTooLarge,
    UnknownPartition,
)
from pymq.hash.partitioner import key_partition
from pymq.spark import columns, planning
from pymq.spark.options import OffsetPoint, sink_options, source_options
from pymq.spark.planning import Range
from pymq.spark.read.offsets import Position
from pymq.spark.read.progress import lag
from pymq.spark.read.subscription import Bounds, resolve
from pymq.spark.write.rows import Rows
from pymq.spark.write.sink import Staged, gather
from pymq.spark.write.staging import StagedPiece

URL = {"url": "zmq+tcp://127.0.0.1:1"}

# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"startingOffsets": "7"}, "startingOffsets"),
        ({"startingOffsets": '{"t": 7}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets"),
        ({"startingTimestamp": "soon"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition"),
        ({"maxTasks": "x"}, "maxTasks"),
        ({"fetchMaxBytes": "1"}, "fetchMaxBytes"),
        ({"requestTimeoutMs": "0"}, "requestTimeoutMs"),
        ({"includeHeaders": "1"}, "includeHeaders"),
        ({"subscribe": "a,,b"}, "subscribe"),
        ({"subscribePattern": "a"}, "subscribePattern"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "", "assign": "[]"}, "assign"),
        ({"subscribe": "", "assign": '{"t": []}'}, "assign"),
        ({"subscribe": "", "assign": "{}"}, "assign"),
        ({"path": "data"}, "path"),
        ({"pollTimeout": "1"}, "polltimeout"),
    ],
)
def test_what_is_wrong_with_a_sources_option(options: dict[str, str], name: str) -> None:
    given_ = {**URL, "subscribe": "t"} | options
    found = {option: text for option, text in given_.items() if text}
    with pytest.raises(ConfigError, match=f"'{name}'"):
        source_options(found, is_stream=False)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
        ({"endingOffsetsByTimestamp": '{"t": {"0": 5}}'}, "endingOffsetsByTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
    ],
)
def test_what_is_wrong_with_a_streams_option(options: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        source_options({**URL, "subscribe": "t"} | options, is_stream=True)


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("kind", ["Offsets", "OffsetsByTimestamp"])
def test_a_partition_that_is_not_read_is_told_with_its_option(kind: str, *, ending: bool) -> None:
    """The error names the option of the missing partition, for times and for offsets."""
    name = f"{'ending' if ending else 'starting'}{kind}"
    found = {**URL, "subscribe": "t", name: '{"t": {"9": 1}}'}
    options = source_options(found, is_stream=False)
    bounds = Bounds({("t", "0"): 0}, {("t", "0"): 5}, {"t": "id"})
    where = options.ending if ending else options.starting
    nothing: Any = None  # The option is refused before the log is read.
    with pytest.raises(ConfigError, match=f"option '{name}' names partition t/9"):
        resolve(nothing, bounds, where, is_end=ending, options=options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"url": "data"}, "url"),
        ({"delivery": "twice"}, "delivery"),
        ({"txnAppId": "a"}, "txnVersion"),
        ({"txnVersion": "1"}, "txnAppId"),
        ({"txnAppId": "a", "txnVersion": "x"}, "txnVersion"),
        ({"txnAppId": "a", "txnVersion": "1", "sinkId": "b"}, "sinkId"),
        ({"sinkId": "a b"}, "sinkId"),
        ({"onOverwrite": "drop"}, "onOverwrite"),
        ({"ignoreExtraColumns": "1"}, "ignoreExtraColumns"),
        ({"subscribe": "t"}, "subscribe"),
    ],
)
def test_what_is_wrong_with_a_sinks_option(options: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        sink_options(URL | options)


def test_options_as_spark_hands_them_over() -> None:
    """Spark passes options in lower case and as text."""
    found = source_options(
        {**URL, "assign": '{"t": [0, "b"]}', "startingoffsets": '{"t": {"0": 5, "b": -2}}'},
        is_stream=True,
    )
    assert found.assigned == {"t": ("0", "b")}
    assert found.starting.of("t", "0") == OffsetPoint(5)
    assert found.starting.of("t", "c") == OffsetPoint(-1)
    assert found.fail_on_data_loss
    assert found.max_offsets is None


# --- positions ----------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b", "C"]), st.sampled_from(["0", "2", "10", "x", "X"])),
        st.integers(0, 1 << 60),
    ),
    st.randoms(),
)
def test_a_position_is_one_text(offsets: dict[tuple[str, str], int], random: Any) -> None:
    """Equal positions are equal JSON, and parse back."""
    ids = {topic: topic * 3 for topic, _ in offsets}
    items = list(offsets.items())
    random.shuffle(items)
    one, other = Position(ids, offsets), Position(ids, dict(items))
    text = json.dumps(one.to_json())
    assert text == json.dumps(other.to_json())
    assert Position.from_json(json.loads(text)) == one


@pytest.mark.parametrize("found", [{}, {"@": 1}, {"@": {}, "t": 1}, {"@": {}, "t": {"0": "x"}}])
def test_a_foreign_checkpoint(found: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="was it made by another source"):
        Position.from_json(found)


# --- ranges -------------------------------------------------------------------------------------

PLACES = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["0", "1", "2"]))


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    found = draw(st.dictionaries(PLACES, st.tuples(st.integers(0, 99), st.integers(1, 5000))))
    return [Range(*place, start, start + size) for place, (start, size) in found.items()]


def offsets(parts: list[Range]) -> list[tuple[str, str, int]]:
    return sorted(
        (part.topic, part.partition, n) for part in parts for n in range(part.start, part.end)
    )


@given(ranges(), st.none() | st.integers(1, 20), st.none() | st.integers(100, 3000))
def test_splitting_loses_nothing(
    given_: list[Range], at_least: int | None, longest: int | None
) -> None:
    parts = planning.split(given_, at_least=at_least, longest=longest)
    assert offsets(parts) == offsets(given_)
    assert all(part.size <= (longest or part.size) for part in parts)
    assert all(part.size > 0 for part in parts)


@given(ranges(), st.none() | st.integers(1, 5))
def test_packing_loses_nothing_and_is_level(given_: list[Range], most: int | None) -> None:
    tasks = planning.pack(given_, most)
    assert sorted(part for task in tasks for part in task) == sorted(given_)
    assert most is None or len(tasks) <= most
    sizes = [sum(part.size for part in task) for task in tasks]
    if tasks:
        assert max(sizes) <= min(sizes) + max(part.size for part in given_)


def test_long_partitions_are_read_in_more_tasks_than_there_are_slots() -> None:
    short = [Range("t", str(number), 0, 10) for number in range(7)]
    assert planning.enough(short, 2) == 2
    long = [Range("t", str(number), 0, planning.TASK_ROWS + 1) for number in range(7)]
    assert planning.enough(long, 2) == 8


@given(
    st.dictionaries(PLACES, st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.integers(1, 100),
)
@example({("a", "0"): (0, 4), ("a", "1"): (0, 1), ("b", "0"): (0, 1)}, 3)
def test_a_limit_is_kept_and_all_get_on(
    bounds: dict[tuple[str, str], tuple[int, int]], most: int
) -> None:
    start = {place: low for place, (low, _) in bounds.items()}
    end = {place: low + count for place, (low, count) in bounds.items()}
    found = planning.limit(start, end, most)
    taken = {place: found[place] - start[place] for place in found}
    waiting = [place for place in end if end[place] > start[place]]
    assert all(0 <= taken[place] <= end[place] - start[place] for place in end)
    assert sum(taken.values()) <= max(most, len(waiting))
    assert sum(taken.values()) >= min(most, sum(end[place] - start[place] for place in end))
    assert all(taken[place] for place in waiting)
    assert found == planning.limit(start, end, most)


def test_a_log_that_ends_too_early_does_not_move_back() -> None:
    assert planning.limit({("t", "0"): 10}, {("t", "0"): 7}, None) == {("t", "0"): 10}
    assert planning.limit({("t", "0"): 10}, {("t", "0"): 7}, 3) == {("t", "0"): 10}


# --- columns ------------------------------------------------------------------------------------

TEXT = st.binary(max_size=4)
EQUAL = st.binary(min_size=3, max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> EncodedBatch:
    """Return any batch that can be in a log, also a compacted or compressed one, or one of a Kafka
    client.
    """
    count = draw(st.integers(1, 12))

    def column(items: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(items, min_size=count, max_size=count))

    values = draw(st.sampled_from([TEXT, EQUAL, st.just(b""), st.binary(min_size=40, max_size=40)]))
    keys = draw(st.sampled_from([st.none() | TEXT, EQUAL]))
    pairs = st.lists(st.tuples(st.text(max_size=2), TEXT), max_size=2).map(tuple)
    batch = EncodedBatch.encode(
        draw(st.lists(values, min_size=count, max_size=count)),
        timestamp_ms=draw(st.integers(0, 1 << 40)),
        keys=column(keys),
        headers=column(pairs),
        timestamps=column(st.integers(0, 1 << 40)),
        codec=draw(st.sampled_from([0, codec_number("lz4"), codec_number("zstd")])),
    ).stamp(draw(st.integers(0, 1000)), 1, 0)
    if draw(st.booleans()):
        crc32c = crc32c_function()
        kafka = wrap(b"".join(serve(batch, crc32c)), crc32c, 0)
        batch = kafka.stamp(batch.base_offset, 1, 0)
    if draw(st.booleans()):
        kept = draw(st.lists(st.integers(0, count - 1), unique=True).map(sorted))
        batch = batch.keep(kept)
    return batch.at("t", "p")


@given(st.lists(batches(), min_size=1, max_size=3), st.integers(-2, 1015), st.integers(-2, 1015))
def test_arrow_columns_are_those_of_the_records(
    found: list[EncodedBatch], start: int, end: int
) -> None:
    """The conversion equals the simplest one, row by row."""
    names = list(columns.FIELDS)
    schema = columns.arrow_schema(columns.schema(has_headers=True))
    gathered, expected = columns.ArrowColumns(names, schema), []
    for batch in found:
        gathered.add(batch, start, end)
        expected += [
            (
                *(record.key, record.value, record.topic, record.partition, record.offset),
                record.timestamp_ms * 1000,
                [{"key": name, "value": item} for name, item in record.headers] or None,
            )
            for record in batch.records()
            if start <= record.offset < end
        ]
    if not gathered.count:
        assert not expected
        return
    taken = gathered.take()
    taken.validate(full=True)
    assert taken.schema == schema
    times = names.index("timestamp")
    taken = taken.set_column(times, "timestamp", taken["timestamp"].cast(pa.int64()))
    assert [tuple(row.values()) for row in taken.to_pylist()] == expected


# --- rows ---------------------------------------------------------------------------------------


def topic(name: str, *partitions: str, limit: int = 1 << 20) -> TopicMetadata:
    leaders = [
        PartitionLeader(each, index, AckMode.LEADER, 1, "b", None)
        for index, each in enumerate(partitions)
    ]
    return TopicMetadata(name, name, TopicConfig(max_record_bytes=limit), tuple(leaders))


def sort(
    columns: dict[str, Any], known: TopicMetadata, *, option: str | None = None, turn: int = 0
) -> list[tuple[str, str, bytes, bytes | None, int]]:
    rows = Rows({known.topic: known, "u": topic("u", "0")}.__getitem__, lambda: 77, option, turn)
    found = [*rows.add(pa.record_batch(columns)), *rows.finish()]
    return [
        (*place, record.value, record.key, record.timestamp_ms)
        for place, batch in found
        for record in batch.at(*place).records()
    ]


def test_rows_go_where_the_plain_client_puts_them() -> None:
    known = topic("t", "a", "b", "c")
    keys = [b"%d" % n if n % 4 else None for n in range(50)]
    found = sort({"value": [b"%d" % n for n in range(50)], "key": keys}, known, option="t", turn=4)
    assert len(found) == 50
    for _, partition, value, key, _ in found:
        assert key == keys[int(value)]
        assert partition == ("b" if key is None else "abc"[key_partition(key, 3)])
    # Within a partition the order does not change.
    for name in "abc":
        numbers = [int(value) for _, partition, value, _, _ in found if partition == name]
        assert numbers == sorted(numbers)


def test_rows_may_name_topic_partition_and_time() -> None:
    known = topic("t", "a", "b")
    table = {
        "value": ["x", "y", "z"],
        "topic": ["t", "u", "t"],
        "partition": pa.array([1, None, 0], pa.int32()),
        "timestamp": pa.array([5_000, None, 7_999], pa.timestamp("us", "UTC")),
    }
    assert sorted(sort(table, known)) == [
        ("t", "a", b"z", None, 7),
        ("t", "b", b"x", None, 5),
        ("u", "0", b"y", None, 77),
    ]
    named = {"value": ["x", "y"], "partition": ["b", "a"]}
    assert [row[1] for row in sort(named, known, option="t")] == ["a", "b"]


def test_a_time_that_the_topic_does_not_take_is_refused_by_the_task() -> None:
    """A task refuses a time that the topic would refuse, because the topic must accept every
    decided batch.
    """
    rows = Rows({"t": topic("t", "0")}.__getitem__, lambda: 7, "t")
    hour = 3_600_000
    for millis, is_refused in ((hour + 7, False), (hour + 8, True)):
        times = pa.array([None, millis * 1000], pa.timestamp("us", "UTC"))
        batch = pa.record_batch({"value": ["a", "b"], "timestamp": times})
        if is_refused:
            with pytest.raises(InvalidTimestamp, match="timestamp_after_max_ms=3600000"):
                list(rows.add(batch))
        else:
            list(rows.add(batch))


def test_a_header_without_a_key_is_refused() -> None:
    """A header without a key is refused, since it would make the partition unreadable."""
    headers = pa.array(
        [None, [{"key": "h", "value": b"1"}, {"key": None, "value": b"2"}]],
        columns.TYPES["headers"],
    )
    rows = Rows({"t": topic("t", "0")}.__getitem__, lambda: 7, "t")
    list(rows.add(pa.record_batch({"value": ["a", "b"], "headers": headers})))
    with pytest.raises(InvalidRequest, match="a header has no key"):
        list(rows.finish())


def test_headers_count_for_the_largest_record() -> None:
    """The task refuses a record with too large headers: brokers would not accept its copy after the
    decision.
    """
    rows = Rows({"t": topic("t", "0", limit=100)}.__getitem__, lambda: 7, "t")
    headers = pa.array([None, [{"key": "h", "value": bytes(100)}]], columns.TYPES["headers"])
    with pytest.raises(RecordTooLarge, match="102 bytes"):
        list(rows.add(pa.record_batch({"value": ["a", "b"], "headers": headers})))


def test_what_a_record_takes_beside_its_bytes_counts_as_at_a_broker() -> None:
    """The size of a record includes one or two bytes for the length of each header."""
    rows = Rows({"t": topic("t", "0", limit=1000)}.__getitem__, lambda: 7, "t")
    headers = pa.array([[{"key": "h", "value": b""}] * 900], columns.TYPES["headers"])
    list(rows.add(pa.record_batch({"value": ["a"], "headers": headers})))
    with pytest.raises(RecordTooLarge, match="max_record_bytes=1000"):
        list(rows.finish())


def test_keys_and_headers_count_for_a_batch() -> None:
    rows = Rows({"t": topic("t", "0")}.__getitem__, lambda: 7, "t")
    pairs = [[{"key": "h", "value": bytes(250_000)}]] * 20
    headers = pa.array(pairs, columns.TYPES["headers"])
    keys = [b"%d" % n + bytes(250_000) for n in range(20)]
    table = pa.record_batch({"value": ["a"] * 20, "key": keys, "headers": headers})
    found = [*rows.add(table), *rows.finish()]
    assert max(batch.size for _, batch in found) < 2 << 20
    assert [key for _, batch in found for key in batch.keys] == keys


def test_headers_of_rows() -> None:
    rows = Rows({"t": topic("t", "0")}.__getitem__, lambda: 7, "t")
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], None], columns.TYPES["headers"]
    )
    list(rows.add(pa.record_batch({"value": ["a", "b"], "headers": headers})))
    ((_, batch),) = rows.finish()
    assert batch.headers == [(("h", b"1"), ("h", b"2")), ()]


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"value": pa.array([None], pa.binary())}, InvalidRequest, "has no value"),
        ({"value": ["a"], "topic": pa.array([None], pa.string())}, InvalidRequest, "has no topic"),
        ({"value": ["a" * 101], "topic": ["t"]}, RecordTooLarge, "101 bytes"),
        ({"value": ["a"], "topic": ["t"], "partition": ["z"]}, UnknownPartition, "'z'"),
        ({"value": ["a"], "topic": ["t"], "partition": [-1]}, UnknownPartition, "-1"),
    ],
)
def test_rows_that_cannot_be_written(
    table: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sort(table, topic("t", "a", "b", limit=100))


def test_long_columns_become_several_batches() -> None:
    rows = Rows({"t": topic("t", "0", "1")}.__getitem__, lambda: 7, "t")
    values = [b"%06d" % n + bytes(994) for n in range(3000)]
    found = [*rows.add(pa.record_batch({"value": values})), *rows.finish()]
    assert len(found) > 2
    assert max(batch.size for _, batch in found) < 2 << 20
    assert [value for _, batch in found for value in batch.values] == values


# --- what tasks have staged -------------------------------------------------------------------


def test_staged_batches_are_copied_in_the_order_of_tasks() -> None:
    """Two tasks read halves of a partition and stage into one partition at the same time."""

    def staged(*pieces: tuple[str, int, str]) -> Staged:
        found = tuple(StagedPiece(name, at, 1, ("t", target)) for name, at, target in pieces)
        return Staged("sink", "stage", found, ())

    first = staged(("1", 7, "0"), ("0", 2, "0"), ("0", 0, "0"), ("0", 9, "1"))
    second = staged(("0", 1, "0"), ("0", 3, "1"))
    found = [(each.place[1], each.staged, each.offset) for each in gather([first, None, second])]
    first_target = [("0", "0", 0), ("0", "0", 2), ("0", "1", 7), ("0", "0", 1)]
    assert found == [*first_target, ("1", "0", 9), ("1", "0", 3)]


# --- progress -----------------------------------------------------------------------------------


def progress(*sources: tuple[str | None, str | None]) -> StreamingQueryProgress:
    """Return a query's report: for each source the end of its last batch, and the latest offset."""
    found: dict[str, Any] = dict.fromkeys(("id", "runId"), "00000000-0000-0000-0000-000000000000")
    found |= {"name": None, "timestamp": "", "batchId": 0, "batchDuration": 0, "durationMs": {}}
    found |= {"stateOperators": [], "observedMetrics": {}, "eventTime": {}}
    found["sink"] = {"description": "", "numOutputRows": 0, "metrics": {}}
    rates = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    found["sources"] = [
        {"description": "", "startOffset": None, "endOffset": end, "latestOffset": latest} | rates
        for end, latest in sources
    ]
    return StreamingQueryProgress.fromJson(found)


def at(**topics: int) -> str:
    """Return a position in partition 0 of some topics."""
    ids = dict.fromkeys(topics, "id")
    return json.dumps(Position(ids, {(t, "0"): n for t, n in topics.items()}).to_json())


def test_a_query_tells_how_far_it_is_behind() -> None:
    assert lag(progress((at(a=3), at(a=10, b=5)))) == {"a": {"0": 7}, "b": {"0": 5}}
    assert lag(progress((at(a=3), at(a=10)), (at(a=9), at(a=12)))) == {"a": {"0": 7}}
    assert lag(progress((at(a=10), at(a=3)))) == {"a": {"0": 0}}
    made_again = at(a=4).replace("id", "new")
    assert lag(progress((at(a=100), made_again))) == {"a": {"0": 4}}
    assert lag(progress((None, None), ('{"logOffset": 3}', '{"logOffset": 4}'), ("7", "8"))) == {}
