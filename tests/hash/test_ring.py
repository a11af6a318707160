"""The ring compared with a simple model, and the moves when members come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import InvalidName, InvalidRequest, NotEnoughBrokers
from pymq.hash import ring as ring_module
from pymq.hash.ring import POINTS, Ring, key_point, member_points

names = st.text("abcdef-01é", min_size=1, max_size=6)
weights = st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.25])
members = st.dictionaries(names, weights, max_size=6)
some_members = st.dictionaries(names, weights, min_size=1, max_size=6)
keys = st.one_of(st.text(max_size=8), st.binary(max_size=8))
KEYS = [f"orders/{i}" for i in range(300)]

GOLDEN_KEY = 9_973_057_896_637_494_354
GOLDEN_POINTS = [1_611_475_823_302_451_085, 264_187_936_821_374_282]
GOLDEN_OWNERS = "cbcaacccbbbaaaacaaccaaaa"


def twin_order(members: dict[str, float], key: str | bytes) -> list[str]:
    """Return the order of members by visiting every point, twice around the circle."""
    points = sorted(
        (point, name)
        for name, weight in members.items()
        for point in ring_module.member_points(name, max(1, round(weight * POINTS)))
    )
    start = key_point(key)
    rest = [name for point, name in points if point >= start]
    return list(dict.fromkeys(rest + [name for _, name in points]))


@given(some_members, keys)
def test_order_is_that_of_the_twin(members: dict[str, float], key: str | bytes) -> None:
    ring = Ring(members)
    expected = twin_order(members, key)
    assert list(ring.order(key)) == expected
    assert ring.owner(key) == expected[0]
    for n in range(len(members) + 1):
        assert ring.pick(key, n) == tuple(expected[:n])


@given(some_members, st.sampled_from(KEYS))
def test_collisions_go_to_the_smaller_name(members: dict[str, float], key: str) -> None:
    """With 16 places on the circle nearly every point collides, and the smaller name wins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ring_module,
            "member_points",
            lambda name, count: [p >> 60 << 60 for p in member_points(name, count)],
        )
        assert list(Ring(members).order(key)) == twin_order(members, key)
        assert list(Ring(dict(reversed(members.items()))).order(key)) == twin_order(members, key)
        for name in members:  # Minimal movement also holds with collisions.
            smaller = Ring(members).without(name)
            assert list(smaller.order(key)) == [m for m in Ring(members).order(key) if m != name]


@given(members, names, weights)
def test_adding_moves_only_to_the_new_member(
    members: dict[str, float], new: str, weight: float
) -> None:
    before = Ring(members).without(new)
    after = before.with_member(new, weight)
    assert after.without(new) == before
    for key in KEYS[:50]:
        assert [name for name in after.order(key) if name != new] == list(before.order(key))


@given(some_members, st.data())
def test_removing_moves_only_what_the_member_had(
    members: dict[str, float], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    before = Ring(members)
    after = before.without(gone)
    for key in KEYS[:50]:
        if len(after) and before.owner(key) != gone:
            assert after.owner(key) == before.owner(key)
    assert after.without("no such member") == after


def test_more_weight_takes_keys_and_gives_none_away() -> None:
    light = Ring(["a", "b", "c"])
    heavy = light.with_member("b", 2.0)
    moved = [key for key in KEYS if light.owner(key) != heavy.owner(key)]
    assert moved
    assert {heavy.owner(key) for key in moved} == {"b"}


@given(st.permutations(["a", "b", "c", "d"]))
def test_order_of_members_does_not_matter(shuffled: list[str]) -> None:
    ring = Ring(shuffled)
    assert ring == Ring("abcd")
    assert hash(ring) == hash(Ring("abcd"))
    assert ring != Ring("abc")
    assert ring.members == ("a", "b", "c", "d")
    assert [ring.owner(key) for key in KEYS] == [Ring("abcd").owner(key) for key in KEYS]


def test_shares_are_even_and_follow_weights() -> None:
    many = [f"k{i}" for i in range(20_000)]
    even = Counter(map(Ring(f"broker-{i}" for i in range(5)).owner, many))
    assert all(0.75 < count / 4_000 < 1.25 for count in even.values())
    ring = Ring({"a": 1, "b": 2, "c": 1})
    uneven = Counter(map(ring.owner, many))
    assert 1.6 < uneven["b"] / ((uneven["a"] + uneven["c"]) / 2) < 2.4
    assert ring.weights == {"a": 1.0, "b": 2.0, "c": 1.0}


def test_str_and_bytes_are_the_same_key() -> None:
    assert key_point("grün") == key_point("grün".encode())
    # this works even for text that UTF-8 cannot encode
    assert key_point("\udc80") != key_point("\udc81")


def test_too_few_members_is_a_clear_error() -> None:
    with pytest.raises(NotEnoughBrokers, match="3 distinct members are needed and 2") as caught:
        Ring(["a", "b"]).pick("k", 3)
    assert caught.value.details == {"needed": 3, "available": 2}
    with pytest.raises(NotEnoughBrokers):
        Ring().owner("k")
    with pytest.raises(NotEnoughBrokers):
        Ring(["a", "b"]).pick("k", 2, keep=["a"])
    assert Ring().pick("k", 0) == ()
    assert list(Ring().order("k")) == []


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e9])
def test_bad_weights_are_refused(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight of 'a'"):
        Ring({"a": weight})


def test_bad_names_and_counts_are_refused() -> None:
    with pytest.raises(InvalidName):
        Ring(["a", ""])
    with pytest.raises(InvalidRequest):
        Ring(["a"]).pick("k", -1)


@given(
    st.dictionaries(names, st.sampled_from(["r1", "r2", "r3", None]), min_size=1, max_size=8),
    st.sampled_from(KEYS),
    st.data(),
)
def test_racks_are_used_evenly(racks: dict[str, str | None], key: str, data: st.DataObject) -> None:
    """If a rack has an unused member, every other rack is picked at most one time more than that
    rack.
    """
    n = data.draw(st.integers(1, len(racks)))
    ring = Ring(list(racks))
    picked = ring.pick(key, n, racks=racks)
    assert len(set(picked)) == n
    assert picked[0] == ring.owner(key)
    used, size = Counter(racks[m] for m in picked), Counter(racks.values())
    for rack in size:
        assert used[rack] == size[rack] or used[rack] >= max(used.values()) - 1
    # if all racks are unknown, the result is that without racks
    assert ring.pick(key, n, racks={}) == ring.pick(key, n)


def test_kept_members_count_for_racks_but_are_not_picked_again() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    for key in KEYS[:20]:
        assert Ring(list(racks)).pick(key, 1, racks=racks, keep=["a"]) == ("c",)


def test_cheaper_members_come_first() -> None:
    ring = Ring("abc")
    for key in KEYS[:20]:
        price = {"a": 1.0, "b": 0.0, "c": 1.0}
        others = [name for name in ring.order(key) if name != "b"]
        assert ring.pick(key, 3, cost=price.__getitem__) == ("b", *others)


def test_golden_points() -> None:
    """Placement does not change between releases, so these numbers never change."""
    assert key_point("orders/0") == GOLDEN_KEY
    assert member_points("broker-1", 9)[::8] == GOLDEN_POINTS
    assert "".join(Ring("abc").owner(key) for key in KEYS[:24]) == GOLDEN_OWNERS
    assert repr(Ring("b")) == "Ring({'b': 1.0})"
    assert "b" in Ring("b")
