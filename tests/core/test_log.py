"""The log of a block: what its followers are sent."""

from __future__ import annotations

from pymq.core.log import BlockLog
from pymq.core.ready import Ready
from pymq.core.record import RecordBatch
from pymq.core.runs import split
from pymq.core.types import BlockId

MOST = 1 << 20


class Host:
    def __init__(self) -> None:
        self.out = Ready()

    def wall_ms(self, now: int) -> int:
        return now


def epochs(data: bytes | None) -> list[int]:
    assert data is not None
    return [batch.header.leader_epoch for batch in split(data)]


def test_what_was_sent_is_not_sent_again_in_place_of_what_replaced_it() -> None:
    """The bytes for one follower are kept for the next, but no longer than they are the log's."""
    log = BlockLog(Host(), BlockId("t", 0, 0), 0, is_shared=True)
    batch = RecordBatch.encode([b"x"], timestamp_ms=0)
    log.append(batch, 1)
    sent = log.recent(0, MOST)
    assert log.recent(0, MOST) is sent
    log.truncate(0)
    log.append(batch, 2)
    assert epochs(log.recent(0, MOST)) == [2]
    log.append(batch, 2)
    assert epochs(log.recent(0, MOST)) == [2, 2]
    assert epochs(log.recent(0, 1)) == [2]
