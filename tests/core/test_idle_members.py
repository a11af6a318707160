"""Unordered records go to any idle member.

Records with keys stay with the owner of their partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pymq.core.batch.offset_ranges import Ranges
from pymq.core.group.consumer_group import PAUSE_MAX_MS
from pymq.core.group.lease_manager import IDLE_TRIES
from pymq.core.message import BEGIN, Acquire, Acquired, Join, Leave, Message, Settle
from pymq.core.pending.growth import Growth
from pymq.core.types import TopicPartition
from tests.core.group.test_coordinator import ACK_WAIT, SESSION, Host, leases

Grants = Sequence[tuple[str, int, int, int]]


@pytest.fixture
def host() -> Host:
    return Host()


def join(host: Host, *members: str, ordered: bool | None = None) -> None:
    """Return members of a topic of as many partitions; the first one has partition 0."""
    partitions = tuple(map(str, range(len(members))))
    for member in (*members, *members):  # twice, so that all members know the last generation
        request = (host.id(), "g", member, "t", partitions, "sticky", SESSION, ACK_WAIT, 0, BEGIN)
        host.send(member, Join(*request, "", ordered))
    for member in members:
        host.beat(member, partitions)


def ask(
    host: Host,
    member: str,
    end: int = -1,
    *unkeyed: tuple[int, int],
    limit: int = 1,
    wait_ms: int = 5_000,
) -> Grants | None:
    """Acquire as a member that takes records of others; returns None while the request waits."""
    known = (("0", 0, end),) if end >= 0 else ()
    spans = tuple(("0", *span) for span in unkeyed)
    acquire = Acquire(host.id(), "g", member, known, limit, wait_ms, spans, shares=True)
    return leases(host.send(member, acquire)[-1:])


def settle(host: Host, member: str, *span: int) -> None:
    host.send(member, Settle(0, "g", member, (("0", (span[0], span[1])),)))


def got(host: Host, member: str) -> Grants | None:
    found: list[Message] = [m for m in host.take(member) if isinstance(m, Acquired)]
    return leases(found[-1:])


def test_a_member_without_work_gets_what_has_no_key(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 10, (0, 10)) == [("0", 0, 1, 1)]
    assert ask(host, "m2") == [("0", 1, 2, 1)]
    assert ask(host, "m1", 10, (0, 10)) == [("0", 2, 3, 1)]


def test_a_member_that_waits_gets_what_comes(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2") is None
    assert ask(host, "m1", 10, (0, 10)) == [("0", 0, 1, 1)]
    assert got(host, "m2") == [("0", 1, 2, 1)]


def test_what_a_member_at_work_tells_reaches_one_that_waits(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2") is None
    ask(host, "m1", 10, (0, 10), limit=0, wait_ms=0)
    assert got(host, "m2") == [("0", 0, 1, 1)]


def test_the_owner_comes_first_and_shares_with_those_that_wait(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2", limit=100) is None
    assert ask(host, "m1", 10, (0, 10), limit=100) == [("0", 0, 5, 1)]
    assert got(host, "m2") == [("0", 5, 10, 1)]


def test_the_owner_shares_no_record_that_may_have_a_key(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2") is None
    assert ask(host, "m1", 10, limit=100) == [("0", 0, 10, 1)]
    assert got(host, "m2") is None


def test_of_one_record_that_is_left_there_is_no_share(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2") is None
    assert ask(host, "m1", 1, (0, 1), limit=100) == [("0", 0, 1, 1)]
    assert got(host, "m2") is None


@pytest.mark.parametrize("unkeyed", [(), ((0, 0),)], ids=["not told", "none"])
def test_what_may_have_keys_stays_with_its_owner(
    host: Host, unkeyed: tuple[tuple[int, int], ...]
) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 10, *unkeyed) == [("0", 0, 1, 1)]
    assert ask(host, "m2") is None


def test_keys_that_are_passed_over_are_the_owners_next(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 10, (5, 8), limit=2) == [("0", 0, 2, 1)]
    assert ask(host, "m2", limit=100) == [("0", 5, 8, 1)]
    assert ask(host, "m2") is None
    settle(host, "m1", 0, 2)
    assert ask(host, "m1", 10, (5, 8), limit=100) == [("0", 2, 5, 1), ("0", 8, 10, 1)]
    assert host.offsets()["0"][3] == 0


def test_a_new_owner_has_what_has_no_key_at_once_and_keys_when_they_are_done(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 10, (4, 8), limit=2) == [("0", 0, 2, 1)]
    assert ask(host, "m2", limit=1) == [("0", 4, 5, 1)]
    host.send("m1", Leave(host.id(), "g", "m1"))
    join(host, "m2", "m3")
    owner, other = ("m2", "m3") if "0" in host.beat("m2", ("0", "1")) else ("m3", "m2")
    assert ask(host, owner, 10, (4, 8), limit=2) == [("0", 0, 2, 2)]
    assert ask(host, other, limit=1) == [("0", 5, 6, 1)]


@pytest.mark.parametrize("ordered", [True, False])
def test_whether_keys_matter_can_be_said(host: Host, ordered: bool) -> None:
    join(host, "m1", "m2", ordered=ordered)
    assert ask(host, "m1", 10, *([(0, 10)] if ordered else [])) == [("0", 0, 1, 1)]
    assert ask(host, "m2") == (None if ordered else [("0", 1, 2, 1)])


@pytest.mark.parametrize("others", [None, True])
def test_the_strictest_member_counts(host: Host, others: bool | None) -> None:
    join(host, "m1", "m2", ordered=False)
    join(host, "m1", ordered=others)
    join(host, "m1", ordered=others)
    host.beat("m2", ("0", "1"))
    assert ask(host, "m1", 10) == [("0", 0, 1, 1)]
    assert ask(host, "m2") is None


def test_of_those_that_have_the_same_partition_one_at_a_time_has_keys(host: Host) -> None:
    for member in ("m1", "m2"):
        host.join(member)
    host.beat("m1")
    assert ask(host, "m1", 10, (6, 8), limit=2) == [("0", 0, 2, 1)]
    assert ask(host, "m2", 10, (6, 8), limit=2) == [("0", 6, 8, 1)]
    assert ask(host, "m2", 10, (6, 8), limit=2) is None
    settle(host, "m1", 0, 2)
    assert got(host, "m2") == [("0", 2, 4, 1)]


def test_a_member_that_does_not_share_gets_only_its_own(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 10, (0, 10)) == [("0", 0, 1, 1)]
    assert host.ask("m2", {}) is None


def test_what_is_given_back_goes_to_a_member_that_waits(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 3, (0, 3), limit=3) == [("0", 0, 3, 1)]
    assert ask(host, "m2") is None
    host.send("m1", Settle(0, "g", "m1", unread=(("0", (1, 3)),)))
    assert got(host, "m2") == [("0", 1, 2, 1)]


def test_what_a_silent_member_held_goes_to_a_member_that_waits(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 1, (0, 1)) == [("0", 0, 1, 1)]
    assert ask(host, "m2") is None
    host.at(ACK_WAIT)
    assert got(host, "m2") == [("0", 0, 1, 2)]


def test_many_members_that_wait_get_one_each(host: Host) -> None:
    members = [f"m{i}" for i in range(IDLE_TRIES // 2)]
    join(host, *members)
    host.at(host.now + PAUSE_MAX_MS)  # Members that joined last share an assignment.
    for member in members:
        host.beat(member)
    for member in members[1:]:
        assert ask(host, member) is None
    ask(host, "m0", 100, (0, 100))
    found = [got(host, member) for member in members[1:]]
    assert sorted(x for grants in found if grants for x in grants) == [
        ("0", at, at + 1, 1) for at in range(1, len(members))
    ]


# --- ranges -------------------------------------------------------------------------------------


def offsets(ranges: Iterator[tuple[int, int]]) -> set[int]:
    return {at for start, end in ranges for at in range(start, end)}


def test_ranges_are_sets_of_offsets() -> None:
    ranges, seen = Ranges(100), set[int]()
    for start, end in [(5, 8), (8, 9), (1, 2), (20, 30), (0, 6), (9, 20), (40, 41), (3, 3)]:
        assert ranges.put(start, end) == (not set(range(start, end)) <= seen)
        seen |= set(range(start, end))
        assert offsets(iter(ranges)) == seen
        for low in range(42):
            part = ranges.first(low, 42)
            assert (part[0] if part else None) == min((x for x in seen if x >= low), default=None)
    ranges.cut(25)
    ranges.forget(10)
    assert offsets(iter(ranges)) == set(range(25))
    assert ranges.below(3) == ((0, 3),)


def test_of_too_many_ranges_the_lowest_are_forgotten() -> None:
    ranges = Ranges(2, [(0, 1), (2, 3), (4, 5)])
    assert list(ranges) == [(2, 3), (4, 5)]


# --- leases ahead -------------------------------------------------------------------------------


def ask_ahead(host: Host, member: str, end: int, *unkeyed: tuple[int, int]) -> Grants | None:
    """Acquire as a member that still works on other records."""
    spans = tuple(("0", *span) for span in unkeyed)
    known = (("0", 0, end),)
    acquire = Acquire(host.id(), "g", member, known, 1, 0, spans, shares=True, ahead=True)
    return leases(host.send(member, acquire)[-1:])


def test_who_asks_ahead_gets_what_nobody_waits_for(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m2") is None
    assert ask_ahead(host, "m1", 2, (0, 2)) == [("0", 1, 2, 1)]
    assert got(host, "m2") == [("0", 0, 1, 1)], "the member that waits comes first"
    assert ask_ahead(host, "m1", 2, (0, 2)) == [], "the request does not wait"
    assert ask(host, "m2") is None
    assert ask_ahead(host, "m1", 3, (0, 3)) == []
    assert got(host, "m2") == [("0", 2, 3, 1)]


def test_who_asks_ahead_gets_no_record_that_may_have_a_key(host: Host) -> None:
    """The member may return an earlier record of that key, which must come first."""
    join(host, "m1")
    assert ask(host, "m1", 4, (2, 3)) == [("0", 0, 1, 1)]
    assert ask_ahead(host, "m1", 4, (2, 3)) == [("0", 2, 3, 1)]
    assert ask_ahead(host, "m1", 4, (2, 3)) == []
    assert ask(host, "m1", 4, (2, 3)) == [("0", 1, 2, 1)]


def test_a_lease_says_whether_there_is_more_without_an_order(host: Host) -> None:
    join(host, "m1")

    def has_more(end: int, *unkeyed: tuple[int, int]) -> bool:
        spans = tuple(("0", *span) for span in unkeyed)
        acquire = Acquire(host.id(), "g", "m1", (("0", 0, end),), 1, 0, spans, shares=True)
        answer = host.send("m1", acquire)[-1]
        assert isinstance(answer, Acquired)
        assert len(answer.leases) == 1
        return answer.has_more

    assert has_more(3, (0, 2))
    assert not has_more(3, (0, 2)), "the last record may have a key"
    assert not has_more(3, (0, 2))
    assert not has_more(4, (0, 4)), "it is the last one"
    assert has_more(6, (0, 6))


# --- the broker tells its coordinators ----------------------------------------------------------


def grow(
    host: Host,
    end: int,
    *unkeyed: tuple[int, int],
    topic_id: str = "",
    partition: str = "0",
    priorities: tuple[tuple[int, int, int], ...] = (),
) -> None:
    """Let a partition grow whose leader is the coordinator's broker."""
    name = TopicPartition("t", partition)
    host.coordinator.grown(Growth(name, topic_id, end, unkeyed, priorities), host.now)


def test_a_member_that_waits_gets_the_records_of_a_broker_that_leads_the_partition(
    host: Host,
) -> None:
    """No member reports the new end: the partition's owner works on other records."""
    join(host, "m1", "m2")
    assert ask(host, "m1", 1, (0, 1)) == [("0", 0, 1, 1)]
    assert ask(host, "m2") is None
    grow(host, 2, (0, 2))
    assert got(host, "m2") == [("0", 1, 2, 1)]
    assert ask(host, "m2") is None
    grow(host, 3, (0, 2))
    assert got(host, "m2") is None, "the record may have a key"
    assert ask(host, "m1", 3, (0, 2)) == [("0", 2, 3, 1)]


def test_the_owner_that_waits_gets_records_with_keys_of_its_broker(host: Host) -> None:
    join(host, "m1")
    assert ask(host, "m1", 0) is None
    grow(host, 1)
    assert got(host, "m1") == [("0", 0, 1, 1)]


def test_records_of_another_topic_or_of_an_unknown_partition_are_not_leased(host: Host) -> None:
    join(host, "m1", "m2")
    assert ask(host, "m1", 0) is None
    assert ask(host, "m2") is None
    grow(host, 5, (0, 5), topic_id="ab" * 16)  # a later topic of that name
    grow(host, 5, (0, 5), partition="1")  # no member has said where the group begins
    assert got(host, "m1") is None
    assert got(host, "m2") is None


def test_records_of_a_broker_keep_their_priorities(host: Host) -> None:
    join(host, "m1")
    assert ask(host, "m1", 0) is None
    grow(host, 3, (0, 3), priorities=((2, 3, 7),))
    assert got(host, "m1") == [("0", 2, 3, 1)]
