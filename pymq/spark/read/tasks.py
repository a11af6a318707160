"""Divides what a query reads into tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pyspark.sql.datasource import InputPartition

from pymq.errors import PymqError
from pymq.spark import backfill, planning
from pymq.spark.backfill import BlockSpan
from pymq.spark.log.topic_log import TopicLog
from pymq.spark.options import SourceOptions
from pymq.spark.planning import Place, Range
from pymq.spark.read.offsets import Position


@dataclass
class ReadTask(InputPartition):
    """The ranges that one task reads."""

    ranges: tuple[Range, ...]


def plan(
    options: SourceOptions,
    log: TopicLog,
    slots: int | None,
    start: Position,
    end: Mapping[Place, int],
) -> list[InputPartition]:
    """Return the tasks that read from *start* to *end*, for a session of *slots*, if known."""
    ranges = [
        Range(*place, first, last, start.ids[place[0]])
        for place, last in end.items()
        if last > (first := start.offsets.get(place, 0))
    ]
    return [ReadTask(tuple(mine)) for mine in _divided(options, log, slots, ranges)]


def _divided(
    options: SourceOptions, log: TopicLog, slots: int | None, ranges: list[Range]
) -> list[list[Range]]:
    least, longest, most = options.min_partitions, options.max_records, options.max_tasks
    if least or longest:
        return planning.pack(planning.split(ranges, at_least=least, longest=longest), most)
    if options.splits_partitions:
        found = backfill.stretches(ranges, _blocks(log, ranges))
        if backfill.is_long(found):
            whole = ceil(sum(weight for _, weight in found))
            return backfill.divide(found, most or max(slots or 1, whole), slots or 1)
    if most is None and slots:
        most = planning.enough(ranges, slots)
    return planning.pack(ranges, most)


def _blocks(log: TopicLog, ranges: Sequence[Range]) -> dict[Place, Sequence[BlockSpan]]:
    """Return the blocks of partitions of which much is read."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for each in ranges:
        if each.size >= backfill.CONSIDERED:
            wanted.setdefault((each.topic, each.topic_id), []).append(each.partition)
    found: dict[Place, Sequence[BlockSpan]] = {}
    for (topic, topic_id), partitions in wanted.items():
        try:
            blocks = log.blocks(topic, partitions, topic_id)
        except PymqError:
            continue  # Without blocks the plan is less even. A task reports what is wrong.
        found.update({(topic, partition): spans for partition, spans in blocks.items()})
    return found
