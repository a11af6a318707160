"""Cancelled delays: a record is cancelled or delivered, as the answer said, and never both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pymq.client.client import Client
from pymq.errors import PymqError
from pymq.testing.workload.promises import TopicPromises

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster
    from pymq.testing.workload.applications import Sent, WorkloadHistory

RECENT = 500  # records among which a cancellation chooses
# States of a delayed record: nobody has cancelled it; the outcome is unknown; the two answers.
ASKED, CANCELLED, LATE = "asked", "cancelled", "late"


class Cancellations:
    """Carries out the cancellations of a plan, and compares their answers."""

    def __init__(
        self,
        cluster: Cluster,
        history: WorkloadHistory,
        promises: TopicPromises,
        fail: Callable[[str, str], None],
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._promises = promises
        self._fail = fail

    def work(self, back: int) -> Callable[[Client], None] | None:
        """The calls that cancel one of the last delayed records; None if there is none."""
        recent = self._history.sent[-RECENT:]
        found = [sent for sent in recent if sent.due_ms and sent.is_acked and self._is_sure(sent)]
        return partial(self._cancel, found[-1 - back % len(found)]) if found else None

    def _is_sure(self, sent: Sent) -> bool:
        """Whether the record is certainly at its offset, so that no other record is cancelled."""
        return self._promises.is_safe(sent) and sent.topic in self._promises.raft_for_ever

    def _cancel(self, sent: Sent, mq: Client) -> None:
        sent.cancel = sent.cancel or ASKED
        try:
            is_cancelled = mq.cancel(sent.topic, sent.partition, sent.offset)
        except PymqError:
            return
        said = CANCELLED if is_cancelled else LATE
        # Once retention has removed the record, the leader cannot know that it was cancelled.
        is_kept = sent.topic in self._promises.kept_for_ever
        # A leader remembers a cancelled record for a minute, or less if its clock is set ahead.
        is_forgotten = said == LATE and any(
            broker.was_skewed for broker in self._cluster.brokers.values()
        )
        if sent.cancel not in (ASKED, said) and is_kept and not is_forgotten:
            self._fail("cancel-is-final", f"{sent.number} is {said}, and was {sent.cancel}")
        if sent.cancel != CANCELLED:
            sent.cancel = said
        mine = (sent.number, sent.offset)
        came = [offset for (_, *copy), offset in self._history.copies.items() if (*copy,) == mine]
        if is_cancelled and came:
            self._fail("cancelled-is-absent", f"{sent.number} was cancelled after {came} had come")
