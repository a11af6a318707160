"""Asks the active zkserver, and finds it again when another one has taken over."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pymq.core.message import Answer, DescribeCluster, Message
from pymq.core.metadata.descriptions import ClusterDescription
from pymq.errors import NotController, PymqError
from pymq.kafka.shared.conversation import (
    Ask,
    Endpoint,
    GateContext,
    Late,
    Pause,
    Wait,
)

TAKEOVER_MS = 20_000  # time for another zkserver to become active
TRY_MS = 500  # a zkserver's time to answer: doubled with each try at all of them, up to ...
TRY_MAX_MS = 4_000
RETRY_MS = 50
GRACE_MS = 5_000  # a broker that does not count as alive stays in the metadata for so long


class Controllers:
    """The zkservers, and which of them was active last."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.active = self._names[0]

    def __len__(self) -> int:
        return len(self._names)

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
    context: GateContext,
    make: Callable[[int], Message],
    *,
    done: str = "",
    is_own: bool = False,
) -> Generator[Wait, Any, Any]:
    """Ask the active zkserver; returns its answer.

    If a zkserver is not active or does not answer, the request goes to another one, or to the same
    one again, under the same id, as those of pymq's own clients do
    (:mod:`pymq.client.router`). So a change may be carried out twice. *done* is the code of the
    error that a change gets if it was carried out before; a repeated request then succeeds. With
    *is_own* the gate asks for itself, whatever the client may do.
    """
    until, ids = context.now + TAKEOVER_MS, list[int]()
    tries, is_repeated = 0, False
    while True:
        asked, tries = context.controllers.active, tries + 1
        patience = min(TRY_MS << min((tries - 1) // len(context.controllers), 10), TRY_MAX_MS)
        (answer,) = yield Ask([(asked, make)], patience, ids=ids, is_own=is_own)
        error = answer.error
        is_refused = isinstance(error, NotController)
        if not is_refused and not isinstance(answer, Late):
            is_done = is_repeated and error is not None and error.code == done
            return Answer(0) if is_done else answer
        if context.now >= until:
            return answer
        # A zkserver that names no other one may have been active until now.
        is_repeated = is_repeated or not is_refused or "controller" not in error.details
        context.controllers.refused(asked, error)
        if is_refused:
            yield Pause(RETRY_MS)


def load_brokers(context: GateContext) -> Generator[Wait, Any, None]:
    """Look up where the brokers listen for Kafka's clients.

    If no zkserver answers, the gate keeps the brokers that it knows. A zkserver that has just taken
    over counts brokers as dead until their next heartbeat. So a broker stays in the list for
    GRACE_MS: a client that is sent an empty list does not ask again for minutes. An embedded queue
    has its brokers in this process, and asks nobody.
    """
    if not context.asks_brokers:
        return
    answer = yield from ask_controller(context, _brokers, is_own=True)
    if not isinstance(getattr(answer, "result", None), ClusterDescription):
        return
    endpoints = dict[str, Endpoint]()
    for each in answer.result.brokers:
        host, _, port = each.kafka.rpartition(":")
        if each.alive:
            context.missing.pop(each.name, None)
        elif context.now - context.missing.setdefault(each.name, context.now) >= GRACE_MS:
            continue
        if host and each.number >= 0:
            endpoints[each.name] = Endpoint(each.number, host.strip("[]"), int(port))
    context.endpoints = endpoints


def _brokers(request: int) -> DescribeCluster:
    return DescribeCluster(request, brokers_only=True)
