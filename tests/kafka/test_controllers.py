"""The gate finds the active zkserver among several."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pymq.core.message import Answer, ListTopics
from pymq.errors import NotController
from pymq.kafka.shared.controllers import TAKEOVER_MS, Controllers, ask_controller
from pymq.kafka.shared.conversation import LATE, Ask, GateContext, Pause
from pymq.kafka.shared.fetch_sessions import FetchSessions
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


def test_a_zkserver_that_is_silent_is_left_only_by_reads() -> None:
    """A change may have been carried out although no answer came."""
    here = context()
    steps = ask_controller(here, ListTopics, reads=True)
    assert asked(next(steps)) == "a"
    assert asked(steps.send([LATE])) == "b"
    changing = ask_controller(here, ListTopics)
    assert asked(next(changing)) == "b"
    assert returned(changing, LATE) is LATE


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
