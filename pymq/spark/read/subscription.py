"""Finds the partitions that a query reads, and their start and end offsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pymq.core.values import value
from pymq.errors import ConfigError, OffsetOutOfRange, UnknownPartition, UnknownTopic
from pymq.spark.log.topic_log import Topic, TopicLog
from pymq.spark.options import EARLIEST, LATEST, PartitionPoints, SourceOptions
from pymq.spark.planning import Place
from pymq.spark.process import process_cache
from pymq.spark.write.staging import PREFIX

log_ = logging.getLogger("pymq.spark")


def chosen(
    log: TopicLog, options: SourceOptions, *, skips_missing: bool = False
) -> dict[str, Topic]:
    """Return the subscribed topics with their subscribed partitions.

    With *skips_missing*, a topic of ``subscribe`` or ``assign`` that does not exist is left out
    with a warning.

    Raises:
        UnknownTopic, UnknownPartition: a topic or partition named in the options does not exist.
    """
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        names = [
            name for name in log.topics() if pattern.fullmatch(name) and not name.startswith(PREFIX)
        ]
        found = {}
        for name in sorted(names):
            try:
                found[name] = log.topic(name)
            except UnknownTopic:
                pass  # The topic was deleted after it was listed.
        return found
    names = sorted(options.topics if options.assigned is None else options.assigned)
    there = _described(log, names, skips_missing=skips_missing)
    if options.assigned is None:
        return there
    found = {}
    for name, topic in there.items():
        partitions = options.assigned[name]
        for partition in partitions:
            if partition not in topic.partitions:
                raise UnknownPartition(
                    f"option 'assign': topic {name!r} has no partition {partition!r}; "
                    f"it has {', '.join(topic.partitions[:8])}"
                )
        found[name] = Topic(topic.id, partitions)
    return found


def _described(log: TopicLog, names: list[str], *, skips_missing: bool) -> dict[str, Topic]:
    found = {}
    gone: dict[str, bool] = process_cache("gone")  # topics that a warning named
    for name in names:
        try:
            found[name] = log.topic(name)
        except UnknownTopic:
            if not skips_missing:
                raise
            if name not in gone:
                log_.warning("topic %s does not exist; the query continues without it", name)
            gone[name] = True
        else:
            gone.pop(name, None)
    return found


@value
class Bounds:
    """The present start and end offsets of partitions."""

    starts: dict[Place, int]
    ends: dict[Place, int]
    ids: dict[str, str]  # ids of the topics

    @classmethod
    def of(
        cls, log: TopicLog, topics: Mapping[str, Topic], *, skips_missing: bool = False
    ) -> Bounds:
        """Read the bounds of *topics* from the log; topics that were deleted after they were listed
        may be left out.
        """
        starts: dict[Place, int] = {}
        ends: dict[Place, int] = {}
        ids = {}
        for name, topic in topics.items():
            try:
                bounds = log.bounds(name, topic.partitions, topic.id)
            except UnknownTopic:
                if not skips_missing:
                    raise
                continue
            ids[name] = topic.id
            for partition, (start, end) in bounds.items():
                starts[name, partition], ends[name, partition] = start, end
        return cls(starts, ends, ids)


def resolve(
    log: TopicLog, bounds: Bounds, where: PartitionPoints, *, is_end: bool, options: SourceOptions
) -> dict[Place, int]:
    """Return the offsets at which a query begins, or ends.

    Raises:
        ConfigError: *points* names a partition that is not read, or a time after the last record.
        OffsetOutOfRange: an offset is before the log start or after the end, and
            ``failOnDataLoss`` is set.
    """
    for (topic, partition), point in where.points.items():
        if (topic, partition) not in bounds.ends:
            option = "endingOffsets" if is_end else "startingOffsets"
            if point.timestamp_ms is not None:
                option += "ByTimestamp"
            raise ConfigError(
                f"option {option!r} names partition {topic}/{partition}, which is not read"
            )
    found: dict[Place, int] = {}
    for place, end in bounds.ends.items():
        start, point = bounds.starts[place], where.of(*place)
        if point.timestamp_ms is not None:
            found[place] = _at_time(
                log, bounds, place, point.timestamp_ms, is_end=is_end, options=options
            )
        elif point.offset == EARLIEST:
            found[place] = start
        elif point.offset == LATEST or point.offset is None:
            found[place] = end
        else:
            found[place] = min(max(point.offset, start), end)
            if point.offset > end or (point.offset < start and not is_end):
                _outside(place, point.offset, (start, end), is_end=is_end, options=options)
    return found


def check_order(start: Mapping[Place, int], end: Mapping[Place, int]) -> None:
    """Check that a table ends after it starts.

    Raises:
        ConfigError: a partition starts after its end, so the options contradict each other.
    """
    for place, last in end.items():
        if start.get(place, last) > last:
            raise ConfigError(
                f"{'/'.join(place)} would be read from offset {start[place]} to {last}: the "
                "'starting' options are after the 'ending' options"
            )


def _outside(
    place: Place, offset: int, bounds: tuple[int, int], *, is_end: bool, options: SourceOptions
) -> None:
    """Report an offset of the options that the log does not have."""
    (start, end), option = bounds, "endingOffsets" if is_end else "startingOffsets"
    if offset < start:
        what = f"option {option!r}: {'/'.join(place)} begins at offset {start}, after {offset}"
    else:
        what = f"option {option!r}: {'/'.join(place)} ends at offset {end}, before {offset}"
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{what}; with 'failOnDataLoss' set to 'false' "
            + ("it is read to its end" if is_end else "it is read from there")
        )
    log_.warning("%s; the query takes what is nearest", what)


def _at_time(
    log: TopicLog,
    bounds: Bounds,
    place: Place,
    timestamp_ms: int,
    *,
    is_end: bool,
    options: SourceOptions,
) -> int:
    (topic, partition), end = place, bounds.ends[place]
    offset = log.at_time(topic, [partition], timestamp_ms, bounds.ids[topic])[partition]
    if offset >= end and not is_end and options.is_strict_in_time:
        raise ConfigError(
            f"no record of {topic}/{partition} is as new as {timestamp_ms} ms; with the option "
            "'startingOffsetsByTimestampStrategy' set to 'latest' it is read from its end"
        )
    return min(offset, end)
