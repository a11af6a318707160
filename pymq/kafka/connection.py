"""A connection of a Kafka client, as its gate and the door share it."""

from __future__ import annotations

from collections import deque

from pymq.core.batch.columns import Buffer
from pymq.core.values import Factory, define
from pymq.kafka.frames import RequestHead
from pymq.kafka.security.caller import KafkaCaller

REQUESTS_MAX = 100  # of a connection at a time; then it is not read
OUT_BYTES_MAX = 64 << 20  # that wait to be sent to a connection; then it is not read
UNKNOWN_OUT_BYTES_MAX = 64 << 10  # the same for a client that has yet to prove who it is


@define
class Slot:
    """The place of a request in the line of its connection."""

    head: RequestHead
    parts: list[Buffer] | None = None  # its answer
    is_over: bool = False  # nothing more will come
    conversation: int = 0
    size: int = 0  # bytes of the request
    arrived: int = 0  # when, in the loop's milliseconds


@define
class KafkaConnection:
    """A client's connection: the requests that it waits for, in order, and bytes for it."""

    id: int
    host: str = ""
    caller: KafkaCaller = Factory(KafkaCaller)
    slots: deque[Slot] = Factory(deque)
    out: deque[Buffer] = Factory(deque)
    # Two counters. The gate adds to the first, and the door's thread to the second.
    queued_bytes: int = 0
    sent_bytes: int = 0
    is_closed: bool = False  # by the gate: the door closes it when all is sent
    held_by: int = 0  # the conversation that has to end, or to send its batches, before the next
    held: deque[memoryview] = Factory(deque)  # requests that the gate has not taken up yet
    is_taking_up: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the door must not read from the connection now."""
        waiting = self.queued_bytes - self.sent_bytes
        most = OUT_BYTES_MAX if self.caller.is_known else UNKNOWN_OUT_BYTES_MAX
        return len(self.slots) >= REQUESTS_MAX or waiting >= most or bool(self.held)
