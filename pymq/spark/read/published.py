"""Publishes the progress of a stream as the offsets of a group, for monitoring only.

The group has no members. A query never reads the offsets of the group; it continues from its
checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from pymq.core import message as msg
from pymq.errors import PymqError
from pymq.spark.options import SourceOptions
from pymq.spark.planning import Place
from pymq.spark.process import client
from pymq.spark.read.offsets import Position

EVERY_S = 1.0  # at most once in this time, so that short batches are not delayed
TIMEOUT_S = 2.0  # timeout of each request

log_ = logging.getLogger("pymq.spark")


class GroupProgress:
    """The offsets that a query has published."""

    def __init__(self, options: SourceOptions) -> None:
        self._url = options.url
        self._group = options.group
        self._published: dict[Place, tuple[int, int | None]] = {}  # offset and end
        self._due_s = 0.0

    def publish(self, done: Position, ends: Mapping[Place, int], *, is_last: bool) -> None:
        """Publish the offsets up to which a query has read, with the *ends* of their partitions, at
        most once a second.

        *is_last* publishes at once, because the query may end. A failure is logged; the next batch
        tries again.
        """
        now = time.monotonic()
        if self._group is None or (now < self._due_s and not is_last):
            return
        changed = {
            place: (offset, ends.get(place))
            for place, offset in done.offsets.items()
            if self._published.get(place) != (offset, ends.get(place))
        }
        if not changed:
            return
        self._due_s = now + EVERY_S
        questions = client(self._url).questions
        try:
            for (topic, partition), (offset, end) in changed.items():
                commit = partial(
                    msg.CommitOffset,
                    group=self._group,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    end=end,
                )
                questions.ask_group(self._group, commit, TIMEOUT_S)
                self._published[topic, partition] = offset, end
        except PymqError as error:
            log_.warning("progress was not published to group %s: %s", self._group, error)
