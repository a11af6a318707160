"""Log matching: two logs with the same epoch at the same offset are equal up to that offset.

A leader writes each offset once in its epoch, so (offset, epoch) identifies a batch and all batches
before it. Leaders and followers compare such pairs at the ends of batches (Raft 5.3; both sides
take part in the search, as in the thesis and in etcd).
"""

from __future__ import annotations

import struct

from pymq.core.batch.header import parse_header
from pymq.core.block.replicator import ReplicatedLog
from pymq.errors import CorruptBatch

_LENGTH_AT = 32
_SPAN_AT = 64
_FIELD = struct.Struct("<I")


def conflict(log: ReplicatedLog, prev: int, prev_epoch: int) -> tuple[int, int] | None:
    """Return the pair (epoch, end) from which the leader continues its search.

    The result is None if *log* matches the leader's log.

    The pair names the follower's last batch that the leader may have: before *prev*, the leader's
    log has no epoch later than *prev_epoch*.
    """
    if log.start <= prev <= log.end and log.epoch_at(prev) == prev_epoch:
        return None
    end = max(min(log.end_of(prev_epoch)[1], prev), log.start)
    return log.epoch_at(end), end


def resume(log: ReplicatedLog, epoch: int, end: int) -> int:
    """Return the offset of the leader's next probe of a follower that may match up to (*epoch*,
    *end*).

    The result is the end of a batch in the leader's *log*, at or before *end*. If the leader has no
    batch of *epoch*, the logs diverge before the follower's first batch of that epoch.
    """
    found, at = log.end_of(epoch)
    if end < log.start or found == epoch:
        # Both logs have the epoch, so the lower of the two ends is the end of a batch in both logs.
        return min(at, end)
    while at > end:
        found, at = log.end_of(found - 1)
    return at


def held(log: ReplicatedLog, prev: int, data: bytes) -> tuple[int, int]:
    """Return how much of *data* after *prev* the log already has: (position in data, end).

    Raises:
        CorruptBatch: a part of *data* is not a batch, or does not follow on the previous batch.
    """
    position, end = 0, prev
    while position < len(data):
        header = parse_header(data, position)
        if header.base_offset != end:
            raise CorruptBatch(f"a batch at {header.base_offset} does not follow on {end}")
        after = header.end_offset
        # Entries before the start of the log are in a snapshot, so they are committed.
        if after > log.end or (after > log.start and log.epoch_at(after) != header.leader_epoch):
            break
        position, end = position + header.length, after
    return position, end


def end_of_data(prev: int, data: bytes) -> int:
    """Return the end offset of *data*, which are batches of this member's log from *prev* on."""
    position, end = 0, prev
    while position < len(data):
        end += _FIELD.unpack_from(data, position + _SPAN_AT)[0]
        position += _FIELD.unpack_from(data, position + _LENGTH_AT)[0]
    return end
