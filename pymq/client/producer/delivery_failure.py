"""The error of a batch that got no answer. The error names the last failure, and says whether a
broker may have written the batch.
"""

from __future__ import annotations

from pymq.client.producer.delivery import Batch
from pymq.client.router import Router
from pymq.core.counts import plural
from pymq.errors import (
    DeliveryTimeout,
    Disconnected,
    NotLeader,
    PymqError,
    RequestTimeout,
    error_from_code,
)


def told_by(source: str, error: PymqError) -> PymqError:
    """Describe a refusal: the error and the name of the broker or zkserver."""
    return error_from_code(error.code, f"{source}: {error}", error.details)


def silence(router: Router, leader: str) -> PymqError:
    """Describe why *leader* does not answer, as far as that is known."""
    if router.is_lost(leader):
        return Disconnected(f"there is no connection to {leader}")
    return RequestTimeout(f"{leader} did not answer")


def overdue(router: Router, batch: Batch, timeout_ms: int) -> DeliveryTimeout:
    """Return the error of a batch that was not answered within *timeout_ms*."""
    queue = batch.queue
    topic, partition = queue.topic, queue.partition
    reason = queue.trouble
    if reason is None and router.metadata.find(topic, partition) is None:
        why = router.why_no_leader(topic)
        reason = NotLeader(f"the leader of {topic}/{partition} is unknown: {why}")
    elif reason is None and batch.request and queue.target is not None:
        reason = silence(router, queue.target.leader or "")
    who, was = ("it", "was") if batch.count == 1 else ("they", "were")
    outcome = f"{who} may have been written" if batch.may_be_written else f"{who} {was} not written"
    why = f". The last reason: {reason} ({reason.code})" if reason is not None else ""
    return DeliveryTimeout(
        f"{plural(batch.count, 'record')} for {topic}/{partition} {was} not acknowledged within "
        f"{timeout_ms / 1000:g} s; {outcome}{why}",
        may_be_written=batch.may_be_written,
        reason=reason.code if reason is not None else None,
    )
