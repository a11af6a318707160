"""Resolves which partitions a query reads, and their start and end offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pymq.core.values import value
from pymq.errors import ConfigError, OffsetOutOfRange, UnknownPartition, UnknownTopic
from pymq.spark.log.topic_log import Topic, TopicLog
from pymq.spark.options import EARLIEST, LATEST, PartitionPoints, SourceOptions
from pymq.spark.planning import Place
from pymq.spark.write.staging import PREFIX


def chosen(log: TopicLog, options: SourceOptions) -> dict[str, Topic]:
    """Return the subscribed topics with their subscribed partitions.

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
                pass  # Deleted since it was listed.
        return found
    if options.assigned is None:
        return {name: log.topic(name) for name in sorted(options.topics)}
    found = {}
    for name, partitions in sorted(options.assigned.items()):
        topic = log.topic(name)
        for partition in partitions:
            if partition not in topic.partitions:
                raise UnknownPartition(
                    f"option 'assign': topic {name!r} has no partition {partition!r}; "
                    f"it has {', '.join(topic.partitions[:8])}"
                )
        found[name] = Topic(topic.id, partitions)
    return found


@value
class Bounds:
    """The present start and end offsets of partitions."""

    starts: dict[Place, int]
    ends: dict[Place, int]
    ids: dict[str, str]  # of the topics

    @classmethod
    def of(cls, log: TopicLog, topics: Mapping[str, Topic]) -> Bounds:
        """Read the bounds of *topics* from the log."""
        starts: dict[Place, int] = {}
        ends: dict[Place, int] = {}
        for name, topic in topics.items():
            for partition, (start, end) in log.bounds(name, topic.partitions, topic.id).items():
                starts[name, partition], ends[name, partition] = start, end
        return cls(starts, ends, {name: topic.id for name, topic in topics.items()})


def resolve(
    log: TopicLog, bounds: Bounds, where: PartitionPoints, *, is_end: bool, options: SourceOptions
) -> dict[Place, int]:
    """Return the offsets at which a query begins, or ends.

    Raises:
        ConfigError: *points* names a partition that is not read, or a time after the last record.
        OffsetOutOfRange: the start is before the log start, and ``failOnDataLoss`` is set.
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
        elif point.offset < start and not is_end and options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"option 'startingOffsets': {'/'.join(place)} begins at offset {start}, after "
                f"{point.offset}; with 'failOnDataLoss' set to 'false' it is read from there"
            )
        else:
            found[place] = min(max(point.offset, start), end)
    return found


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
