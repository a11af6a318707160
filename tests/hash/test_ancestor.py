"""The bugs H1 to H6 of pymq's ancestor do not return."""

from __future__ import annotations

from collections import Counter

import pytest

from pymq.errors import InvalidName, NotEnoughBrokers
from pymq.hash.assign import Partition, assignor, names
from pymq.hash.place import place, place_all
from pymq.hash.rebalance import rebalance
from pymq.hash.ring import Ring, key_point, member_points

KEYS = [f"topic/{i}" for i in range(2_000)]


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_h1_every_key_finds_its_replicas(count: int) -> None:
    """Every key finds its replicas (in the ancestor, with exactly 3 brokers, 16 % of the names ran
    off the ring).
    """
    brokers = [f"broker{i}" for i in range(count)]
    assert all(len(set(place(key, brokers, 3))) == 3 for key in KEYS)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_h1_too_few_brokers_is_an_error_not_a_crash(count: int) -> None:
    with pytest.raises(NotEnoughBrokers) as caught:
        place("topic/0", [f"broker{i}" for i in range(count)], 3)
    assert caught.value.details == {"needed": 3, "available": count}


def test_h2_no_replica_has_an_empty_name() -> None:
    """In the ancestor two unfilled slots stood for a broker with the name ""."""
    brokers = ["x", "y", "z"]
    assert {name for key in KEYS for name in place(key, brokers, 3)} == set(brokers)
    with pytest.raises(InvalidName):
        place("topic/0", ["", "x", "y"], 3)


def test_h3_the_successor_is_right_at_both_ends() -> None:
    """The successor is right at both ends: the last slot has the first point as its successor."""
    ring = Ring(["x", "y", "z"])
    points = sorted((p, name) for name in "xyz" for p in member_points(name, 128))
    for key in KEYS:
        point = key_point(key)
        following = next((name for p, name in points if p >= point), points[0][1])
        assert ring.owner(key) == following
    # Some keys lie after the last point and some before the first, so both cases are tested.
    assert any(key_point(f"end/{i}") > points[-1][0] for i in range(20_000))
    for i in range(20_000):
        if not points[0][0] <= key_point(f"end/{i}") <= points[-1][0]:
            assert ring.owner(f"end/{i}") == points[0][1]


def test_h3_a_key_on_a_point_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    points = sorted((p, name) for name in "xyz" for p in member_points(name, 128))
    ring = Ring("xyz")
    for at in (0, 1, -2, -1):
        monkeypatch.setattr("pymq.hash.ring.key_point", lambda _, at=at: points[at][0])
        assert ring.owner("k") == points[at][1]


def test_h4_removing_a_broker_takes_nothing_from_the_others() -> None:
    """Removing a broker moves only its own slots (in the ancestor 18 slots moved instead of 10, 8
    of them from others).
    """
    four = Ring({"w": 1, "x": 2, "y": 1, "z": 1})
    three = four.without("x")
    assert three == Ring(["w", "y", "z"])
    for key in KEYS:
        assert list(three.order(key)) == [name for name in four.order(key) if name != "x"]


def test_h4_weight_counts() -> None:
    owned = Counter(map(Ring({"w": 1, "x": 3}).owner, KEYS))
    assert 2.2 < owned["x"] / owned["w"] < 4


def test_h5_dead_brokers_get_nothing_and_new_ones_their_share() -> None:
    """A dead broker gets no partitions, and a new one gets its share (in the ancestor neither
    held).
    """
    placed = place_all(KEYS[:200], ["w", "x", "y"], 2)
    placed |= rebalance(placed, ["x", "y", "z"])  # w has died, and z has joined
    hosting = Counter(name for chosen in placed.values() for name in chosen)
    assert set(hosting) == {"x", "y", "z"}
    assert max(hosting.values()) - min(hosting.values()) <= 1


def test_h5_movement_stays_within_the_budget() -> None:
    placed = place_all(KEYS[:200], ["w", "x", "y"], 1)
    rounds = 0
    while step := rebalance(placed, ["w", "x", "y", "z"], budget=10):
        assert len(step) <= 10
        placed |= step
        rounds += 1
    assert rounds == 5
    assert Counter(chosen[0] for chosen in placed.values())["z"] == 50


@pytest.mark.parametrize("name", names())
def test_h6_every_consumer_gets_a_partition_and_keeps_it(name: str) -> None:
    """Each consumer gets a partition (in the ancestor the second consumer of a partition was
    dropped, and counters fell below 0).
    """
    partitions: list[Partition] = [("t", index) for index in range(3)]
    now: dict[str, tuple[Partition, ...]] = {}
    # number of consumers: they join one by one and leave one by one
    sizes = [*range(1, 11), *range(9, 0, -1)]
    for size in sizes:
        members = [f"consumer{i}" for i in range(size)]
        now = assignor(name)(members, partitions, now)
        sharers = Counter(p for got in now.values() for p in got)
        assert all(now[member] for member in members) == (size > 0)
        assert set(sharers) == set(partitions)
        assert sum(sharers.values()) == max(size, 3)
        assert max(sharers.values()) - min(sharers.values()) <= 1
