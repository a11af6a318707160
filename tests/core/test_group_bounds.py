"""A coordinator stores a bounded number of members, groups and offsets, and each member has its own
limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymq.core.group import consumer_group
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.leases import Leases
from pymq.core.group.request_validation import SESSION_MAX_MS, GroupRequest
from pymq.core.group.spans import AVAILABLE
from pymq.core.message import (
    BEGIN,
    Acquire,
    Assigned,
    CommitOffset,
    DeleteGroup,
    Heartbeat,
    Join,
    Leave,
    Settle,
    Settled,
)
from pymq.errors import (
    AuthorizationFailed,
    ConfigError,
    GroupLimitReached,
    InvalidRequest,
    StoreFull,
    UnknownGroup,
)
from pymq.hash.assign import assignor
from tests.core.group.test_coordinator import ACK_WAIT, SESSION, Host
from tests.core.group.test_leases import Watched


def bounded(limits: GroupLimits) -> Host:
    host = Host()
    host.coordinator = GroupCoordinator(0, host, assignor, 0, limits=limits)
    host.coordinator.offsets.begin(0)
    host.load()
    return host


def commit(host: Host, group: str, partition: str) -> None:
    host.take("admin")
    host.coordinator.step("admin", CommitOffset(host.id(), group, "t", partition, 3), host.now)
    host.settle_all()
    (answer,) = host.take("admin")
    assert isinstance(answer, Settled)
    if answer.error is not None:
        raise answer.error


def test_a_group_has_a_largest_number_of_members() -> None:
    host = bounded(GroupLimits(members=2))
    host.join("m1")
    host.join("m2")
    with pytest.raises(GroupLimitReached) as refused:
        host.join("m3")
    assert refused.value.code == "GROUP_LIMIT_REACHED"
    assert not refused.value.retriable
    host.join("m1")  # a member may join again
    host.join("m3", group="other")
    host.send("m2", Leave(host.id(), "g", "m2"))
    assert host.join("m3") == ("0",)


def test_a_coordinator_has_a_largest_number_of_groups() -> None:
    host = bounded(GroupLimits(groups=2))
    host.join("m1", group="a")
    commit(host, "b", "0")
    with pytest.raises(GroupLimitReached):
        host.join("m2", group="c")
    with pytest.raises(GroupLimitReached):
        commit(host, "c", "0")
    commit(host, "b", "1")
    # a group without offsets ends when its last member leaves
    host.send("m1", Leave(host.id(), "a", "m1"))
    commit(host, "c", "0")


def test_a_group_has_a_largest_number_of_offsets() -> None:
    host = bounded(GroupLimits(offsets=2))
    commit(host, "g", "0")
    commit(host, "g", "1")
    commit(host, "g", "1")
    with pytest.raises(GroupLimitReached):
        commit(host, "g", "2")
    with pytest.raises(GroupLimitReached):
        host.join("m1", ("0", "1", "2"))
    host.join("m1", ("0", "1"), topic="u")
    with pytest.raises(GroupLimitReached):
        host.beat("m1", ("0", "1", "2"))
    with pytest.raises(GroupLimitReached):
        host.poll("m1", {"0": 1})


def test_what_was_kept_under_other_bounds_stays() -> None:
    host = bounded(GroupLimits())
    for partition in "012":
        commit(host, "g", partition)
    after = Host(host.log, loads=False)
    after.coordinator = GroupCoordinator(0, after, assignor, 0, limits=GroupLimits(offsets=1))
    after.fetches.clear()
    after.coordinator.offsets.begin(0)
    after.load()
    assert len(after.offsets()) == 3


def test_a_bound_that_lets_nobody_in_is_refused() -> None:
    assert GroupLimits.of(None).members == 1_000
    assert GroupLimits.of(7).members == 7
    with pytest.raises(ConfigError):
        GroupLimits.of(0)


def test_a_session_does_not_last_for_ever() -> None:
    host = Host()
    join = Join(1, "g", "m", "t", ("0",), "sticky", SESSION_MAX_MS + 1, ACK_WAIT, 0, BEGIN)
    (answer,) = host.send("m", join)
    assert isinstance(answer, Assigned)
    assert isinstance(answer.error, InvalidRequest)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Join(9, "g", "m1", "t", ("0",), "sticky", SESSION, ACK_WAIT, 0, BEGIN),
        lambda: Heartbeat(9, "g", "m1", ("0",)),
        lambda: Leave(9, "g", "m1"),
        lambda: Acquire(9, "g", "m1", (("0", 0, 5),), 10, 0),
        lambda: Settle(9, "g", "m1", (("0", (0, 3)),)),
    ],
    ids=["Join", "Heartbeat", "Leave", "Acquire", "Settle"],
)
def test_nobody_speaks_for_a_member_of_another_node(make: Callable[[], GroupRequest]) -> None:
    host = Host()
    join = Join(1, "g", "m1", "t", ("0",), "sticky", SESSION, ACK_WAIT, 0, BEGIN)
    host.send("client-good.consumer1", join)
    acquire = Acquire(2, "g", "m1", (("0", 0, 3),), 10, 0)
    host.send("client-good.consumer1", acquire)
    for thief in ("client-evil.consumer1", "client-evil"):
        (answer,) = host.send(thief, make())
        assert isinstance(getattr(answer, "error", None), AuthorizationFailed)
    settle = Settle(3, "g", "m1", (("0", (0, 3)),))
    assert host.send("client-good.another", settle) == []  # another machine of the same node
    host.settle_all()
    (done,) = host.take("client-good.another")
    assert isinstance(done, Settled)
    assert (done.refused, done.error) == (0, None)


# --- many at once -------------------------------------------------------------------------------


def crowd(host: Host, count: int) -> int:
    """Let members join at one moment; returns how many assignments were computed."""
    for number in range(count):
        name = f"m{number}"
        join = Join(host.id(), "g", name, "t", ("0", "1"), "sticky", 1_000_000, ACK_WAIT, 0, BEGIN)
        host.coordinator.step(name, join, host.now)
    host.at(host.now + consumer_group.PAUSE_MAX_MS)
    return host.coordinator.groups["g"].generation


def test_those_who_join_a_large_group_together_share_its_assignments() -> None:
    host = Host()
    assert crowd(host, 500) < 30
    for number in range(500):
        answer = host.take(f"m{number}")[0]
        assert isinstance(answer, Assigned)
        assert answer.error is None
        assert answer.partitions


def test_the_first_members_of_a_group_do_not_wait() -> None:
    host = Host()
    for name in ("m1", "m2", "m3"):
        assert host.join(name, ("0", "1", "2"))


def test_the_first_member_of_a_large_topic_does_not_wait() -> None:
    assert len(Host().join("m1", tuple(str(number) for number in range(5_000)))) == 5_000


def test_a_member_that_leaves_before_its_assignment_is_not_in_it() -> None:
    host = Host()
    names = tuple(str(number) for number in range(100))
    host.join("m1", names)
    join = Join(77, "g", "m2", "t", names, "sticky", SESSION, ACK_WAIT, 0, BEGIN)
    assert host.send("m2", join) == []
    host.send("m2", Leave(78, "g", "m2"))
    host.at(100)
    assert host.beat("m1", names) == names
    assert host.take("m2") == []


def test_a_record_for_a_member_that_has_left_waits_for_the_next_assignment() -> None:
    host = Host()
    names = tuple(str(number) for number in range(100))
    host.join("m1", names)
    host.at(10)
    mine = host.join("m2", names)[0]
    host.send("m2", Leave(host.id(), "g", "m2"))
    # the member reports partitions that have no owner
    host.ask("m1", dict.fromkeys(names, 0) | {mine: 4})
    host.at(100)
    assert host.beat("m1", names) == names
    assert host.poll("m1", {mine: 4}) == [(mine, 0, 4, 1)]


# --- deleted ------------------------------------------------------------------------------------


def delete(host: Host, group: str = "g") -> list[object]:
    return [getattr(m, "error", m) for m in host.send("admin", DeleteGroup(host.id(), group))]


def test_a_deleted_group_and_its_offsets_are_gone_for_good() -> None:
    host = Host()
    for partition in "01":
        commit(host, "g", partition)
    commit(host, "other", "0")
    assert delete(host) == []  # the request is answered once the write is durable
    host.settle_all()
    (answer,) = host.take("admin")
    assert isinstance(answer, Settled)
    assert answer.error is None
    assert list(Host(host.log).coordinator.groups) == ["other"]
    delete(host)
    host.settle_all()
    (answer,) = host.take("admin")
    assert isinstance(answer, Settled)
    assert isinstance(answer.error, UnknownGroup)


def test_a_group_with_members_is_not_deleted() -> None:
    host = Host()
    host.join("m1")
    (error,) = delete(host)
    assert isinstance(error, InvalidRequest)
    assert host.beat("m1") == ("0",)


def test_a_deletion_that_was_not_written_is_not_said_to_be_done() -> None:
    host = Host()
    commit(host, "g", "0")
    delete(host)
    host.flush()
    host.written(StoreFull("full"))
    delete(host)  # delete again, since the first request was refused
    assert [getattr(m, "error", None) for m in host.take("admin")][:1] != [None]
    host.at(1_000)
    host.settle_all()
    (answer,) = host.take("admin")
    assert isinstance(answer, Settled)
    assert isinstance(answer.error, UnknownGroup)
    assert not Host(host.log).coordinator.groups


@pytest.mark.parametrize("verb", ["acks", "nacks", "renewals", "unread"])
def test_what_a_member_names_many_times_is_looked_at_once(verb: str) -> None:
    """Repeated ranges are checked once: a request of a megabyte has room for a hundred thousand,
    each of which may cover all records.
    """
    host = bounded(GroupLimits())
    host.join("m1")
    leases = Leases(0)
    for at in range(0, 1_000, 2):
        leases.acquire("m2", at + 2, 2, 1_000, 0, 0)
        leases.acknowledge("m2", [(at + 1, at + 2)])
    host.coordinator.groups["g"].offsets.leases["t", "0"] = leases
    leases.spans._found = watched = Watched(leases.spans)
    wide = tuple(("0", (n % 7, 1 << 60)) for n in range(2_000))
    told: dict[str, Any] = {verb: wide}
    if verb == "nacks":
        told[verb] = tuple((*each, n) for n, each in enumerate(wide))
    host.send("m1", Settle(host.id(), "g", "m1", **told))
    assert watched.looks < 20 * 1_000


def test_of_a_record_that_is_refused_twice_the_rest_is_refused() -> None:
    host = bounded(GroupLimits())
    host.join("m1")
    leases = host.coordinator.groups["g"].offsets.leases["t", "0"] = Leases(0)
    leases.acquire("m1", 10, 10, 1_000, 0, 0)
    nacks = (("0", (2, 5), 50), ("0", (4, 8), 20), ("0", (3, 4), 10))
    host.send("m1", Settle(host.id(), "g", "m1", nacks=nacks))
    assert [(x.start, x.end) for x in leases.spans if x.state == AVAILABLE] == [(2, 5), (5, 8)]
