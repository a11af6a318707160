"""All registered assignors: complete, even, and deterministic; sticky keeps assignments."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.errors import ConfigError
from pymq.hash.assign import Assignment, Assignor, Partition, assignor, names, register
from pymq.hash.assign.base import _ASSIGNORS
from pymq.hash.assign.level import level

every_assignor = pytest.mark.parametrize(
    "assign", [assignor(name) for name in names()], ids=names()
)

member_lists = st.lists(
    st.sampled_from([f"m{i}" for i in range(14)]), min_size=1, max_size=14, unique=True
)
partition_lists = st.lists(
    st.tuples(st.sampled_from(["s", "t", "u"]), st.integers(0, 7)), max_size=24, unique=True
)
pasts = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(16)]),
    st.lists(st.tuples(st.sampled_from(["s", "t", "old"]), st.integers(0, 9)), max_size=8),
    max_size=16,
)
limits = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(14)]), st.sets(st.sampled_from(["s", "t", "u"]))
)


def owners(result: Assignment) -> dict[Partition, list[str]]:
    found: dict[Partition, list[str]] = {}
    for member, partitions in result.items():
        for partition in partitions:
            found.setdefault(partition, []).append(member)
    return found


@every_assignor
@given(members=member_lists, partitions=partition_lists, previous=pasts)
def test_everything_is_assigned_and_level(
    assign: Assignor,
    members: list[str],
    partitions: list[Partition],
    previous: dict[str, list[Partition]],
) -> None:
    result = assign(members, partitions, previous)
    assert list(result) == sorted(members)
    assert all(list(got) == sorted(set(got)) for got in result.values())
    shared = owners(result)
    assert set(shared) == set(partitions)
    if not partitions:
        return
    loads = [len(got) for got in result.values()]
    assert max(loads) - min(loads) <= 1
    assert min(loads) >= 1 or len(members) <= len(partitions)
    sharers = [len(who) for who in shared.values()]
    if len(members) <= len(partitions):
        assert set(sharers) == {1}
        assert min(loads) >= 1
    else:
        assert set(loads) == {1}
        assert max(sharers) - min(sharers) <= 1


@every_assignor
@given(
    members=member_lists, partitions=partition_lists, previous=pasts, limits=limits, data=st.data()
)
def test_the_order_given_does_not_matter(
    assign: Assignor,
    members: list[str],
    partitions: list[Partition],
    previous: dict[str, list[Partition]],
    limits: dict[str, set[str]],
    data: st.DataObject,
) -> None:
    first = assign(members, partitions, previous, subscriptions=limits)
    again = assign(
        data.draw(st.permutations(members + members[:1])),
        data.draw(st.permutations(partitions + partitions[:1])),
        dict(reversed(previous.items())),
        subscriptions=dict(reversed(limits.items())),
    )
    assert list(first.items()) == list(again.items())


@every_assignor
@given(members=member_lists, partitions=partition_lists, previous=pasts, limits=limits)
def test_subscriptions_are_kept(
    assign: Assignor,
    members: list[str],
    partitions: list[Partition],
    previous: dict[str, list[Partition]],
    limits: dict[str, set[str]],
) -> None:
    """No member gets partitions of topics that it does not allow, all possible partitions are
    assigned, and spare members share.
    """
    result = assign(members, partitions, previous, subscriptions=limits)
    able = {p: [m for m in sorted(members) if p[0] in limits.get(m, p[0])] for p in partitions}
    shared = owners(result)
    assert set(shared) == {p for p in partitions if able[p]}
    assert all(set(who) <= set(able[p]) for p, who in shared.items())
    for member in members:
        assert bool(result[member]) == any(member in who for who in able.values())
    for p, q in product(shared, shared):
        if able[p] == able[q]:
            assert len(shared[p]) - len(shared[q]) <= 1
    # A member shares a partition only if it would otherwise have none; each partition has one
    # owner.
    for who in shared.values():
        assert sum(len(result[member]) > 1 for member in who) <= 1


@every_assignor
def test_nothing_to_do(assign: Assignor) -> None:
    assert assign([], [("t", 0)], {"gone": [("t", 0)]}) == {}
    assert assign(["a"], [], {"a": [("t", 0)]}) == {"a": ()}
    assert assign(["a", "b"], [("t", 0)], {}, subscriptions={"a": []}) == {
        "a": (),
        "b": (("t", 0),),
    }


@every_assignor
def test_members_of_few_topics_are_thought_of_first(assign: Assignor) -> None:
    """If members with different limits can be balanced, the assignor finds a way."""
    both = [("a", i) for i in range(20)] + [("z", i) for i in range(20)]
    if assign is not assignor("range"):  # "range" assigns each set of topics separately
        result = assign(["m", "n"], both, {}, subscriptions={"m": ["a"]})
        assert {member: len(got) for member, got in result.items()} == {"m": 20, "n": 20}
    odd = [("s", 0), ("s", 1), ("s", 2), ("t", 0)]
    result = assign(["m", "n", "o"], odd, {}, subscriptions={"o": ["t"]})
    assert sorted(len(got) for got in result.values()) == [1, 1, 2]


def topic(count: int) -> list[Partition]:
    return [("t", index) for index in range(count)]


def moved(before: Mapping[str, Sequence[Partition]], after: Assignment) -> int:
    """Return how many partitions a member gets that it did not have before."""
    return sum(len(set(got) - set(before.get(member, ()))) for member, got in after.items())


# --- sticky -------------------------------------------------------------------------------------


def least_moves(kept: Sequence[int], total: int) -> int:
    """Return the smallest number of moves that distribute *total* items evenly over bins that hold
    *kept*.

    If the items cannot be divided evenly, the fullest bins keep one more. Items above a bin's share
    must move, and unplaced items must be placed.
    """
    each, extra = divmod(total, len(kept))
    parts = [each + (i < extra) for i in range(len(kept))]
    return total - sum(min(has, part) for has, part in zip(sorted(kept)[::-1], parts, strict=True))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.sets(st.integers(0, 5), min_size=1),
)
def test_sticky_moves_the_least_there_is(had: list[int], alive: set[int]) -> None:
    """From any start, even or not, the smallest number of partitions moves (partition i is with
    member had[i]).
    """
    members = [f"m{i}" for i in sorted(alive)]
    before = {
        f"m{m}": [("t", i) for i, owner in enumerate(had) if owner == m] for m in sorted(set(had))
    }
    after = assignor("sticky")(members, topic(len(had)), before)
    if len(members) <= len(had):
        expected = least_moves([len(before.get(m, ())) for m in members], len(had))
        assert moved(before, after) == expected


@given(
    st.lists(st.integers(0, 4), min_size=7, max_size=30),
    st.integers(1, 6),
)
def test_sticky_sharers_move_the_least_there_is(sits: list[int], count: int) -> None:
    """With more members than partitions, as few members as possible move (member i is at partition
    sits[i], which may be gone).
    """
    before = {f"m{i:02}": [("t", seat)] for i, seat in enumerate(sits)}
    after = assignor("sticky")(list(before), topic(count), before)
    kept = [sits.count(seat) for seat in range(count)]
    assert moved(before, after) == least_moves(kept, len(sits))


@every_assignor
@given(members=member_lists, partitions=partition_lists)
def test_sticky_keeps_any_level_past(
    assign: Assignor, members: list[str], partitions: list[Partition]
) -> None:
    before = assign(members, partitions, {})
    assert assignor("sticky")(members, partitions, before) == before


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=30), st.integers(1, 20))
def test_sticky_through_a_long_life(changes: list[tuple[bool, int]], count: int) -> None:
    """Each join or leave moves at most one member's fair share."""
    alive, now = {0}, assignor("sticky")(["m0"], topic(count), {})
    for joins, number in changes:
        size = len(alive)
        alive = (alive | {number}) if joins else (alive - {number} or {0})
        if len(alive ^ {int(m[1:]) for m in now}) != 1:
            continue
        after = assignor("sticky")([f"m{i}" for i in sorted(alive)], topic(count), now)
        fair = -(-count // max(1, min(size, len(alive))))
        assert moved(now, after) <= fair
        now = after


def chances(allowed: Mapping[int, str]) -> Iterator[dict[int, str]]:
    for bins in product(*allowed.values()):
        yield dict(zip(allowed, bins, strict=True))


@given(
    st.lists(st.sampled_from(["A", "B", "C", "AB", "BC", "AC", "ABC"]), min_size=1, max_size=6),
    st.dictionaries(st.integers(0, 5), st.text("ABCX", max_size=3)),
)
def test_level_is_as_level_as_trying_everything(bins: list[str], claims: dict[int, str]) -> None:
    allowed = dict(enumerate(bins))

    def unevenness(placed: Mapping[int, str]) -> list[int]:
        return sorted(Counter(placed.values()).values(), reverse=True)

    def cost(placed: Mapping[int, str]) -> int:
        return sum(n * n for n in Counter(placed.values()).values())

    result = level(allowed, claims)
    assert set(result) == set(allowed)
    assert all(result[item] in allowed[item] for item in allowed)
    assert cost(result) == min(map(cost, chances(allowed)))
    assert unevenness(result) == min(map(unevenness, chances(allowed)))


# --- ring and range -----------------------------------------------------------------------------


def test_ring_moves_little_without_knowing_the_past() -> None:
    """The ring moves less than half of ``range``, and at most 2.5 times the necessary moves."""
    total = Counter[str]()
    for trial in range(10):
        members = [f"m{trial}-{i}" for i in range(9)]
        for name in names():
            before = assignor(name)(members[:8], topic(64), {})
            total[name] += moved(before, assignor(name)(members, topic(64), before))
    must = 10 * 7
    assert total["sticky"] == must
    assert total["ring"] < 2.5 * must
    assert total["ring"] < total["range"] / 2


@given(member_lists, st.integers(0, 30))
def test_range_gives_runs(members: list[str], count: int) -> None:
    result = assignor("range")(members, topic(count), {})
    for got in result.values():
        indexes = [index for _, index in got]
        assert indexes == list(range(indexes[0], indexes[-1] + 1)) if indexes else True
    if count >= len(members):
        assert [p for got in result.values() for p in got] == topic(count)


# --- registry -----------------------------------------------------------------------------------


def test_the_registry_knows_its_own() -> None:
    assert set(names()) >= {"range", "ring", "sticky"}
    with pytest.raises(ConfigError, match="known are range, ring, sticky"):
        assignor("stiky")
    with pytest.raises(ConfigError, match="already"):
        register("ring")(assignor("range"))


def test_a_new_assignor_is_one_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_ASSIGNORS, "mine", raising=False)
    assert register("mine")(assignor("range")) is assignor("range")
    assert assignor("mine") is assignor("range")
    assert "mine" in names()
    monkeypatch.delitem(_ASSIGNORS, "mine")
    monkeypatch.undo()
    _ASSIGNORS.pop("mine", None)
    assert "mine" not in names()


@pytest.mark.parametrize(
    "module",
    ["partitioner", "rebalance", "assign.range", "assign.ring", "assign.sticky", "assign.level"],
)
def test_worked_examples(module: str) -> None:
    result = doctest.testmod(import_module(f"pymq.hash.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
