"""The size of a batch: skips gaps, and converts a limit in bytes to a number of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pymq.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from pymq.spark.log.topic_log import TopicLog
from pymq.spark.planning import Place, Range
from pymq.spark.read.offsets import Position

SAMPLE_BYTES = 64 << 10  # bytes of one fetch; a broker answers with at least one whole batch
SAMPLED = 32  # records of this many partitions are sampled: those with most waiting offsets
ROUNDS = 4  # rounds of estimation; the last estimate is used

SizeAt = Callable[[Place, int, int], float]  # bytes per record: place, offset, end


def skip_gaps(
    first: Mapping[Place, int], starts: Mapping[Place, int], ends: Mapping[Place, int]
) -> dict[Place, int]:
    """Return the first offset of each partition that retention has not removed, so that a batch's
    limit counts existing records only.
    """
    return {
        place: min(max(offset, starts.get(place, 0)), max(offset, ends.get(place, 0)))
        for place, offset in first.items()
    }


def record_sizes(log: TopicLog, end: Position) -> SizeAt:
    """Return a function that looks up how large the records of a log are at an offset."""

    def size_at(place: Place, offset: int, last: int) -> float:
        topic, partition = place
        wanted = Range(topic, partition, offset, last, end.ids.get(topic, ""))
        try:
            for batch in log.read(wanted, SAMPLE_BYTES):
                header = batch.header
                if not header.is_hidden and len(batch):
                    return max(header.raw_length, 1) / len(batch)
        except (OffsetOutOfRange, UnknownTopic, UnknownPartition):
            return 0.0  # The task that reads this range reports the loss.
        return 0.0

    return size_at


def limit_bytes(
    size_at: SizeAt, start: Mapping[Place, int], end: Mapping[Place, int], most: int
) -> dict[Place, int]:
    """Return the ends of a batch of about *most* bytes between *start* and *end*.

    The estimate uses records at the start of the batch and, as sizes may change, at its end. Each
    partition with waiting offsets gets at least one.
    """
    waiting = {place: end[place] - start.get(place, 0) for place in end}
    longest = sorted((place for place in waiting if waiting[place] > 0), key=lambda p: -waiting[p])
    sampled = longest[:SAMPLED]
    sizes = {place: size_at(place, start.get(place, 0), end[place]) for place in sampled}
    ends = _ends(sizes, start, end, most)
    for _ in range(ROUNDS):
        late = {
            place: size_at(place, ends[place] - 1, end[place])
            for place in sampled
            if ends[place] > start.get(place, 0) + 1
        }
        if all(size <= sizes[place] for place, size in late.items()):
            break
        sizes.update({place: max(size, sizes[place]) for place, size in late.items()})
        ends = _ends(sizes, start, end, most)
    return ends


def _ends(
    sizes: Mapping[Place, float], start: Mapping[Place, int], end: Mapping[Place, int], most: int
) -> dict[Place, int]:
    waiting = {place: max(0, end[place] - start.get(place, 0)) for place in end}
    usual = sum(sizes.values()) / len(sizes) if sizes else 0.0
    total = sum(count * sizes.get(place, usual) for place, count in waiting.items())
    share = min(1.0, most / total) if total else 1.0
    return {
        place: start.get(place, 0) + (max(1, int(count * share)) if count else 0)
        for place, count in waiting.items()
    }
