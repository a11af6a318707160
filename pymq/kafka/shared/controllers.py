"""Asks the active zkserver, and finds it again when another one has taken over."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pymq.core.message import DescribeCluster, Message
from pymq.core.metadata.descriptions import ClusterDescription
from pymq.errors import NotController, PymqError
from pymq.kafka.shared.conversation import (
    ANSWER_MS,
    Ask,
    Endpoint,
    GateContext,
    Late,
    Pause,
    Wait,
)

TAKEOVER_MS = 15_000  # time for another zkserver to become active
READ_MS = 2_000  # time for the answer to a read; then another zkserver is asked
RETRY_MS = 50


class Controllers:
    """The zkservers, and which of them was active last."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.active = self._names[0]

    def refused(self, asked: str, error: PymqError) -> None:
        """Note that the zkserver *asked* is not active, or has not answered."""
        if asked != self.active:
            return  # Another request has found that out.
        named = error.details.get("controller")
        if isinstance(named, str) and named in self._names and named != asked:
            self.active = named
            return
        index = self._names.index(asked)
        self.active = self._names[(index + 1) % len(self._names)]


def ask_controller(
    context: GateContext, make: Callable[[int], Message], *, reads: bool = False
) -> Generator[Wait, Any, Any]:
    """Ask the active zkserver; returns its answer.

    A zkserver that is not active does nothing but say so, so another one is asked. A request that
    only *reads* is repeated if no answer comes, too.
    """
    until = context.now + TAKEOVER_MS
    while True:
        asked = context.controllers.active
        (answer,) = yield Ask([(asked, make)], READ_MS if reads else ANSWER_MS)
        is_refused = isinstance(answer.error, NotController)
        if not is_refused and not (reads and isinstance(answer, Late)):
            return answer
        if context.now >= until:
            return answer
        context.controllers.refused(asked, answer.error)
        if is_refused:
            yield Pause(RETRY_MS)


def load_brokers(context: GateContext) -> Generator[Wait, Any, None]:
    """Look up where the brokers listen for Kafka's clients.

    If no zkserver answers, the brokers are those of the last time. An embedded queue has its
    brokers in this process, and asks nobody.
    """
    if not context.asks_brokers:
        return
    answer = yield from ask_controller(context, _brokers, reads=True)
    if not isinstance(getattr(answer, "result", None), ClusterDescription):
        return
    endpoints = dict[str, Endpoint]()
    for each in answer.result.brokers:
        host, _, port = each.kafka.rpartition(":")
        if each.alive and host and each.number >= 0:
            endpoints[each.name] = Endpoint(each.number, host.strip("[]"), int(port))
    context.endpoints = endpoints


def _brokers(request: int) -> DescribeCluster:
    return DescribeCluster(request, brokers_only=True)
