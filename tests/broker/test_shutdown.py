"""A stopping broker asks the zkserver to move its leaderships, until it leads no partition."""

from __future__ import annotations

import attrs
import pytest

from pymq.broker.shutdown import RETRY_MS, ShutdownHandover
from pymq.core.message import Answer
from pymq.core.types import NEVER
from pymq.errors import NotController

WITHIN_MS = 10_000


@pytest.fixture
def leaving() -> ShutdownHandover:
    made = ShutdownHandover("b", 1)
    made.begin(0, WITHIN_MS)
    return made


def ask(leaving: ShutdownHandover) -> int:
    """Let the broker send its request when it is due; returns the request's number."""
    request = leaving.ask(leaving.deadline)
    assert request is not None
    return request.id


def test_it_is_over_when_nothing_is_left(leaving: ShutdownHandover) -> None:
    answers = [Answer(0, 3), Answer(0, error=NotController("another")), Answer(0, 0)]
    over = []
    for answer in answers:
        leaving.answered(attrs.evolve(answer, id=ask(leaving)))
        over.append(leaving.is_over)
    assert over == [False, False, True]
    assert leaving.deadline == NEVER


@pytest.mark.parametrize("behind", range(4))
def test_an_answer_counts_though_the_broker_has_asked_again(
    behind: int, leaving: ShutdownHandover
) -> None:
    """With a round trip of 300 ms each answer arrives after the next request, and still counts."""
    asked = [ask(leaving) for _ in range(4)]
    assert leaving.deadline == 4 * RETRY_MS
    leaving.answered(Answer(asked[-1 - behind], 0))
    assert leaving.is_over


@pytest.mark.parametrize("request_id", [0, 2, -1])
def test_an_answer_to_what_was_not_asked_is_none(
    request_id: int, leaving: ShutdownHandover
) -> None:
    ask(leaving)
    leaving.answered(Answer(request_id, 0))
    assert not leaving.is_over


def test_its_time_is_bounded(leaving: ShutdownHandover) -> None:
    while (request := leaving.ask(leaving.deadline)) is not None:
        leaving.answered(Answer(request.id, 1))
    assert leaving.is_over


def test_nothing_is_asked_by_one_that_may_take_no_time() -> None:
    leaving = ShutdownHandover("b", 1)
    leaving.begin(0, 0)
    assert leaving.is_over
    assert leaving.deadline == NEVER
