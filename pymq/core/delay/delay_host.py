"""The interface of a delay scheduler to its broker and its partition."""

from __future__ import annotations

from typing import Protocol

from pymq.core.message import Fetch, Message, Produce
from pymq.core.types import TopicPartition


class DelayHost(Protocol):
    """The broker and the partition, as a scheduler uses them."""

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def next_request(self) -> int:
        """Return a new request number."""
        ...

    def to_partition(
        self, name: TopicPartition, message: Fetch | Produce, now: int, holder: str | None
    ) -> None:
        """Pass a request to the local partition, or to the broker *holder*."""
        ...

    def start(self, name: TopicPartition) -> int:
        """The offset of the first record that is not deleted."""
        ...

    def end(self, name: TopicPartition) -> int:
        """The end offset of the partition's log, including batches that are not committed yet."""
        ...

    def sequence(self, name: TopicPartition) -> int:
        """The sequence for the scheduler's next note."""
        ...

    def keep_from(self, name: TopicPartition, offset: int, *, is_full: bool = False) -> int:
        """Protect *offset* from retention; returns the first offset that retention wants to keep.

        If *is_full* is set, the partition refuses further delayed records.
        """
        ...
