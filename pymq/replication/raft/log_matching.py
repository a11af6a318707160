"""Where two logs part: the same epoch at the same offset means that all before it is the same.

A leader writes each offset once in its epoch, so that (offset, epoch) names one batch for ever and
all that led to it. Whatever a leader and a follower say about their logs is said by such pairs, at
the ends of batches (Raft 5.3; the two-sided search is that of the thesis and of etcd).
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
    """The pair (epoch, end) from which a leader should go on searching; None if *log* matches.

    It is the follower's last batch that the leader might have: none of a later epoch than
    *prev_epoch* can be before *prev* in the leader's log.
    """
    if log.start <= prev <= log.end and log.epoch_at(prev) == prev_epoch:
        return None
    end = max(min(log.end_of(prev_epoch)[1], prev), log.start)
    return log.epoch_at(end), end


def resume(log: ReplicatedLog, epoch: int, end: int) -> int:
    """Where a leader probes a follower next, whose last possible match is (*epoch*, *end*).

    It is the end of a batch in the leader's *log*, at or before *end*: where the leader has none of
    *epoch*, the logs part before the follower's first batch of it.
    """
    found, at = log.end_of(epoch)
    if end < log.start or found == epoch:
        return min(at, end)  # Both have the epoch: the shorter one's end is a batch's end in both.
    while at > end:
        found, at = log.end_of(found - 1)
    return at


def held(log: ReplicatedLog, prev: int, data: bytes) -> tuple[int, int]:
    """How much of *data*, which follows *prev*, the log has already: (position in data, end).

    Raises:
        CorruptBatch: something in *data* is no batch, or does not follow on the one before.
    """
    position, end = 0, prev
    while position < len(data):
        header = parse_header(data, position)
        if header.base_offset != end:
            raise CorruptBatch(f"a batch at {header.base_offset} does not follow on {end}")
        after = header.end_offset
        # What is before the start of the log is in a snapshot: it is committed.
        if after > log.end or (after > log.start and log.epoch_at(after) != header.leader_epoch):
            break
        position, end = position + header.length, after
    return position, end


def end_of_data(prev: int, data: bytes) -> int:
    """Where the batches in *data*, which come from the own log and follow *prev*, end."""
    position, end = 0, prev
    while position < len(data):
        end += _FIELD.unpack_from(data, position + _SPAN_AT)[0]
        position += _FIELD.unpack_from(data, position + _LENGTH_AT)[0]
    return end
