"""Members that can consume some partitions only, settlements as a whole, and deleted offsets."""

from __future__ import annotations

from typing import Any

import pytest

from pymq.core.message import (
    BEGIN,
    Acquire,
    Acquired,
    Assigned,
    DeleteGroup,
    GetGroup,
    GroupState,
    Join,
    Leave,
    Settle,
    Settled,
)
from pymq.errors import InvalidName, InvalidRequest, UnknownGroup
from tests.core.group.test_coordinator import ACK_WAIT, SESSION, Host, leases

NAMES = ("0", "1", "2")


@pytest.fixture
def host() -> Host:
    return Host()


def join(
    host: Host, member: str, within: tuple[str, ...] | None, ordered: bool | None = False
) -> tuple[str, ...]:
    """Join as a share session does; returns the assignment."""
    options = (NAMES, "sticky", SESSION, ACK_WAIT, 2, BEGIN, "", ordered, within)
    answer = host.send(member, Join(host.id(), "g", member, "t", *options))[-1]
    assert isinstance(answer, Assigned)
    if answer.error is not None:
        raise answer.error
    return answer.partitions


def lease(host: Host, member: str, ends: dict[str, int], limit: int = 100) -> set[str]:
    """Lease records, of any partition; returns the partitions."""
    known = tuple((name, 0, end) for name, end in ends.items())
    request = Acquire(host.id(), "g", member, known, limit, 0, shares=True)
    found = leases(host.send(member, request)[-1:])
    assert found is not None
    return {name for name, _, _, _ in found}


def test_a_partition_goes_to_a_member_that_can_consume_it(host: Host) -> None:
    join(host, "at-0", ("0",))
    join(host, "at-1", ("1",))
    join(host, "at-2", ("2",))
    assert [host.beat(f"at-{n}", NAMES) for n in NAMES] == [("0",), ("1",), ("2",)]


def test_a_partition_that_nobody_can_consume_has_no_owner(host: Host) -> None:
    assert join(host, "a", ("1",)) == ("1",)
    assert join(host, "a", ("1", "2")) == ("1", "2")
    assert join(host, "a", ()) == ()
    host.join("all", NAMES)
    assert sorted(host.beat("all", NAMES)) == ["0", "1", "2"]


def test_a_bound_member_gets_no_records_of_other_partitions(host: Host) -> None:
    """Even if it is idle, and other members' records need no order."""
    join(host, "a", ("0",))
    join(host, "b", ("1", "2"))
    host.beat("a", NAMES)
    assert lease(host, "b", {"1": 5, "2": 5}, 1) <= {"1", "2"}
    assert lease(host, "a", {"0": 0, "1": 5, "2": 5}) == set()
    assert lease(host, "a", {"0": 3}) == {"0"}


def test_two_sessions_of_one_partition_share_its_records(host: Host) -> None:
    join(host, "a", ("0",))
    join(host, "b", ("0",))
    for name in ("a", "b"):
        host.beat(name, NAMES)
    assert lease(host, "a", {"0": 9}, 3) == {"0"}
    assert lease(host, "b", {"0": 9}, 3) == {"0"}


def test_the_names_of_partitions_are_checked(host: Host) -> None:
    with pytest.raises(InvalidName):
        join(host, "a", ("/",))
    with pytest.raises(InvalidRequest):
        join(host, "a", ("0", "0"))


# --- settlements as a whole ---------------------------------------------------------------------


def whole(host: Host, member: str, **what: Any) -> Settled:
    settle = Settle(host.id(), "g", member, whole=True, **what)
    found = host.send(member, settle)
    host.settle_all()
    (answer,) = [*found, *host.take(member)]
    assert isinstance(answer, Settled)
    return answer


def test_a_whole_is_refused_if_one_lease_is_missing(host: Host) -> None:
    join(host, "a", NAMES)
    join(host, "b", NAMES)
    host.beat("a", NAMES)
    lease(host, "a", {"0": 10}, 5)
    assert whole(host, "a", acks=(("0", (0, 2)),)).refused == 0
    # The first records are acknowledged already, the last ones were never leased.
    refusals: list[dict[str, Any]] = [
        {"acks": (("0", (0, 4)),)},
        {"acks": (("0", (2, 4)), ("0", (4, 6)))},
        {"acks": (("0", (2, 4)),), "nacks": (("0", (4, 7), 0),)},
        {"acks": (("0", (2, 4)),), "renewals": (("1", (0, 1)),)},
    ]
    for refused in refusals:
        assert whole(host, "a", **refused).refused > 0
        assert whole(host, "b", acks=(("0", (2, 4)),)).refused == 2  # another's
    answer = whole(host, "a", acks=(("0", (2, 4)),), nacks=(("0", (4, 5), 0),))
    assert answer.refused == answer.lapsed == 0
    assert whole(host, "a", acks=(("0", (2, 4)),)) == Settled(answer.id + 1, 2)


def test_a_whole_of_an_expired_lease_is_refused(host: Host) -> None:
    join(host, "a", NAMES)
    lease(host, "a", {"0": 3})
    host.at(ACK_WAIT)
    answer = whole(host, "a", acks=(("0", (0, 3)),))
    assert (answer.refused, answer.lapsed) == (3, 3)


# --- deleted offsets ----------------------------------------------------------------------------


def test_the_offsets_of_one_topic_are_deleted(host: Host) -> None:
    for topic in ("t", "u"):
        host.join(topic, topic=topic)
        answer = host.send(topic, Acquire(host.id(), "g", topic, (("0", 0, 9),), 9, 0))[-1]
        assert isinstance(answer, Acquired)
        host.done(topic, ("0", (0, 9)))

    def delete(topic: str) -> Settled:
        host.send("admin", DeleteGroup(host.id(), "g", topic))
        host.settle_all()
        (answer,) = host.take("admin") or [Settled(0)]
        assert isinstance(answer, Settled)
        return answer

    def topics(where: Host) -> list[str]:
        (state,) = where.send("x", GetGroup(1, "g"))
        assert isinstance(state, GroupState)
        return [each.topic for each in state.offsets]

    (refused,) = host.send("admin", DeleteGroup(1, "g", "t"))
    assert isinstance(refused, Settled)
    assert isinstance(refused.error, InvalidRequest)
    for topic in ("t", "u"):
        host.send(topic, Leave(host.id(), "g", topic))
    assert topics(host) == ["t", "u"]
    assert delete("t").error is None
    assert topics(host) == topics(Host(host.log)) == ["u"]
    assert delete("u").error is None
    assert isinstance(delete("u").error, UnknownGroup)
