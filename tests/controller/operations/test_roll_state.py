"""A roll takes the transitions of its table."""

from __future__ import annotations

import pytest

from pymq.controller.operations.roll_state import TRANSITIONS, Roll, RollState
from pymq.core.types import NEVER, TopicPartition


def roll() -> Roll:
    return Roll(TopicPartition("t", "0"), "id", block=1, epoch=2)


@pytest.mark.parametrize("start", RollState)
@pytest.mark.parametrize("to", RollState)
def test_a_roll_changes_its_state_only_as_the_table_says(start: RollState, to: RollState) -> None:
    one = roll()
    one.state = start
    if to in TRANSITIONS[start]:
        one.move(to)
        assert one.state is to
    else:
        with pytest.raises(AssertionError):
            one.move(to)


@pytest.mark.parametrize("to", [RollState.COMMITTING, RollState.WITHDRAWING, RollState.OVER])
def test_only_a_roll_that_is_sealing_has_deadlines(to: RollState) -> None:
    one = roll()
    one.asked(10, anybody=True)
    one.decide_at = 20
    one.move(to)
    assert one.due == NEVER
