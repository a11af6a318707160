"""Placement of blocks: distinct live brokers, spread over racks, fair, and repaired in steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import InvalidRequest, NotEnoughBrokers
from pymq.hash.place import place, place_all
from pymq.hash.rebalance import rebalance
from pymq.hash.ring import Ring

KEYS = [f"orders/{i}" for i in range(60)]
brokers = st.lists(
    st.sampled_from([f"b{i}" for i in range(9)]), min_size=3, max_size=9, unique=True
)


def test_without_load_it_is_the_ring() -> None:
    names = ["b1", "b2", "b3", "b4"]
    for key in KEYS:
        assert place(key, names, 3) == Ring(names).pick(key, 3)
        assert place(key, reversed(names), 3) == place(key, dict.fromkeys(names, 1.0), 3)


@given(brokers, st.integers(1, 3), st.integers(1, 60))
def test_shares_are_fair(names: list[str], replicas: int, count: int) -> None:
    """With any number of brokers, the numbers of replicas differ by one at most, and the numbers of
    leaders are close.
    """
    placed = place_all(KEYS[:count], names, replicas)
    assert list(placed) == sorted(KEYS[:count])
    assert all(len(set(chosen)) == replicas for chosen in placed.values())
    hosting = Counter(name for chosen in placed.values() for name in chosen)
    assert max(hosting[name] for name in names) - min(hosting[name] for name in names) <= 1
    leading = Counter(chosen[0] for chosen in placed.values())
    assert max(leading.values()) <= count / len(names) + 2


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_three_brokers_are_within_15_percent(replicas: int) -> None:
    placed = place_all([f"t/{i}" for i in range(300)], ["b1", "b2", "b3"], replicas)
    hosting = Counter(name for chosen in placed.values() for name in chosen)
    leading = Counter(chosen[0] for chosen in placed.values())
    assert all(abs(hosting[name] / (100 * replicas) - 1) < 0.15 for name in ("b1", "b2", "b3"))
    assert all(abs(leading[name] / 100 - 1) < 0.15 for name in ("b1", "b2", "b3"))


def test_load_follows_weight() -> None:
    placed = place_all(KEYS, {"a": 2.0, "b": 1.0, "c": 1.0}, 1)
    assert Counter(chosen[0] for chosen in placed.values()) == {"a": 30, "b": 15, "c": 15}


def test_replicas_spread_over_racks_before_balance() -> None:
    racks = {"a": "r1", "b": "r2", "c": "r2", "d": "r2", "e": "r2"}
    placed = place_all(KEYS, list(racks), 2, racks)
    assert all("a" in chosen for chosen in placed.values())
    others = Counter(name for chosen in placed.values() for name in chosen if name != "a")
    assert others == {"b": 15, "c": 15, "d": 15, "e": 15}


def test_what_is_there_already_counts() -> None:
    assert place("t/0", ["a", "b", "c"], 2, hosting={"a": 9, "b": 0, "c": 0}) in {
        ("b", "c"),
        ("c", "b"),
    }
    assert place("t/0", ["a", "b"], 2, leading={"a": 3, "b": 1})[0] == "b"


def test_too_few_brokers_is_a_clear_error() -> None:
    with pytest.raises(NotEnoughBrokers):
        place("t/0", ["a", "b"], 3)
    with pytest.raises(NotEnoughBrokers):
        place("t/0", [], 1)
    with pytest.raises(InvalidRequest):
        place("t/0", ["a"], 0)


@given(brokers, brokers, st.integers(1, 3), st.integers(1, 60), st.integers(0, 50))
def test_rebalance_repairs_levels_and_stops(
    before: list[str], after: list[str], replicas: int, count: int, budget: int
) -> None:
    """In small steps or in one, the result has no dead broker and an even load, and a repetition
    moves nothing.
    """
    placed = place_all(KEYS[:count], before, replicas)
    step = rebalance(placed, after, budget=budget)
    moved = sum(len(set(step[key]) - set(placed[key])) for key in step)
    assert moved <= budget
    placed |= step
    placed |= rebalance(placed, after)
    assert rebalance(placed, after) == {}
    hosting = Counter(name for chosen in placed.values() for name in chosen)
    assert set(hosting) <= set(after)
    assert all(len(set(chosen)) == replicas for chosen in placed.values())
    assert max(hosting[name] for name in after) - min(hosting[name] for name in after) <= 1


def test_rebalance_moves_no_more_than_needed() -> None:
    placed = place_all(KEYS, ["a", "b", "c"], 1)
    step = rebalance(placed, ["a", "b", "c", "d"])
    assert len(step) == 15
    assert set(step.values()) == {("d",)}


def test_rebalance_keeps_racks_apart() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2", "e": "r1"}
    placed = place_all(KEYS, ["a", "b", "c", "d"], 2, racks)
    placed |= rebalance(placed, list(racks), racks)
    assert all(len({racks[name] for name in chosen}) == 2 for chosen in placed.values())
    hosting = Counter(name for chosen in placed.values() for name in chosen)
    assert hosting == {"a": 20, "b": 20, "c": 30, "d": 30, "e": 20}


def test_rebalance_does_what_it_can_with_too_few_brokers() -> None:
    """A replica without a replacement stays listed, but its broker does not lead."""
    placed = {"t/0": ("dead", "gone", "a")}
    assert rebalance(placed, ["a", "b"]) in (
        {"t/0": ("a", "b", "gone")},
        {"t/0": ("b", "gone", "a")},
    )
    assert rebalance(placed, ["a"]) == {}
    assert rebalance(placed, []) == {}
    assert rebalance({}, ["a"]) == {}
