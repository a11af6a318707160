"""Waits until a decommissioned broker holds no replicas."""

from __future__ import annotations

from collections.abc import Callable

from pymq.client.admin.requests import Requests
from pymq.core import message as msg
from pymq.core.metadata.descriptions import BrokerDescription
from pymq.errors import InvalidRequest, RequestTimeout

LOOK_S = 0.25  # pause before the second request; doubles before each further request, up to ...
LOOK_MAX_S = 2.0


def until_empty(
    questions: Requests,
    broker: str,
    timeout: float | None,
    on_progress: Callable[[BrokerDescription], object],
) -> None:
    """Wait until a broker holds no replicas and has removed their files.

    Raises:
        RequestTimeout: after *timeout* seconds the broker still holds replicas; the message says
            why.
        InvalidRequest: the decommission was cancelled.
    """
    until = None if timeout is None else questions.monotonic() + timeout
    pause = LOOK_S
    while True:
        described = questions.ask(msg.DescribeCluster).brokers
        found = next((each for each in described if each.name == broker), None)
        if found is None or not found.is_draining:
            raise InvalidRequest(f"the decommission of {broker!r} was cancelled")
        on_progress(found)
        if not found.blocks and not found.kept_by:
            return
        if until is not None and questions.monotonic() >= until:
            whys = "; ".join(found.kept_by)
            raise RequestTimeout(f"{broker} is not empty after {timeout:g} s: {whys}")
        # Poll, because no message informs a client that a block has moved.
        left = pause if until is None else min(pause, until - questions.monotonic())
        questions.pause(max(0.001, left))
        pause = min(2 * pause, LOOK_MAX_S)
