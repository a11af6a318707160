"""Parses and checks the options of the data source.

Spark passes options as text, with names in lower case. Options that Spark's Kafka source also has
keep their names.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pymq.core.types import CLUSTER_SCHEMES
from pymq.core.values import value
from pymq.errors import ConfigError
from pymq.spark import kafka_names

EARLIEST, LATEST = -2, -1  # used in place of offsets, as in Kafka's source
_WORDS = {"earliest": EARLIEST, "latest": LATEST}

# Options of both the source and the sink, of the source alone, of the sink alone.
_COMMON = (
    *("url", "path", "includeHeaders", "requestTimeoutMs"),
    *("nullTombstones", "valueFormat", "valueSchema"),
)
_SOURCE = (
    *("subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss"),
    *("maxOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition", "maxTasks"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "group"),
    *("fetchMaxBytes", "valueMode", "splitPartitions", "rack"),
)
_STREAMS = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    "group",
)
_SINK = (
    *("topic", "delivery", "sinkId", "txnAppId", "txnVersion"),
    *("ignoreExtraColumns", "onOverwrite"),
)
_SPARKS_OWN = (
    "checkpointlocation",
    "querytype",
    "queryname",
    "paths",
)  # added by Spark


_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_DURATION = re.compile(r"(\d+) *(us|ms|s|m|min|h|d)?")  # as Spark reads durations
_UNITS_MS = {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "d": 8.64e7}

TABLE_TIMEOUT_MS = 30_000
STREAM_TIMEOUT_MS = 300_000  # a running query outlives a restart of the cluster
FORMATS = ("binary", "json", "avro", "arrow", "protobuf")


class OffsetPoint(NamedTuple):
    """A start or end in one partition: an offset, EARLIEST, LATEST, or a time."""

    offset: int | None = None
    timestamp_ms: int | None = None


Points = Mapping[tuple[str, str], OffsetPoint]  # by (topic, partition)


@value
class PartitionPoints:
    """Starts or ends of a query: for named partitions, and a default for the others."""

    default: OffsetPoint
    points: Points

    def of(self, topic: str, partition: str) -> OffsetPoint:
        """Return the point of one partition."""
        return self.points.get((topic, partition), self.default)


@value
class Admission:
    """The conditions under which a batch of a stream begins, and its largest size."""

    min_offsets: int | None = None
    max_delay_s: float = 900.0  # after this time a batch begins even with fewer than *min_offsets*
    max_bytes: int | None = None


@value
class ValueOptions:
    """The form of values."""

    format: str = "binary"  # one of FORMATS
    schema: str | None = None  # as text; None: the schema of the query, or of the registry
    null_tombstones: bool = False
    is_permissive: bool = False  # a value that cannot be decoded becomes null

    @property
    def is_plain(self) -> bool:
        """Whether values are bytes, and tombstones are empty."""
        return self.format == "binary" and not self.null_tombstones


@value
class SourceOptions:
    """The checked options of a source."""

    url: str
    topics: tuple[str, ...]  # those of ``subscribe``; empty with a pattern or an assignment
    pattern: str | None
    assigned: Mapping[str, tuple[str, ...]] | None
    starting: PartitionPoints
    ending: PartitionPoints
    is_strict_in_time: bool  # a time after the last record raises an error
    fail_on_data_loss: bool
    max_offsets: int | None  # per trigger
    min_partitions: int | None
    max_records: int | None  # per task
    max_tasks: int | None
    fetch_bytes: int
    include_headers: bool
    timeout_s: float
    admission: Admission = Admission()
    group: str | None = None  # the group under whose name a stream publishes its progress
    values: ValueOptions = ValueOptions()
    is_stream: bool = False
    splits_partitions: bool = True  # a long range of a partition is read by several tasks
    rack: str | None = None  # replicas in this rack are read from if possible


@value
class SinkOptions:
    """The checked options of a sink."""

    url: str
    topic: str | None  # None: taken from each row
    is_exactly_once: bool
    sink: str | None  # for deduplication of batches; None: the query's id
    version: int | None  # of a batch query that may be repeated
    ignores_columns: bool
    appends_on_overwrite: bool
    timeout_s: float
    values: ValueOptions = ValueOptions()


class Options:
    """Reads options by name; its errors name the option."""

    def __init__(self, found: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._found = {name.lower(): text for name, text in found.items()}
        lower = {name.lower(): name for name in known}
        for name in self._found:
            if name not in lower and name not in _SPARKS_OWN:
                hint = kafka_names.hint(name)
                if hint is None and (near := difflib.get_close_matches(name, lower, 1)):
                    hint = f"did you mean {lower[near[0]]!r}?"
                hint = hint or f"known are {sorted(known)}"
                raise ConfigError(f"option {name!r} is not known; {hint}")

    def text(self, name: str) -> str | None:
        """Return the option as given."""
        return self._found.get(name.lower())

    def number(self, name: str, low: int = 1) -> int | None:
        """Return a whole number of at least *low*."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise ConfigError(f"option {name!r} is a whole number from {low} on, not {text!r}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise ConfigError(f"option {name!r} is 'true' or 'false', not {text!r}")
        return text.lower() == "true"

    def duration_s(self, name: str, default_s: float) -> float:
        """Return a time as Spark writes it, such as ``500ms``, ``30s`` or ``15m``, in seconds."""
        text = self.text(name)
        if text is None:
            return default_s
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            raise ConfigError(f"option {name!r} is a time such as '30s' or '15m', not {text!r}")
        return int(found[1]) * _UNITS_MS[found[2] or "ms"] / 1000

    def tree(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(f"option {name!r} is a JSON object, not {text!r}")
        return found

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of *words*; the first is the default."""
        text = self.text(name)
        if text is None:
            return allowed[0]
        if text not in allowed:
            raise ConfigError(f"option {name!r} is one of {', '.join(allowed)}, not {text!r}")
        return text

    def url(self) -> str:
        """Return the URL of a cluster, or a folder."""
        found = [text for name in ("url", "path") if (text := self.text(name))]
        if len(found) != 1:
            raise ConfigError(
                "option 'url' is missing: .option('url', 'zmq+tcp://host:port'), or a folder"
                if not found
                else "options 'url' and 'path' say both where the queue is; give one of them"
            )
        return found[0]


def source_options(found: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Parse and check the options of a source.

    Raises:
        ConfigError: an option is missing, unknown or out of range; the message names the option.
    """
    options = Options(found, _COMMON + _SOURCE)
    if not found:
        raise ConfigError(
            "there are no options, not even 'url'. Spark gives none to a table of CREATE TABLE: "
            "use CREATE TEMPORARY VIEW name USING pymq OPTIONS (...), or SELECT ... FROM name WITH "
            "(url = '...', subscribe = '...')"
        )
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(ways) != 1:
        raise ConfigError(
            "give exactly one of the options 'subscribe', 'subscribePattern' and 'assign'"
            + (f", not {' and '.join(ways)}" if ways else "")
        )
    if is_stream:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if options.text(name) is not None:
                raise ConfigError(f"option {name!r} is for batch queries; a stream has no end")
    else:
        for name in _STREAMS:
            if options.text(name) is not None:
                raise ConfigError(f"option {name!r} is for streams; a table has no triggers")
    url = options.url()
    return SourceOptions(
        url=url,
        topics=_topics(options.text("subscribe")),
        pattern=_pattern(options.text("subscribePattern")),
        assigned=_assigned(options.tree("assign")),
        starting=_where(options, "starting", LATEST if is_stream else EARLIEST),
        ending=_where(options, "ending", LATEST),
        is_strict_in_time=options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "error",
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        max_offsets=options.number("maxOffsetsPerTrigger"),
        min_partitions=options.number("minPartitions"),
        max_records=options.number("maxRecordsPerPartition"),
        max_tasks=options.number("maxTasks"),
        fetch_bytes=options.number("fetchMaxBytes", 1024) or 4 << 20,
        include_headers=options.flag("includeHeaders", default=False),
        timeout_s=_timeout_s(options, STREAM_TIMEOUT_MS if is_stream else TABLE_TIMEOUT_MS),
        admission=_admission(options),
        group=_group(options, url),
        values=_values(options),
        is_stream=is_stream,
        splits_partitions=options.flag("splitPartitions", default=not is_stream),
        rack=options.text("rack"),
    )


def check_source(found: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a source before it is known whether the source is a stream.

    Raises:
        ConfigError: neither a table nor a stream can have these options.
    """
    if "provider" in {name.lower() for name in found}:
        raise ConfigError(
            "CREATE TABLE cannot make a table of a Python source: Spark forgets its options. Use "
            "CREATE TEMPORARY VIEW name USING pymq OPTIONS (url '...', subscribe '...')"
        )
    names = {name.lower() for name in found}
    return source_options(found, is_stream=bool(names & {name.lower() for name in _STREAMS}))


def sink_options(found: Mapping[str, str], *, is_stream: bool = False) -> SinkOptions:
    """Parse and check the options of a sink.

    Raises:
        ConfigError: as for a source; the message names the option.
    """
    options = Options(found, _COMMON + _SINK)
    url = options.url()
    if not url.startswith(CLUSTER_SCHEMES):
        raise ConfigError(
            f"option 'url' is {url!r}: Spark writes from several processes, and to a queue in a "
            "folder or in memory only one can write; start a cluster, and give its url as "
            "'zmq+tcp://host:port'"
        )
    app, version = options.text("txnAppId"), options.number("txnVersion", 0)
    if (app is None) != (version is None):
        raise ConfigError("give both of the options 'txnAppId' and 'txnVersion', or neither")
    sink = options.text("sinkId")
    if app is not None and sink is not None:
        raise ConfigError("options 'sinkId' and 'txnAppId' say both who writes; give one of them")
    for name, id in (("sinkId", sink), ("txnAppId", app)):
        if id is not None and not _ID.fullmatch(id):
            raise ConfigError(f"option {name!r} is 1 to 100 of [A-Za-z0-9._-], not {id!r}")
    return SinkOptions(
        url=url,
        topic=options.text("topic"),
        is_exactly_once=options.choice("delivery", ("exactly-once", "at-least-once"))
        == "exactly-once",
        sink=sink or app,
        version=version,
        ignores_columns=options.flag("ignoreExtraColumns", default=False),
        appends_on_overwrite=options.choice("onOverwrite", ("error", "append")) == "append",
        timeout_s=_timeout_s(options, STREAM_TIMEOUT_MS if is_stream else TABLE_TIMEOUT_MS),
        values=_values(options),
    )


def _timeout_s(options: Options, default_ms: int) -> float:
    return (options.number("requestTimeoutMs") or default_ms) / 1000


def _admission(options: Options) -> Admission:
    if options.text("maxTriggerDelay") is not None and not options.text("minOffsetsPerTrigger"):
        raise ConfigError(
            "option 'maxTriggerDelay' says how long a query waits for 'minOffsetsPerTrigger': give "
            "both"
        )
    found = Admission(
        options.number("minOffsetsPerTrigger"),
        options.duration_s("maxTriggerDelay", Admission().max_delay_s),
        options.number("maxBytesPerTrigger"),
    )
    most = options.number("maxOffsetsPerTrigger")
    if most is not None and found.min_offsets is not None and found.min_offsets > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' is {found.min_offsets}, more than "
            f"'maxOffsetsPerTrigger', which is {most}"
        )
    return found


def _group(options: Options, url: str) -> str | None:
    group = options.text("group")
    if group is None:
        return None
    if not _ID.fullmatch(group):
        raise ConfigError(f"option 'group' is 1 to 100 of [A-Za-z0-9._-], not {group!r}")
    if not url.startswith(CLUSTER_SCHEMES):
        raise ConfigError(
            "option 'group' publishes progress to a cluster; a folder can only be read"
        )
    return group


def _values(options: Options) -> ValueOptions:
    format, schema = options.choice("valueFormat", FORMATS), options.text("valueSchema")
    if schema is not None and format == "binary":
        raise ConfigError("option 'valueSchema' needs the option 'valueFormat', which is missing")
    return ValueOptions(
        format,
        schema,
        options.flag("nullTombstones", default=False),
        options.choice("valueMode", ("FAILFAST", "PERMISSIVE")) == "PERMISSIVE",
    )


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"option 'subscribe' is a list of topics, 'a,b', not {text!r}")
    return tuple(dict.fromkeys(names))


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"option 'subscribePattern' is no regular expression: {error}"
            ) from None
    return text


def _assigned(tree: dict[str, Any] | None) -> dict[str, tuple[str, ...]] | None:
    if tree is None:
        return None
    for topic, partitions in tree.items():
        if not isinstance(partitions, list) or not partitions:
            raise ConfigError(
                "option 'assign' is JSON as {\"topic\": [0, 1]}; "
                f"of topic {topic!r} it says {partitions!r}"
            )
    if not tree:
        raise ConfigError("option 'assign' names no topic")
    return {topic: tuple(map(str, partitions)) for topic, partitions in tree.items()}


def _where(options: Options, prefix: str, default: int) -> PartitionPoints:
    """Read the default and per-partition points; times win over offsets, as in Kafka's source."""
    offsets, moment = f"{prefix}Offsets", f"{prefix}Timestamp"
    times = f"{prefix}OffsetsByTimestamp"
    millis = options.number(moment, 0)
    if millis is not None:
        return PartitionPoints(OffsetPoint(timestamp_ms=millis), {})
    by_time = options.tree(times)
    if by_time is not None:
        points = {
            place: OffsetPoint(timestamp_ms=number) for place, number in _leaves(by_time, times, 0)
        }
        return PartitionPoints(OffsetPoint(default), points)
    text = options.text(offsets)
    if text is None:
        return PartitionPoints(OffsetPoint(default), {})
    if text.lower() in _WORDS:
        word = _WORDS[text.lower()]
        if prefix == "ending" and word == EARLIEST:
            raise ConfigError("option 'endingOffsets' cannot be 'earliest'")
        return PartitionPoints(OffsetPoint(word), {})
    tree = options.tree(offsets) or {}
    leaves = list(_leaves(tree, offsets, LATEST if prefix == "ending" else EARLIEST))
    return PartitionPoints(
        OffsetPoint(default), {place: OffsetPoint(number) for place, number in leaves}
    )


def _leaves(tree: dict[str, Any], name: str, low: int) -> list[tuple[tuple[str, str], int]]:
    found = []
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"option {name!r}: of topic {topic!r} it says {partitions!r}, no map")
        for partition, number in partitions.items():
            if type(number) is not int or number < low:
                raise ConfigError(
                    f"option {name!r}: of partition {topic}/{partition} it says {number!r}; "
                    f"a whole number from {low} on is needed"
                )
            found.append(((topic, partition), number))
    return found
