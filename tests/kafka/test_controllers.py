"""The gate finds the active zkserver among several."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pymq.core.message import Answer, ListTopics
from pymq.core.metadata.descriptions import BrokerDescription, ClusterDescription
from pymq.errors import NotController, TopicExists
from pymq.kafka.shared.controllers import (
    GRACE_MS,
    RETRY_MS,
    TAKEOVER_MS,
    TRY_MS,
    Controllers,
    ask_controller,
    load_brokers,
)
from pymq.kafka.shared.conversation import LATE, Ask, GateContext, Pause
from pymq.kafka.shared.fetch_sessions import FetchSessions
from pymq.kafka.shared.share_groups import ShareGroups
from pymq.kafka.shared.subscriptions import Subscriptions
from pymq.kafka.shared.topic_cache import TopicCache
from pymq.kafka.shared.watches import Watches


def context() -> GateContext:
    watches = Watches(lambda name, end: 0, lambda number: None)
    return GateContext(
        "b",
        Controllers(["a", "b", "c"]),
        {},
        TopicCache(),
        watches,
        FetchSessions(str),
        Subscriptions(),
        ShareGroups(),
        len,
        lambda: 0,
        str,
    )


def not_active(controller: str | None = None) -> Answer:
    details = {} if controller is None else {"controller": controller}
    return Answer(0, error=NotController("not the active one", **details))


def asked(wait: Any) -> str:
    assert isinstance(wait, Ask)
    ((peer, make),) = wait.requests
    assert make(5) == ListTopics(5)
    return peer


def returned(steps: Generator[Any, Any, Any], answer: Any) -> Any:
    """Give the last answer; returns what the generator returns."""
    with pytest.raises(StopIteration) as stopped:
        steps.send([answer])
    return stopped.value.value


def test_the_named_zkserver_is_asked_then_the_next_ones() -> None:
    here = context()
    steps = ask_controller(here, ListTopics)
    assert asked(next(steps)) == "a"
    assert isinstance(steps.send([not_active("c")]), Pause)
    assert asked(steps.send(None)) == "c"
    assert isinstance(steps.send([not_active()]), Pause)
    assert asked(steps.send(None)) == "a"
    result = Answer(0, ("t",))
    assert returned(steps, result) is result
    assert here.controllers.active == "a"


def test_a_zkserver_that_is_silent_is_left_after_a_while() -> None:
    """The request keeps its id, so a zkserver that works on it does not begin it again."""
    here = context()
    steps = ask_controller(here, ListTopics)
    first = next(steps)
    assert asked(first) == "a"
    assert isinstance(first, Ask)
    assert first.ids == []
    waits = [first.wait_ms]
    for name in ("b", "c", "a"):
        again = steps.send([LATE])
        assert asked(again) == name
        assert isinstance(again, Ask)
        assert again.ids is first.ids
        waits.append(again.wait_ms)
    assert waits == [TRY_MS, TRY_MS, TRY_MS, 2 * TRY_MS]


@pytest.mark.parametrize("before", [LATE, not_active()])
def test_a_change_that_was_carried_out_before_succeeds(before: Any) -> None:
    here = context()
    exists = Answer(5, error=TopicExists("t"))
    steps = ask_controller(here, ListTopics, done="TOPIC_EXISTS")
    next(steps)
    if steps.send([before]) == Pause(RETRY_MS):
        next(steps)
    assert returned(steps, exists).error is None
    at_once = ask_controller(here, ListTopics, done="TOPIC_EXISTS")
    next(at_once)
    assert returned(at_once, exists).error is exists.error
    named = ask_controller(here, ListTopics, done="TOPIC_EXISTS")
    next(named)
    named.send([not_active("c")])
    next(named)
    assert returned(named, exists).error is exists.error


def test_it_gives_up_when_no_zkserver_becomes_active() -> None:
    here = context()
    steps = ask_controller(here, ListTopics)
    next(steps)
    here.now = TAKEOVER_MS
    assert isinstance(returned(steps, not_active()).error, NotController)


def test_one_refusal_moves_all_requests_once() -> None:
    controllers = Controllers(["a", "b", "c"])
    for _ in range(2):
        controllers.refused("a", NotController("no"))
    assert controllers.active == "b"
    controllers.refused("b", NotController("no", controller="elsewhere"))
    assert controllers.active == "c"


def test_brokers_that_a_new_zkserver_does_not_know_yet_stay_in_the_metadata() -> None:
    """A client that is sent an empty list of brokers does not ask again for minutes."""
    here = context()
    here.asks_brokers = True

    def load(now: int, *alive: bool) -> list[str]:
        here.now = now
        brokers = tuple(
            BrokerDescription(f"b{n}", "", None, each, 0, number=n, kafka=f"127.0.0.1:{9_000 + n}")
            for n, each in enumerate(alive)
        )
        steps = load_brokers(here)
        next(steps)
        assert returned(steps, Answer(0, ClusterDescription("a", 1, brokers))) is None
        return sorted(here.endpoints)

    assert load(0, True, True) == ["b0", "b1"]
    assert load(1_000, False, False) == ["b0", "b1"]
    assert load(2_000, True, False) == ["b0", "b1"]
    assert load(1_000 + GRACE_MS, True, False) == ["b0"]
    assert load(7_000, True, True) == ["b0", "b1"]
