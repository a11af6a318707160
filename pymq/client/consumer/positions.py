"""The positions of one consumer in its partitions, its group's offsets, and seeks.

Each call requests the offsets again; answers are not cached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymq.client.admin.requests import Requests
from pymq.client.base import ClientDriver
from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.options import REQUEST_S, parse_offset
from pymq.core.message import BEGIN, FindOffset, GroupState, OffsetFound
from pymq.errors import (
    ConfigError,
    InvalidRequest,
    RequestTimeout,
    UnknownGroup,
    UnknownPartition,
)


class Positions:
    """The offsets of one consumer, of its group, and of the partitions that it may read."""

    def __init__(self, intake: ConsumerMachine, questions: Requests, driver: ClientDriver) -> None:
        self._intake = intake
        self._reader = intake if isinstance(intake, Reader) else None
        self._questions = questions
        self._driver = driver
        self._topic = intake.topic
        self._group = intake.group

    # --- the partitions -------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """The partitions to read: the one chosen for a reader, or all of the topic."""
        if self._reader is not None:
            return list(self._reader.cursors)
        return self._questions.partitions(self._topic)

    def name(self, partition: str | int) -> str:
        """Return the name of the partition with a name or an index.

        Raises:
            UnknownPartition: the consumer does not read such a partition.
        """
        names = self.names()
        is_flag = isinstance(partition, bool)  # as an index, True would be partition 1
        if isinstance(partition, int) and not is_flag and 0 <= partition < len(names):
            return names[partition]
        if partition in names:
            return str(partition)
        raise UnknownPartition(
            f"this consumer of {self._topic!r} does not read partition {partition!r}"
        )

    def bounds(
        self, timeout: float = REQUEST_S, *, any_replica: bool = False
    ) -> dict[str, tuple[int, int]]:
        """The log start and high watermark of each partition; see :meth:`Requests.all_bounds`."""
        names = self.names()
        return self._questions.all_bounds(self._topic, names, timeout, any_replica=any_replica)

    def offset_at(self, partition: str, timestamp_ms: int) -> int:
        """The first offset whose record is not older than a time; the end if all are older."""
        topic, name = self._topic, self.name(partition)
        found = self._questions.ask_leader(
            topic, name, lambda r: FindOffset(r, topic, name, timestamp_ms), any_replica=True
        )
        assert isinstance(found, OffsetFound)
        return found.offset

    # --- positions and offsets ------------------------------------------------------------------

    def read(self, unread: Collection[str]) -> dict[str, int]:
        """The offset of the application's next record in each partition.

        *unread* maps a partition to the offset of the first record that was fetched but not
        returned.
        """
        return self._reading().read_so_far(unread)

    def committed(self) -> dict[str, int]:
        """The group's committed offset in each partition that the group has begun to consume."""
        offsets = self.group_state().offsets
        return {o.partition: o.committed for o in offsets if o.topic == self._topic}

    def group_state(self, timeout: float = REQUEST_S) -> GroupState:
        """The group's state by its coordinator; an empty state if the coordinator does not know the
        group.
        """
        assert self._group is not None
        try:
            return self._questions.group_state(self._group, timeout)
        except UnknownGroup:
            return GroupState(0, self._group)

    # --- seeks ----------------------------------------------------------------------------------

    def seek(self, partition: str, offset: int | str) -> str:
        """Make the reader continue at *offset*; returns the name of the partition."""
        reader, name = self._reading(), self.name(partition)
        resolved = parse_offset(offset)
        if resolved < 0:
            start, end = self._questions.bounds(self._topic, name)
            resolved = start if resolved == BEGIN else end
        with self._driver as loop:
            reader.seek(name, resolved)
            loop.touch(reader.name)
        return name

    def seek_to_time(self, partition: str, timestamp_ms: int) -> str:
        """Make the reader continue at the first record not older than a time; returns the
        partition.
        """
        reader, name = self._reading(), self.name(partition)
        if type(timestamp_ms) is not int:
            raise ConfigError(f"timestamp_ms={timestamp_ms!r} must be milliseconds since 1970")
        with self._driver as loop:
            done = reader.find(name, timestamp_ms)
            loop.touch(reader.name)
        if not self._driver.wait(done, REQUEST_S):
            raise RequestTimeout(f"{self._topic}/{name}: {reader.trouble() or 'no answer'}")
        if (problem := reader.take_problem()) is not None:
            raise problem
        return name

    def _reading(self) -> Reader:
        if self._reader is None:
            raise InvalidRequest("a consumer of a group cannot seek; reset the group instead")
        return self._reader
