"""The group coordinator, tested message by message, with a host that records its requests."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from pymq.broker.group_coordinators import GroupCoordinators
from pymq.core.batch.record import EncodedBatch
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.offset_log import ERRORS_MAX, RANGES_MAX
from pymq.core.group.request_validation import GroupRequest
from pymq.core.message import (
    BEGIN,
    END,
    ERROR_MAX,
    Acquire,
    Acquired,
    Answer,
    Assigned,
    CommitOffset,
    Fetch,
    Fetched,
    GetGroup,
    GroupNames,
    GroupState,
    Heartbeat,
    Join,
    Lease,
    Leave,
    ListGroups,
    Message,
    Produce,
    Produced,
    Range,
    Settle,
    Settled,
    Unsubscribe,
)
from pymq.core.types import AckMode
from pymq.errors import (
    ConfigError,
    FencedMember,
    InvalidName,
    InvalidRequest,
    NotLeader,
    NotSubscribed,
    OffsetOutOfRange,
    PymqError,
    ReplicaNotAvailable,
    StaleEpoch,
    StoreFull,
    UnknownGroup,
)
from pymq.hash.assign import assignor

SESSION = 1_000
ACK_WAIT = 100


class Host:
    """A partition of the offsets topic that answers only on request of the test, and a mailbox for
    each member.
    """

    def __init__(self, log: Sequence[EncodedBatch] = (), *, loads: bool = True) -> None:
        self.log = list(log)
        self.fetches: list[Fetch] = []
        self.holders: list[str | None] = []  # the receivers of fetches
        self.since: list[int] = []  # offsets before these are obsolete
        self.produces: list[Produce] = []
        self.mail: dict[str, list[Message]] = {}
        self.now = 0
        self.coordinator = GroupCoordinator(0, self, assignor, 0)
        self.coordinator.offsets.begin(0)
        self._ids = 0
        if loads:
            self.load()

    # --- the host -------------------------------------------------------------------------------

    def reply(self, source: str, message: Message, now: int) -> None:
        self.mail.setdefault(source, []).append(message)

    def wall_ms(self, now: int) -> int:
        return now + 1_000_000

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        self.holders.append(holder)
        assert (message.topic, message.partition) == ("__consumer_offsets", str(index))
        if isinstance(message, Fetch):
            self.fetches.append(message)
        else:
            self.produces.append(message)

    def offsets_end(self, index: int) -> int:
        return self.log[-1].end_offset if self.log else 0

    def offsets_since(self, index: int, offset: int) -> None:
        self.since.append(offset)

    # --- steering -------------------------------------------------------------------------------

    def load(self, batches_at_a_time: int = 1) -> None:
        """Answer fetches until no more come."""
        while self.fetches:
            fetch = self.fetches.pop(0)
            high = self.log[-1].end_offset if self.log else 0
            at = max(fetch.offset, 0)
            data = [b for b in self.log if b.end_offset > at][:batches_at_a_time]
            raw = b"".join(bytes(batch.head) + bytes(batch.body) for batch in data)
            answer = Fetched(fetch.id, fetch.topic, fetch.partition, at, 0, high, raw)
            self.coordinator.step("", answer, self.now)

    def flush(self) -> int:
        """Flush as the broker does at the end of a turn.

        Returns how many records are to be written.
        """
        if not self.coordinator.offsets.is_dirty:
            return 0
        before = len(self.produces)
        self.coordinator.offsets.flush(self.now)
        return sum(len(produce.batch) for produce in self.produces[before:])

    def written(self, error: StoreFull | None = None) -> None:
        """Complete the pending write, or let it fail."""
        (produce,) = self.produces
        self.produces.clear()
        base = self.log[-1].end_offset if self.log else 0
        if error is None:
            self.log.append(produce.batch.stamp(base, 1, base))
        self.coordinator.step("", Produced(produce.id, base, error=error), self.now)

    def settle_all(self) -> None:
        """Flush repeatedly until nothing is left to write."""
        while self.flush():
            self.written()

    def at(self, now: int) -> None:
        """Let time pass as the loop does, with ticks only at deadlines."""
        while self.coordinator.deadline <= now:
            self.now = max(self.now, self.coordinator.deadline)
            before = self.coordinator.deadline
            self.coordinator.tick(self.now)
            assert self.coordinator.deadline > before, "it would tick for ever"
        self.now = now

    def take(self, member: str) -> list[Message]:
        """Return the messages that a member got since the last call."""
        return self.mail.pop(member, [])

    # --- members --------------------------------------------------------------------------------

    def send(self, source: str, message: GroupRequest) -> list[Message]:
        self.coordinator.step(source, message, self.now)
        return self.take(source)

    def id(self) -> int:
        self._ids += 1
        return self._ids

    def join(
        self,
        member: str,
        partitions: Sequence[str] = ("0",),
        *,
        topic: str = "t",
        group: str = "g",
        max_deliver: int = 0,
        reset: int = BEGIN,
        rule: str = "sticky",
        topic_id: str = "",
    ) -> tuple[str, ...]:
        request = self.id()
        join = Join(
            request,
            group,
            member,
            topic,
            tuple(partitions),
            rule,
            SESSION,
            ACK_WAIT,
            max_deliver,
            reset,
            topic_id,
        )
        answer = self.send(member, join)[-1]
        assert isinstance(answer, Assigned)
        assert answer.id == request
        if answer.error is not None:
            raise answer.error
        return answer.partitions

    def beat(self, member: str, partitions: Sequence[str] = ("0",)) -> tuple[str, ...]:
        answer = self.send(member, Heartbeat(self.id(), "g", member, tuple(partitions)))[-1]
        assert isinstance(answer, Assigned)
        if answer.error is not None:
            raise answer.error
        return answer.partitions

    def ask(
        self, member: str, ends: dict[str, int], limit: int = 100, wait_ms: int = 5_000
    ) -> list[tuple[str, int, int, int]] | None:
        """Acquire; returns None while the request waits."""
        known = tuple((partition, 0, end) for partition, end in ends.items())
        answers = self.send(member, Acquire(self.id(), "g", member, known, limit, wait_ms))
        return leases(answers[-1:])

    def poll(
        self, member: str, ends: dict[str, int], limit: int = 100
    ) -> list[tuple[str, int, int, int]]:
        found = self.ask(member, ends, limit, 0)
        assert found is not None
        return found

    def done(self, member: str, *acks: tuple[str, Range]) -> int:
        """Acknowledge records and wait until that is durable; returns how many were refused."""
        assert self.send(member, Settle(self.id(), "g", member, acks)) == []
        self.settle_all()
        (answer,) = self.take(member)
        assert isinstance(answer, Settled)
        assert answer.error is None
        return answer.refused

    def offsets(self, group: str = "g") -> dict[str, tuple[int, int, int, int]]:
        (state,) = self.send("admin", GetGroup(self.id(), group))
        assert isinstance(state, GroupState)
        assert state.error is None
        return {
            o.partition: (o.committed, o.delivered, o.in_flight, o.waiting) for o in state.offsets
        }


def leases(answers: list[Message]) -> list[tuple[str, int, int, int]] | None:
    """Return the leases in an answer to Acquire: (partition, start, end, delivery count)."""
    if not answers:
        return None
    (answer,) = answers
    assert isinstance(answer, Acquired)
    if answer.error is not None:
        raise answer.error
    return [(x.partition, x.start, x.end, x.delivery_count) for x in answer.leases]


@pytest.fixture
def host() -> Host:
    return Host()


# --- membership ---------------------------------------------------------------------------------


def test_partitions_are_shared_among_members(host: Host) -> None:
    names = ("a", "b", "c", "d")
    assert host.join("m1", names) == names
    second = host.join("m2", names)
    first = host.beat("m1", names)
    assert len(first) == len(second) == 2
    assert sorted(first + second) == list(names)


def test_more_members_than_partitions_share_one(host: Host) -> None:
    for member in ("m1", "m2", "m3"):
        host.join(member)
    assert [host.beat(member) for member in ("m1", "m2", "m3")] == [("0",)] * 3
    assert host.poll("m1", {"0": 10}, 4) == [("0", 0, 4, 1)]
    assert host.poll("m2", {"0": 10}, 4) == [("0", 4, 8, 1)]
    assert host.poll("m3", {"0": 10}, 4) == [("0", 8, 10, 1)]


def test_a_member_that_leaves_frees_its_partitions_at_once(host: Host) -> None:
    host.join("m1", ("0", "1"))
    host.join("m2", ("0", "1"))
    (mine,) = host.beat("m1", ("0", "1"))
    host.poll("m1", {mine: 5})
    assert host.ask("m2", {"0": 0, "1": 0}) is None
    host.send("m1", Leave(host.id(), "g", "m1"))
    # A new generation wakes a waiting member, which then requests its assignment.
    (woken,) = host.take("m2")
    assert isinstance(woken, Acquired)
    assert woken.leases == ()
    assert sorted(host.beat("m2", ("0", "1"))) == ["0", "1"]
    assert host.poll("m2", {"0": 5, "1": 5}, 100)[0][0] in ("0", "1")


def test_a_silent_member_is_given_up(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.at(SESSION - 1)
    assert host.beat("m1") == ("0",)  # the time of this heartbeat counts from now on
    host.at(2 * SESSION - 2)
    assert host.beat("m1") == ("0",)
    host.at(3 * SESSION - 2)
    with pytest.raises(FencedMember):
        host.beat("m1")


def test_a_member_that_was_given_up_is_told_whatever_it_asks(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.at(SESSION)
    for request in (
        Acquire(1, "g", "m1", (), 1, 0),
        Settle(1, "g", "m1", (("0", (0, 3)),)),
        Heartbeat(1, "g", "m1", ()),
        Leave(1, "g", "m1"),
    ):
        (answer,) = host.send("m1", request)
        assert isinstance(getattr(answer, "error", None), FencedMember)
    assert host.join("m2") == ("0",)
    # none of the records counts as acknowledged
    assert host.poll("m2", {"0": 3}) == [("0", 0, 3, 2)]


def test_joining_again_keeps_what_is_held(host: Host) -> None:
    names = ("0", "1", "2", "3")
    host.join("m1", names)
    host.join("m2", names)
    before = host.beat("m1", names)
    ends = dict.fromkeys(names, 3)
    held = host.poll("m1", ends)
    assert host.join("m1", names) == before
    assert host.done("m1", *[(p, (start, end)) for p, start, end, _ in held]) == 0


def test_joining_again_ends_the_wait_of_the_past(host: Host) -> None:
    host.join("m1")
    assert host.ask("m1", {"0": 0}) is None
    join = Join(99, "g", "m1", "t", ("0",), "sticky", SESSION, ACK_WAIT, 0, BEGIN)
    ended, assigned = host.send("m1", join)
    assert isinstance(ended, Acquired)
    assert isinstance(assigned, Assigned)


def test_who_joins_may_know_of_no_partition_yet(host: Host) -> None:
    assert host.join("m1", ()) == ()
    assert host.join("m2", ("0", "1")) in (("0",), ("1",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("group", "a/b"), ("topic", ".."), ("member", ""), ("partitions", ("0", "0"))),
        *(("partitions", ("x" * 300,)), ("session_ms", 0), ("session_ms", 1 << 62)),
        *(("ack_wait_ms", -1), ("max_deliver", -1), ("reset", 5)),
        *(("topic_id", "x" * 32), ("topic_id", "0" * 33)),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(host: Host, field: str, value: Any) -> None:
    join = Join(9, "g", "m1", "t", ("0",), "sticky", SESSION, ACK_WAIT, 0, BEGIN)
    (answer,) = host.send("m1", attrs.evolve(join, **{field: value}))
    assert isinstance(answer, Assigned)
    assert isinstance(answer.error, (InvalidRequest, InvalidName))
    assert not host.coordinator.groups


@pytest.mark.parametrize("span", [(5, 4), (-1, 3), (0, 1 << 62)])
def test_ranges_that_make_no_sense_change_nothing(host: Host, span: tuple[int, int]) -> None:
    host.join("m1")
    assert host.poll("m1", {"0": 10}) == [("0", 0, 10, 1)]
    at = (("0", span),)
    requests: list[GroupRequest] = [
        Settle(91, "g", "m1", acks=at),
        Settle(92, "g", "m1", renewals=at),
        Settle(93, "g", "m1", unread=at),
        Settle(94, "g", "m1", nacks=(("0", span, 5),)),
        Settle(95, "g", "m1", nacks=(("0", (0, 3), -5),)),
        Leave(96, "g", "m1", at),
        Acquire(97, "g", "m1", (("0", *span),), 5, 0),
        Acquire(98, "g", "m1", (("0", 0, 10),), -1, 0),
        Acquire(99, "g", "m1", (("0", 0, 10),), 5, -1),
        CommitOffset(100, "h", "t", "0", span[1] if span[1] > 4 else -1),
    ]
    for request in requests:
        (answer,) = host.send("m1", request)
        assert isinstance(answer, (Acquired, Settled))
        assert isinstance(answer.error, InvalidRequest)
    assert host.done("m1", ("0", (0, 10))) == 0


def test_going_over_to_another_topic_gives_up_the_first(host: Host) -> None:
    host.join("m1", topic="t")
    host.poll("m1", {"0": 3})
    host.join("m1", topic="u")
    host.join("m2", topic="t")
    assert host.poll("m2", {"0": 3}) == [("0", 0, 3, 2)]


def test_a_topic_that_grows_is_shared_anew(host: Host) -> None:
    host.join("m1", ("0",))
    host.join("m2", ("0",))
    assert host.beat("m1", ("0", "1")) in (("0",), ("1",))
    assert {host.beat("m1", ("0", "1")), host.beat("m2", ("0", "1"))} == {("0",), ("1",)}
    # A member that does not know the new topic yet changes nothing.
    assert host.join("m3", ("0",)) in (("0",), ("1",))


def test_an_unknown_assignor_is_refused(host: Host) -> None:
    with pytest.raises(ConfigError):
        host.join("m1", rule="none")
    (answer,) = host.send("admin", GetGroup(1, "g"))
    assert isinstance(answer, GroupState)
    assert isinstance(answer.error, UnknownGroup)


def test_groups_know_nothing_of_each_other(host: Host) -> None:
    host.join("m1", group="g")
    host.join("m2", group="h")
    assert host.poll("m1", {"0": 3}) == [("0", 0, 3, 1)]
    answers = host.send("m2", Acquire(host.id(), "h", "m2", (("0", 0, 3),), 5, 0))
    assert leases(answers) == [("0", 0, 3, 1)]
    assert host.send("admin", ListGroups(7)) == [GroupNames(7, ("g", "h"))]


# --- leasing ------------------------------------------------------------------------------------


def test_a_full_partition_goes_on_when_its_oldest_records_are_done(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full partition leases no new records until its oldest ones are acknowledged, and members
    get the reason.
    """
    monkeypatch.setattr("pymq.core.group.leases.SPANS_OPEN", 4)
    host.join("m1")
    host.join("m2")
    host.poll("m1", {"0": 9}, 4)
    host.done("m1", ("0", (1, 2)), ("0", (3, 4)))
    assert host.ask("m2", {"0": 9}) is None
    (state,) = host.send("admin", GetGroup(host.id(), "g"))
    assert isinstance(state, GroupState)
    assert [offset.is_full for offset in state.offsets] == [True]
    assert host.done("m1", ("0", (0, 1))) == 0
    assert leases(host.take("m2")) == [("0", 4, 9, 1)]


def test_a_request_waits_until_there_is_something(host: Host) -> None:
    host.join("m1")
    assert host.ask("m1", {"0": 0}) is None
    assert host.ask("m1", {"0": 2}) == [("0", 0, 2, 1)]


def test_a_wait_ends(host: Host) -> None:
    host.join("m1")
    assert host.ask("m1", {"0": 0}, wait_ms=50) is None
    host.at(49)
    assert host.take("m1") == []
    host.at(50)
    assert leases(host.take("m1")) == []


def test_the_next_request_ends_the_wait_of_the_one_before(host: Host) -> None:
    host.join("m1")
    first = Acquire(1, "g", "m1", (("0", 0, 0),), 5, 1000)
    assert host.send("m1", first) == []
    second = Acquire(2, "g", "m1", (("0", 0, 3),), 5, 1000)
    answers = host.send("m1", second)
    assert [getattr(answer, "id", 0) for answer in answers] == [1, 2]
    assert leases(answers[:1]) == []
    assert leases(answers[1:]) == [("0", 0, 3, 1)]


def test_partitions_that_a_member_does_not_name_are_spared(host: Host) -> None:
    """A member gets no records of partitions that it does not name in its request.

    This is how a consumer pauses.
    """
    host.join("m1", ("0", "1"))
    assert host.poll("m1", {"0": 2, "1": 2}, 1) != []
    host.ask("m1", {"1": 9}, 100)
    assert host.poll("m1", {"1": 9}, 100) == []
    assert {p: delivered for p, (_, delivered, _, _) in host.offsets().items()}["1"] == 9
    assert host.offsets()["0"][1] <= 1


def test_no_partition_is_always_asked_first(host: Host) -> None:
    host.join("m1", ("0", "1", "2"))
    first = {host.poll("m1", {"0": 9, "1": 9, "2": 9}, 1)[0][0] for _ in range(3)}
    assert first == {"0", "1", "2"}


def test_what_is_given_back_comes_again_after_its_delay(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.send("m1", Settle(0, "g", "m1", nacks=(("0", (1, 2), 40),)))
    assert host.ask("m1", {"0": 3}) is None
    host.at(39)
    assert host.take("m1") == []
    host.at(40)
    assert leases(host.take("m1")) == [("0", 1, 2, 2)]


def test_of_two_returns_in_one_request_the_later_counts(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    twice = (("0", (1, 2), 40), ("0", (0, 1), 10), ("0", (1, 2), 90))
    host.send("m1", Settle(0, "g", "m1", nacks=twice, errors=("first", "", "second")))
    assert host.ask("m1", {"0": 3}) is None
    host.at(10)
    assert leases(host.take("m1")) == [("0", 0, 1, 2)]
    assert host.ask("m1", {"0": 3}) is None
    host.at(89)
    assert host.take("m1") == []
    host.at(90)
    assert leases(host.take("m1")) == [("0", 1, 2, 2)]


def test_a_lease_runs_out_even_if_a_message_comes_first(host: Host) -> None:
    """Even if the loop delivers messages before it checks deadlines, no lease expires late."""
    host.join("m1")
    host.join("m2")
    host.poll("m1", {"0": 3})
    assert host.ask("m2", {"0": 3}) is None
    host.now = ACK_WAIT
    host.send("m1", Heartbeat(host.id(), "g", "m1", ("0",)))
    host.at(ACK_WAIT + 5)
    assert leases(host.take("m2")) == [("0", 0, 3, 2)]


def test_an_unread_record_was_never_delivered(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.send("m1", Settle(0, "g", "m1", unread=(("0", (1, 3)),)))
    assert host.poll("m1", {"0": 3}) == [("0", 1, 3, 1)]


def test_renewing_keeps_a_lease(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 4})
    host.at(ACK_WAIT - 1)
    host.send("m1", Settle(0, "g", "m1", renewals=(("0", (2, 4)),)))
    host.at(ACK_WAIT)
    assert host.poll("m1", {"0": 4}) == [("0", 0, 2, 2)]
    host.at(2 * ACK_WAIT - 1)
    assert host.poll("m1", {"0": 4}) == [("0", 2, 4, 2)]


def test_what_was_delivered_too_often_is_leased_as_dead(host: Host) -> None:
    host.join("m1", max_deliver=2)
    for count in (1, 2):
        assert host.poll("m1", {"0": 1}) == [("0", 0, 1, count)]
        host.send("m1", Settle(0, "g", "m1", nacks=(("0", (0, 1), 0),)))
    (answer,) = host.send("m1", Acquire(host.id(), "g", "m1", (("0", 0, 1),), 5, 0))
    assert isinstance(answer, Acquired)
    assert answer.leases == (Lease("0", 0, 1, 2, True),)


def test_an_acknowledgement_of_all_does_not_mean_what_was_given_back(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    settle = Settle(0, "g", "m1", (("0", (0, 3)),), (("0", (1, 2), 0),))
    host.send("m1", settle)
    host.settle_all()
    assert host.poll("m1", {"0": 3}) == [("0", 1, 2, 2)]


def test_only_the_holder_can_settle(host: Host) -> None:
    host.join("m1")
    host.join("m2")
    host.poll("m1", {"0": 3})
    assert host.done("m2", ("0", (0, 3))) == 3
    assert host.offsets()["0"] == (0, 3, 3, 0)
    assert host.done("m1", ("0", (0, 5))) == 2  # two of these records were never delivered
    assert host.offsets()["0"] == (3, 3, 0, 0)


def test_a_partition_goes_over_once_its_leases_are_settled(host: Host) -> None:
    """A partition moves to another member once its leases are settled, so a key's records are with
    one consumer at a time.
    """
    names = ("0", "1")
    host.join("m1", names)
    host.poll("m1", {"0": 4, "1": 4})
    (moved,) = host.join("m2", names)
    assert host.ask("m2", {moved: 6}) is None
    assert host.beat("m1", names) != (moved,)
    host.send("m1", Settle(0, "g", "m1", ((moved, (0, 3)),)))
    assert host.take("m2") == []  # another member still works on one record
    host.send("m1", Settle(0, "g", "m1", ((moved, (3, 4)),)))
    assert leases(host.take("m2")) == [(moved, 4, 6, 1)]


@pytest.mark.parametrize("how", ["leaves", "expires", "nacks"])
def test_a_partition_goes_over_when_the_former_owner_lets_go(host: Host, how: str) -> None:
    names = ("0", "1")
    host.join("m1", names)
    host.poll("m1", {"0": 4, "1": 4})
    (moved,) = host.join("m2", names)
    assert host.ask("m2", {moved: 4}) is None
    if how == "leaves":
        host.send("m1", Leave(host.id(), "g", "m1"))
        host.take("m2")
        host.beat("m2", names)
        found = host.ask("m2", {"0": 4, "1": 4})
    elif how == "expires":
        host.at(ACK_WAIT)
        found = leases(host.take("m2"))
    else:
        host.send("m1", Settle(0, "g", "m1", nacks=((moved, (0, 4), 0),)))
        found = leases(host.take("m2"))
    assert found is not None
    assert (moved, 0, 4, 2) in found


# --- beginning ----------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_end_if_it_was_told_to(host: Host) -> None:
    host.join("m1", reset=END)
    # the member introduces itself without a request for records
    assert host.poll("m1", {"0": 7}, 0) == []
    assert host.poll("m1", {"0": 9}) == [("0", 7, 9, 1)]


def test_the_end_is_remembered(host: Host) -> None:
    """The group has a start offset and resumes there, although no record was ever acknowledged."""
    host.join("m1", reset=END)
    host.poll("m1", {"0": 7}, 0)
    host.settle_all()
    again = Host(host.log)
    again.join("m1", reset=END)
    assert again.poll("m1", {"0": 9}) == [("0", 7, 9, 1)]


@pytest.mark.parametrize("how", ["beat", "join"])
def test_what_is_added_to_a_topic_is_new_from_its_first_record(host: Host, how: str) -> None:
    """A group that begins at the end skips only the records that existed at that time."""
    host.join("m1", ("0",), reset=END)
    host.poll("m1", {"0": 7}, 0)
    if how == "beat":
        host.beat("m1", ("0", "1"))
    else:
        host.join("m1", ("0", "1"), reset=END)
    assert host.poll("m1", {"0": 7, "1": 3}) == [("1", 0, 3, 1)]


@pytest.mark.parametrize("how", ["another joins", "coordinator", "nobody there", "late deletion"])
def test_what_was_added_stays_new_whatever_comes_between(host: Host, how: str) -> None:
    """A group that begins at its end gets all records of partitions that were added later."""
    host.join("m1", ("0",), reset=END, topic_id="b2")
    assert host.poll("m1", {"0": 7}, 0) == []
    host.settle_all()
    if how in ("another joins", "late deletion"):
        assert host.beat("m1", ("0", "1")) == ("0", "1")
    if how == "late deletion":
        host.coordinator.forget_topic("t", host.now, "a1")
    elif how == "another joins":
        host.join("m2", ("0",), reset=END, topic_id="b2")
        host.send("m2", Leave(host.id(), "g", "m2"))
    elif how == "coordinator":
        host = Host(host.log)
        host.join("m1", ("0", "1"), reset=END, topic_id="b2")
    else:
        host.send("m1", Leave(host.id(), "g", "m1"))
        host.join("m1", ("0", "1"), reset=END, topic_id="b2")
    assert host.poll("m1", {"0": 8, "1": 3}) in (
        [("0", 7, 8, 1), ("1", 0, 3, 1)],
        [("1", 0, 3, 1), ("0", 7, 8, 1)],
    )


def test_an_offset_that_was_set_says_nothing_of_other_partitions(host: Host) -> None:
    """An offset that was set for one partition does not change where the group begins in other
    partitions.
    """
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 2))
    host.join("m1", ("0", "1"), reset=END, topic_id="a1")
    assert host.poll("m1", {"0": 3, "1": 3}) == [("0", 2, 3, 1)]


def test_an_offset_that_was_set_may_name_the_end(host: Host) -> None:
    """The lag of a group without members is known; a member that joins goes on as usual."""
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 2, end=5))
    offsets = host.coordinator.groups["g"].offsets
    assert offsets.end("t", "0") == 5
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 3))
    assert offsets.end("t", "0") is None
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 3, end=5))
    host.join("m1", ("0",), topic_id="a1")
    assert host.poll("m1", {"0": 5}) == [("0", 3, 5, 1)]


def test_fewer_partitions_of_a_topic_that_was_made_again_are_all_there_are(host: Host) -> None:
    """Partition names that members reported for the old topic do not count for the new one."""
    host.join("m1", ("0", "1", "2"), topic_id="a1")
    host.join("m2", topic="u", topic_id="a2")  # This request keeps the group.
    host.send("m1", Leave(host.id(), "g", "m1"))
    assert host.join("m3", ("0",), topic_id="b1") == ("0",)
    with pytest.raises(StaleEpoch):
        host.join("m4", ("0", "1", "2"), topic_id="a1")


def test_what_retention_took_is_not_waited_for(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 10}, 4)
    acquire = Acquire(host.id(), "g", "m1", (("0", 6, 10),), 10, 0)
    assert leases(host.send("m1", acquire)) == [("0", 6, 10, 1)]
    assert host.offsets()["0"] == (6, 10, 4, 0)


def test_where_retention_has_left_a_group_is_written() -> None:
    """The new offset of a group after retention is written, because descriptions read it from the
    log.
    """
    host = Host(_committed(("g", 4)))
    host.join("m1")
    host.send("m1", Acquire(host.id(), "g", "m1", (("0", 6, 10),), 0, 0))
    assert host.flush() == 1
    host.written()
    assert Host(host.log).offsets()["0"] == (6, 6, 0, 0)
    host.send("m1", Acquire(host.id(), "g", "m1", (("0", 6, 11),), 0, 0))
    assert host.flush() == 0  # The log already contained the committed offset.


def test_ranges_that_had_no_room_are_written_when_there_is_some(host: Host) -> None:
    """Acknowledged ranges beyond the limit are written later, after retention has removed the
    lowest ones.
    """
    end = 2 * RANGES_MAX + 2
    host.join("m1")
    host.poll("m1", {"0": end}, end)
    host.done("m1", *(("0", (at, at + 1)) for at in range(1, end, 2)))
    assert Host(host.log).offsets()["0"][1] == end - 2
    host.send("m1", Acquire(host.id(), "g", "m1", (("0", 4, end),), 0, 0))
    host.settle_all()
    again = Host(host.log)
    again.join("m1")
    held = again.poll("m1", {"0": end}, end)
    assert held == [("0", at, at + 1, 1) for at in range(4, end, 2)]


def test_a_member_that_knows_less_changes_nothing(host: Host) -> None:
    host.join("m1")
    host.join("m2")
    acquire = Acquire(host.id(), "g", "m1", (("0", 6, 10),), 0, 0)
    host.send("m1", acquire)
    assert host.poll("m2", {"0": 8}) == [("0", 6, 10, 1)]


# --- offsets ------------------------------------------------------------------------------------


def test_a_settlement_is_answered_once_it_is_durable(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    assert host.send("m1", Settle(5, "g", "m1", (("0", (0, 3)),))) == []
    assert host.flush() == 1
    assert host.take("m1") == []
    # with ack mode `leader` the leader alone could lose the offset
    assert host.produces[0].acks is AckMode.RAFT
    host.written()
    assert host.take("m1") == [Settled(5)]


def test_a_commit_is_synced_and_an_acknowledgement_is_not(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 9})

    def synced(request: int, durable: bool, *acks: tuple[str, Range]) -> list[bool]:
        host.send("m1", Settle(request, "g", "m1", acks, durable=durable))
        host.flush()
        found = [produce.sync for produce in host.produces]
        if found:
            assert host.take("m1") == []
            host.written()
        assert host.take("m1") == [Settled(request)]
        return found

    assert synced(1, False, ("0", (0, 1))) == [False]
    assert synced(2, True, ("0", (1, 2))) == [True]
    assert synced(3, True) == []  # all commits are durable already
    assert synced(4, False, ("0", (2, 3))) == [False]
    assert synced(5, True) == [True]  # This commit includes earlier acknowledgements.
    assert synced(6, True) == []


def test_what_another_coordinator_has_written_is_synced_by_the_next_commit(host: Host) -> None:
    """A commit also syncs records that this broker took in as a follower and has not synced."""
    host.join("m1")
    host.poll("m1", {"0": 9})
    host.done("m1", ("0", (0, 9)))
    again = Host(host.log)
    again.join("m1")
    again.send("m1", Settle(5, "g", "m1", durable=True))
    assert again.flush() == 1
    assert [produce.sync for produce in again.produces] == [True]
    again.written()
    assert again.take("m1") == [Settled(5)]
    again.send("m1", Settle(6, "g", "m1", durable=True))
    assert again.flush() == 0  # From now on everything is durable.
    assert again.take("m1") == [Settled(6)]
    assert Host(again.log).offsets() == {"0": (9, 9, 0, 0)}


def test_a_commit_that_comes_amid_a_write_is_synced_by_the_next(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 9})
    host.send("m1", Settle(1, "g", "m1", (("0", (0, 1)),)))
    host.flush()
    host.send("m1", Settle(2, "g", "m1", durable=True))
    host.written()
    assert host.take("m1") == [Settled(1)]
    assert host.flush() == 1
    assert [produce.sync for produce in host.produces] == [True]
    host.written()
    assert host.take("m1") == [Settled(2)]


def test_all_of_a_turn_is_one_batch(host: Host) -> None:
    names = ("0", "1", "2")
    host.join("m1", names)
    for round_ in range(3):
        held = host.poll("m1", dict.fromkeys(names, round_ + 1))
        for partition, start, end, _ in held:
            host.send("m1", Settle(host.id(), "g", "m1", ((partition, (start, end)),)))
    assert host.flush() == 3  # each partition's offset once, however often it changed
    assert len(host.produces) == 1
    # Later changes wait for the next write.
    host.poll("m1", {"0": 9})
    host.send("m1", Settle(host.id(), "g", "m1", (("0", (3, 9)),)))
    assert not host.coordinator.offsets.is_dirty
    host.written()
    assert len(host.take("m1")) == 9
    assert host.flush() == 1
    host.written()
    assert len(host.take("m1")) == 1


def test_what_changes_nothing_writes_nothing(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.send("m1", Settle(4, "g", "m1"))
    assert host.flush() == 0
    assert host.take("m1") == [Settled(4)]


def test_a_write_that_fails_is_told_and_tried_again(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.send("m1", Settle(5, "g", "m1", (("0", (0, 3)),)))
    host.flush()
    host.written(StoreFull("full"))
    (answer,) = host.take("m1")
    assert isinstance(answer, Settled)
    assert isinstance(answer.error, StoreFull)
    # the coordinator does not retry at once, since the write would fail again and again
    assert host.flush() == 0
    host.at(host.now + 1_000)
    assert host.flush() == 1
    host.written()
    assert Host(host.log).offsets() == {"0": (3, 3, 0, 0)}


def test_offsets_are_replayed(host: Host) -> None:
    host.join("m1", ("0", "1"))
    host.poll("m1", {"0": 9, "1": 9})
    host.done("m1", ("0", (0, 4)))
    host.done("m1", ("0", (4, 5)), ("0", (7, 8)), ("1", (0, 2)))
    host.done("m1", ("1", (2, 3)))
    assert len(host.log) == 3
    again = Host(host.log)
    assert {p: found[0] for p, found in again.offsets().items()} == {"0": 5, "1": 3}
    again.join("m1", ("0", "1"))
    held = again.poll("m1", {"0": 9, "1": 9})
    assert sorted(held) == [("0", 5, 7, 1), ("0", 8, 9, 1), ("1", 3, 9, 1)]


def test_deliveries_are_counted_across_coordinators(host: Host) -> None:
    """A delivery counts permanently, whether the record was returned, its lease expired, or its
    member left.
    """
    host.join("m1")
    assert host.poll("m1", {"0": 3}) == [("0", 0, 3, 1)]
    host.send("m1", Settle(0, "g", "m1", nacks=(("0", (1, 2), 0),)))
    host.settle_all()
    again = Host(host.log)
    again.join("m1")
    assert again.poll("m1", {"0": 3}) == [("0", 0, 1, 1), ("0", 1, 2, 2), ("0", 2, 3, 1)]
    again.at(again.now + ACK_WAIT)
    again.settle_all()
    third = Host(again.log)
    third.join("m1")
    assert third.poll("m1", {"0": 3}) == [("0", 0, 1, 2), ("0", 1, 2, 3), ("0", 2, 3, 2)]


def test_errors_are_known_to_the_next_coordinator(host: Host) -> None:
    """A record carries the last error with which it was returned."""
    host.join("m1")
    host.poll("m1", {"0": 6})
    nacks = (("0", (1, 3), 0), ("0", (4, 5), 0), ("0", (5, 6), 0))
    host.send("m1", Settle(0, "g", "m1", nacks=nacks, errors=("bad", "", "worse")))
    host.settle_all()
    again = Host(host.log)
    again.join("m1")
    assert errors(again, 6) == {0: "", 1: "bad", 2: "bad", 3: "", 4: "", 5: "worse"}
    again.send("m1", Settle(0, "g", "m1", nacks=(("0", (2, 3), 0),), errors=("worst",)))
    again.send("m1", Settle(0, "g", "m1", acks=(("0", (0, 2)),)))
    again.settle_all()
    third = Host(again.log)
    third.join("m1")
    assert errors(third, 6) == {2: "worst", 3: "", 4: "", 5: "worse"}


class Restarted(Host):
    """A host whose monotonic clock began 700 ms before that of :class:`Host`."""

    def wall_ms(self, now: int) -> int:
        return now + 1_000_000 - 700


def test_delays_are_known_to_the_next_coordinator(host: Host) -> None:
    """Records that were returned with a delay are not delivered before the delay is over."""
    host.join("m1")
    host.poll("m1", {"0": 6})
    nacks = (("0", (1, 3), 500), ("0", (3, 4), 50), ("0", (4, 5), 0))
    host.send("m1", Settle(0, "g", "m1", acks=(("0", (0, 1)),), nacks=nacks))
    host.at(40)
    # this request writes all offsets again
    host.send("m1", Settle(0, "g", "m1", acks=(("0", (5, 6)),)))
    host.settle_all()
    again = Restarted(host.log, loads=False)
    again.now = 800  # 60 ms of the other clock later
    again.load()
    again.join("m1")
    assert again.poll("m1", {"0": 6}) == [("0", 3, 4, 2), ("0", 4, 5, 2)]
    assert again.done("m1", ("0", (3, 5))) == 0
    again.at(1_199)
    assert again.poll("m1", {"0": 3}) == []
    again.at(1_200)
    assert again.poll("m1", {"0": 3}) == [("0", 1, 3, 2)]


class Behind(Host):
    """A host whose wall clock is an hour behind that of :class:`Host`."""

    def wall_ms(self, now: int) -> int:
        return now + 1_000_000 - 3_600_000


def test_a_wall_clock_that_is_wrong_prolongs_no_delay(host: Host) -> None:
    """A returned record waits at the next coordinator for as long as was left, at most."""
    host.join("m1")
    host.poll("m1", {"0": 1})
    host.send("m1", Settle(0, "g", "m1", nacks=(("0", (0, 1), 500),)))
    host.settle_all()
    again = Behind(host.log)
    again.join("m1")
    again.at(499)
    assert again.poll("m1", {"0": 1}) == []
    again.at(500)
    assert again.poll("m1", {"0": 1}) == [("0", 0, 1, 2)]


def test_so_many_different_errors_are_written(host: Host) -> None:
    """Each commit writes the errors again, so a coordinator writes only a limited number of
    them.
    """
    host.join("m1")
    host.poll("m1", {"0": 2 * ERRORS_MAX})
    for offset in range(2 * ERRORS_MAX):
        nack = (("0", (offset, offset + 1), 0),)
        host.send("m1", Settle(0, "g", "m1", nacks=nack, errors=(f"error {offset}",)))
    host.settle_all()
    again = Host(host.log)
    again.join("m1")
    found = errors(again, 2 * ERRORS_MAX)
    assert len(set(found.values()) - {""}) == ERRORS_MAX
    assert found[0] == "error 0"


@pytest.mark.parametrize("wrong", [("x" * (ERROR_MAX + 1),), ("x", "y")])
def test_errors_are_bounded(host: Host, wrong: tuple[str, ...]) -> None:
    host.join("m1")
    host.poll("m1", {"0": 6})
    settle = Settle(7, "g", "m1", nacks=(("0", (1, 2), 0),), errors=wrong)
    (settled,) = host.send("m1", settle)
    assert isinstance(settled, Settled)
    assert isinstance(settled.error, InvalidRequest)


def errors(host: Host, end: int) -> dict[int, str]:
    """Lease all records to ``m1``; return the errors that come with them."""
    (acquired,) = host.send("m1", Acquire(99, "g", "m1", (("0", 0, end),), 99, 0))
    assert isinstance(acquired, Acquired)
    return {offset: x.error for x in acquired.leases for offset in range(x.start, x.end)}


def test_requests_wait_for_the_offsets(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 3})
    host.done("m1", ("0", (0, 2)))
    again = Host(host.log, loads=False)
    join = Join(1, "g", "m1", "t", ("0",), "sticky", SESSION, ACK_WAIT, 0, BEGIN)
    assert again.send("m1", join) == []
    assert again.send("m1", Acquire(2, "g", "m1", (("0", 0, 3),), 9, 0)) == []
    again.load()
    _, acquired = again.take("m1")
    assert leases([acquired]) == [("0", 2, 3, 1)]


def test_loading_is_tried_again(host: Host) -> None:
    again = Host(loads=False)
    (fetch,) = again.fetches
    again.fetches.clear()
    error = StoreFull("try again")
    failed = Fetched(fetch.id, fetch.topic, fetch.partition, 0, 0, 0, b"", error)
    again.coordinator.step("", failed, 0)
    assert again.fetches == []
    again.at(1_000)
    assert len(again.fetches) == 1
    again.load()
    assert again.join("m1") == ("0",)


def _committed(*commits: tuple[str, int]) -> list[EncodedBatch]:
    """Return a log with these committed offsets of groups, a batch each."""
    host = Host()
    for number, (group, offset) in enumerate(commits):
        host.send("m1", CommitOffset(number, group, "t", "0", offset))
        host.settle_all()
    return host.log


def _answer(
    host: Host, high: int, *batches: EncodedBatch, error: PymqError | None = None, offset: int = 0
) -> None:
    fetch = host.fetches.pop(0)
    data = b"".join(bytes(batch.head) + bytes(batch.body) for batch in batches)
    answer = Fetched(fetch.id, fetch.topic, fetch.partition, offset, 0, high, data, error)
    host.coordinator.step("", answer, host.now)


def test_what_a_new_leader_does_not_know_to_be_committed_counts() -> None:
    """The coordinator reads past a new leader's high watermark, which may be out of date."""
    first, second = _committed(("g", 5), ("g", 9))
    host = Host([first, second], loads=False)
    host.send("m1", GetGroup(3, "g"))
    _answer(host, 1, first)
    assert host.take("m1") == []
    assert host.fetches[0].offset == 1
    assert host.fetches[0].max_wait_ms > 0
    _answer(host, 1, offset=1)
    assert host.take("m1") == []
    _answer(host, 2, second, offset=1)
    (state,) = host.take("m1")
    assert isinstance(state, GroupState)
    assert [offset.committed for offset in state.offsets] == [9]


def test_requests_do_not_wait_for_ever_for_the_offsets() -> None:
    host = Host(_committed(("g", 5)), loads=False)
    host.send("m1", GetGroup(3, "g"))
    host.at(900)
    assert host.take("m1") == []
    host.at(1_100)
    for answer in (*host.take("m1"), *host.send("m1", GetGroup(4, "g"))):
        assert isinstance(answer, GroupState)
        assert isinstance(answer.error, ReplicaNotAvailable)
        assert answer.error.retriable
    host.load()
    (state,) = host.send("m1", GetGroup(5, "g"))
    assert isinstance(state, GroupState)
    assert state.error is None


def test_what_was_read_elsewhere_is_written_anew() -> None:
    """The coordinator writes offsets that it read from another broker again, before that broker may
    leave.
    """
    first, second = _committed(("g", 5), ("h", 9))
    host = Host([first, second], loads=False)
    gone = ReplicaNotAvailable("not here", brokers=["b1", "b2"])
    _answer(host, 2, error=gone)
    _answer(host, 0, first)
    here, elsewhere, again = host.holders
    assert elsewhere in {"b1", "b2"}
    assert here is again is None
    _answer(host, 2, second, offset=1)
    assert host.coordinator.offsets.is_dirty
    host.coordinator.offsets.flush(host.now)
    (produce,) = host.produces
    assert len(produce.batch) == 2
    assert produce.sync
    assert host.since == []
    host.coordinator.step("", Produced(produce.id, 7), host.now)
    assert host.since == [7]


def test_damaged_offsets_do_not_break_the_broker() -> None:
    (first,) = _committed(("g", 5))
    host = Host([first], loads=False)
    _answer(host, 1, EncodedBatch(first.head, bytes(len(first.body)), first.header))
    assert host.fetches == []
    host.at(1_000)
    host.load()
    assert host.join("m1") == ("0",)


def test_handing_over_tells_everybody_who_waits() -> None:
    """Emigration answers every pending request."""
    host = Host()
    host.join("m1")
    host.join("m2")
    host.poll("m1", {"0": 3})
    host.send("m1", Settle(75, "g", "m1", (("0", (0, 1)),)))
    host.flush()
    host.send("m1", Settle(76, "g", "m1", (("0", (1, 2)),)))
    host.send("m2", Acquire(77, "g", "m2", (("0", 0, 3),), 5, 1_000))
    host.coordinator.resign(NotLeader("moved", leader="broker-1"), host.now)
    answers = host.take("m1") + host.take("m2")
    assert sorted(getattr(answer, "id", 0) for answer in answers) == [75, 76, 77]
    assert all(isinstance(getattr(answer, "error", None), NotLeader) for answer in answers)

    loading = Host(loads=False)
    loading.send("m1", GetGroup(3, "g"))
    loading.coordinator.resign(NotLeader("moved", leader="broker-1"), 0)
    (answer,) = loading.take("m1")
    assert isinstance(answer, GroupState)
    assert isinstance(answer.error, NotLeader)


def test_an_offset_that_is_set_before_the_first_record_there_is(host: Host) -> None:
    """Retention has removed the records before 6; these are neither leased nor waited for."""
    host.join("m1")
    known = (("0", 6, 10),)
    held = leases(host.send("m1", Acquire(host.id(), "g", "m1", known, 10, 0)))
    assert held == [("0", 6, 10, 1)]
    host.send("m1", Leave(host.id(), "g", "m1"))
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 2))
    host.settle_all()
    host.join("m2")
    held = leases(host.send("m2", Acquire(host.id(), "g", "m2", known, 10, 0)))
    assert held == [("0", 6, 10, 1)]


def test_an_acknowledgement_of_what_was_never_leased_is_refused(host: Host) -> None:
    """An acknowledgement without a lease is refused, even in a partition that the group has not
    begun.
    """
    host.join("m1")
    assert host.done("m1", ("0", (0, 3)), ("7", (5, 6))) == 4


def test_an_offset_is_set_while_nobody_consumes(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 9})
    host.done("m1", ("0", (0, 9)))
    (answer,) = host.send("admin", CommitOffset(1, "g", "t", "0", 4))
    assert isinstance(answer, Settled)
    assert isinstance(answer.error, InvalidRequest)
    host.send("m1", Leave(host.id(), "g", "m1"))
    host.take("m1")
    assert host.send("admin", CommitOffset(2, "g", "t", "0", 4)) == []
    host.settle_all()
    assert host.take("admin") == [Settled(2)]
    assert Host(host.log).offsets()["0"][0] == 4


def test_a_topic_that_is_deleted_is_forgotten_for_good(host: Host) -> None:
    host.join("m1", ("0", "1", "2"))
    host.poll("m1", {"0": 9, "1": 9, "2": 9})
    host.done("m1", ("0", (0, 9)), ("1", (0, 9)))
    host.coordinator.forget_topic("t", host.now)
    host.settle_all()
    assert host.send("admin", ListGroups(1)) == [GroupNames(1, ())]
    # The recreated topic is a different one, perhaps smaller, so the group starts from its
    # beginning.
    assert host.join("m3", ("0",)) == ("0",)
    assert host.poll("m3", {"0": 2}) == [("0", 0, 2, 1)]
    host.send("m3", Leave(host.id(), "g", "m3"))
    again = Host(host.log)
    (names,) = again.send("admin", ListGroups(1))
    assert names == GroupNames(1, ())
    assert again.join("m2") == ("0",)
    assert again.poll("m2", {"0": 3}) == [("0", 0, 3, 1)]


def test_only_partitions_of_its_topic_are_known_to_a_group(host: Host) -> None:
    """Partition names that do not exist take no memory and are not written."""
    host.join("m1", reset=END)
    assert host.ask("m1", {"0": 9, "1": 9, "x" * 300: 9}, wait_ms=0) == []
    host.settle_all()
    assert host.offsets().keys() == {"0"}
    assert host.coordinator.groups["g"].offsets.topic("t").reach.keys() == {"0"}


def test_a_topic_that_is_deleted_while_offsets_are_read_is_forgotten_too() -> None:
    """Offsets that are read after a deletion do not bring the topic back.

    The deletion is reported once.
    """
    host = Host(_committed(("g", 5), ("h", 9)), loads=False)
    host.coordinator.forget_topic("t", host.now)
    assert host.flush() == 0
    host.load()
    host.settle_all()
    for log in (host, Host(host.log)):
        assert log.send("admin", ListGroups(1)) == [GroupNames(1, ())]


def test_offsets_that_went_while_they_were_read_are_read_anew() -> None:
    """If records with offsets were removed while they were read, the offsets are read again,
    because they may have been deleted.
    """
    first, second = _committed(("g", 5), ("h", 9))
    host = Host([first, second], loads=False)
    _answer(host, 2, first)
    _answer(host, 2, error=OffsetOutOfRange("gone", log_start=1, high_watermark=2), offset=1)
    host.at(1_000)
    _answer(host, 2, second, offset=1)
    assert host.send("admin", ListGroups(1)) == [GroupNames(1, ("h",))]


def test_what_is_late_does_not_bring_a_deleted_topic_back(host: Host) -> None:
    """A late request does not restore a deleted topic's offsets for a new topic of its name."""
    host.join("m1", reset=END)
    host.coordinator.forget_topic("t", host.now)
    with pytest.raises(FencedMember):
        host.ask("m1", {"0": 1_000}, wait_ms=0)  # The request was in flight during the deletion.
    assert host.join("m2", reset=END) == ("0",)
    assert host.poll("m2", {"0": 0}) == []
    assert host.poll("m2", {"0": 2}) == [("0", 0, 2, 1)]


def test_what_is_late_does_not_pass_for_word_of_the_topic_that_was_made_again(host: Host) -> None:
    """Partitions of the old topic do not count for the new one: otherwise offsets would be lost
    forever.
    """
    for member in ("m1", "m2"):
        host.join(member)
    assert host.poll("m1", {"0": 700}, 1) == [("0", 0, 1, 1)]
    host.coordinator.forget_topic("t", host.now)
    assert host.join("m3") == ("0",)
    assert host.poll("m3", {"0": 1}) == [("0", 0, 1, 1)]
    late = Acquire(host.id(), "g", "m2", (("0", 500, 1_000),), 9, 0)
    with pytest.raises(FencedMember) as caught:
        leases(host.send("m2", late))
    assert caught.value.details == {"deleted": "t"}, "what it knows is to be asked again"
    (answer,) = host.send("m1", Settle(host.id(), "g", "m1", (("0", (0, 1)),)))
    assert isinstance(answer, Settled)
    assert isinstance(answer.error, FencedMember)
    assert host.offsets() == {"0": (0, 1, 1, 0)}
    assert host.poll("m3", {"0": 2}) == [("0", 1, 2, 1)]


def test_who_waits_for_records_of_a_deleted_topic_is_told_at_once(host: Host) -> None:
    host.join("m1")
    host.join("m2", topic="u")
    host.beat("m1")
    assert host.ask("m1", {"0": 0}) is None
    assert host.ask("m2", {"0": 0}) is None
    host.coordinator.forget_topic("t", host.now)
    with pytest.raises(FencedMember):
        leases(host.take("m1"))
    assert host.poll("m2", {"0": 1}) == [("0", 0, 1, 1)]


def test_who_joins_tells_of_a_topic_that_was_made_again(host: Host) -> None:
    """A join contains the topic id, because perhaps no coordinator has learned of the deletion."""
    host.join("m1", ("0", "1"), topic_id="a1")
    host.poll("m1", {"0": 9, "1": 9})
    host.done("m1", ("0", (0, 9)), ("1", (0, 4)))
    for log in (Host(host.log), host):  # A new coordinator, and one that has this member.
        assert log.join("m2", topic_id="b2") == ("0",)
        assert log.poll("m2", {"0": 3}) == [("0", 0, 3, 1)]
        assert log.done("m2", ("0", (0, 1))) == 0
        with pytest.raises(FencedMember):
            log.beat("m1")
        with pytest.raises(StaleEpoch):
            log.join("m3", topic_id="a1")  # The join is late.
        log.coordinator.forget_topic("t", log.now, "a1")  # this deletion is late, too
        log.settle_all()
        for offsets in (log.offsets(), Host(log.log).offsets()):
            assert {name: found[0] for name, found in offsets.items()} == {"0": 1}
        log.coordinator.forget_topic("t", log.now, "b2")
        log.settle_all()
        assert Host(log.log).send("admin", ListGroups(1)) == [GroupNames(1, ())]


def test_an_offset_that_is_set_is_about_the_topic_that_there_is(host: Host) -> None:
    """An offset that was set without a topic id belongs to the topic of the first member that
    joins.
    """
    host.join("m1", topic_id="a1")
    host.poll("m1", {"0": 9})
    host.done("m1", ("0", (0, 9)))
    host.send("m1", Leave(host.id(), "g", "m1"))
    host.send("admin", CommitOffset(host.id(), "g", "t", "0", 2))
    host.settle_all()
    again = Host(host.log)
    again.join("m2", topic_id="b2")
    assert again.poll("m2", {"0": 3}) == [("0", 2, 3, 1)]
    with pytest.raises(StaleEpoch):
        again.join("m3", topic_id="a1")


def test_an_empty_group_that_lost_its_topic_is_gone(host: Host) -> None:
    host.join("m1")
    host.poll("m1", {"0": 9})
    host.done("m1", ("0", (0, 9)))
    host.send("m1", Leave(host.id(), "g", "m1"))
    host.coordinator.forget_topic("t", host.now)
    host.settle_all()
    assert host.send("admin", ListGroups(1)) == [GroupNames(1, ())]


# --- whatever happens ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_every_record_is_done_once_and_held_by_one(seed: int) -> None:
    """Members come, leave and fall silent, and the coordinator moves; every record is processed."""
    dice, host = random.Random(seed), Host()
    partitions = [str(index) for index in range(dice.randrange(1, 4))]
    ends = {partition: dice.randrange(5, 40) for partition in partitions}
    held: dict[tuple[str, int], tuple[str, int]] = {}  # the holder and the expiry of each lease
    done: set[tuple[str, int]] = set()  # acknowledged records
    members: dict[str, bool] = {}
    made = 0

    def forget(member: str) -> None:
        members.pop(member, None)
        for record in [r for r, (owner, _) in held.items() if owner == member]:
            del held[record]

    for _ in range(120):
        host.at(host.now + dice.randrange(0, 30))
        verb = dice.randrange(12)
        if verb == 0 or not members:
            made += 1
            members[f"m{made}"] = True
            host.join(f"m{made}", partitions)
            continue
        member = dice.choice(list(members))
        if verb == 1:
            host.send(member, Leave(host.id(), "g", member))
            forget(member)
        elif verb == 2 and dice.random() < 0.3:
            host.settle_all()
            now = host.now
            host = Host(host.log)  # another coordinator, which loads the durable state
            host.at(now)
            for known in list(members):
                forget(known)
        elif verb < 8:
            try:
                found = host.poll(member, ends, dice.randrange(1, 9))
            except FencedMember:
                forget(member)
                continue
            for partition, start, end, _count in found:
                for record in ((partition, offset) for offset in range(start, end)):
                    assert record not in done
                    owner, until = held.get(record, (member, 0))
                    assert owner == member or until <= host.now, "leased to two members"
                    held[record] = (member, host.now + ACK_WAIT)
        else:
            mine = [r for r, (owner, until) in held.items() if owner == member]
            chosen = [r for r in mine if dice.random() < 0.6]
            valid = [r for r in chosen if held[r][1] > host.now]
            acks = tuple((p, (offset, offset + 1)) for p, offset in chosen)
            host.send(member, Settle(host.id(), "g", member, acks))
            host.settle_all()
            (answer,) = host.take(member)
            assert isinstance(answer, Settled)
            if answer.error is not None:
                forget(member)
                continue
            assert answer.refused == len(chosen) - len(valid)
            done |= set(valid)
            for record in chosen:
                del held[record]
    # From here on one member does all the work.
    host.at(host.now + 2 * SESSION)
    host.join("last", partitions)
    for _ in range(200):
        found = host.poll("last", ends, 50)
        fresh = {(p, offset) for p, start, end, _ in found for offset in range(start, end)}
        assert not fresh & done
        done |= fresh
        if found:
            assert host.done("last", *[(p, (start, end)) for p, start, end, _ in found]) == 0
    assert done == {(p, offset) for p, end in ends.items() for offset in range(end)}
    assert {p: found[0] for p, found in host.offsets().items()} == ends


def test_a_broker_that_does_not_know_all_its_groups_yet_lists_none() -> None:
    """A broker that is still loading groups answers with an error, not with an incomplete list."""
    host = Host(_committed(("g", 5)), loads=False)
    found = GroupCoordinators("broker-0", host, assignor)
    found.by_index[0] = host.coordinator
    answer = found.list(ListGroups(7))
    assert isinstance(answer.error, ReplicaNotAvailable)
    assert answer.error.retriable
    host.load()
    assert found.list(ListGroups(8)) == GroupNames(8, ("g",))


def test_a_broker_that_has_lost_a_partition_does_not_say_that_it_has_no_groups() -> None:
    """A broker that has lost an offsets partition answers with an error, since an empty list would
    hide groups.
    """
    host = Host(_committed(("g", 5)))
    found = GroupCoordinators("broker-0", host, assignor)
    found.by_index[0] = host.coordinator
    assert found.list(ListGroups(7, "0")) == GroupNames(7, ("g",))
    del found.by_index[0]
    answer = found.list(ListGroups(8, "0"))
    assert isinstance(answer.error, NotLeader)
    assert found.list(ListGroups(9, "nonsense")).error is not None


def test_a_message_costs_the_same_however_many_groups_there_are() -> None:
    """A message costs the same with thousands of groups, whose members send heartbeats every few
    seconds.
    """

    def cost(groups: int) -> int:
        host = Host()
        for number in range(groups):
            host.join("m1", group=f"g{number}")
            host.send("m1", Acquire(host.id(), f"g{number}", "m1", (("0", 0, 0),), 1, 5_000))
        beat = Heartbeat(host.id(), "g0", "m1", ("0",))

        return calls_of(lambda: host.send("m1", beat))

    few = cost(2)  # Measure this first, so that one-time loading is not counted.
    assert cost(200) <= few + 5


def test_an_acknowledgement_costs_the_same_however_many_partitions_are_at_work() -> None:
    """With 100 members and 500 partitions, an acknowledgement does not search all of them for the
    next deadline.
    """

    def cost(partitions: int) -> int:
        names = tuple(str(number) for number in range(partitions))
        host = Host()
        host.join("m1", names)
        assert len(host.poll("m1", dict.fromkeys(names, 3), 3 * partitions)) == partitions
        settle = Settle(host.id(), "g", "m1", (("0", (0, 1)),))
        return calls_of(lambda: host.send("m1", settle))

    few = cost(2)  # Measure this first, so that one-time loading is not counted.
    assert cost(200) <= few + 5


def test_an_acknowledgement_costs_the_same_however_many_members_wait() -> None:
    """An acknowledgement does not visit every member (14 ms with 100 members and 8,000
    partitions).
    """

    def cost(members: int) -> int:
        names = tuple(str(number) for number in range(members * 4))
        host = Host()
        ids = [f"m{number}" for number in range(members)]
        for member in ids:
            host.join(member, names)
            host.at(host.now + 15)  # the assignment of a large group is delayed
        for member in ids:
            mine = host.beat(member, names)
            assert len(mine) == 4
            found = host.ask(member, dict.fromkeys(mine, int(member == "m0")))
            assert (found is None) == (member != "m0")
        partition = host.beat("m0", names)[0]
        settle = Settle(host.id(), "g", "m0", ((partition, (0, 1)),))
        return calls_of(lambda: host.coordinator.step("m0", settle, host.now))

    few = cost(2)
    assert cost(50) <= few + 5


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions were called."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def unsubscribed(group: str = "g", named: str | None = "g", topic: str = "t") -> Unsubscribe:
    return Unsubscribe(77, group, topic, named)


def test_members_of_a_group_that_is_unsubscribed_are_told_so_whatever_they_ask(host: Host) -> None:
    host.join("m1", ("0", "1"))
    host.join("m2", ("0", "1"))
    host.join("m3", topic="u")
    host.beat("m1", ("0", "1"))
    held = host.poll("m1", {"0": 2, "1": 2})
    assert held
    assert host.ask("m3", {"0": 0}) is None
    (answer,) = host.send("admin", unsubscribed())
    assert answer == Answer(77)
    asked: list[GroupRequest] = [
        Heartbeat(1, "g", "m1", ()),
        Acquire(2, "g", "m1", (("0", 0, 2),), 9, 0),
        Settle(3, "g", "m1", (("0", (0, 1)),)),
        Leave(4, "g", "m2"),
    ]
    for message in asked:
        (refused,) = host.send(message.member, message)  # type: ignore[union-attr]  # all have one
        assert isinstance(refused.error, NotSubscribed)  # type: ignore[union-attr]  # and this, too
    assert host.poll("m3", {"0": 1}) == [("0", 0, 1, 1)], "it consumes another topic"
    assert set(host.offsets()) == {"0", "1"}, "offsets stay"
    assert host.join("m4", ("0", "1")) == ("0", "1"), "who comes anew goes on"
    assert host.poll("m4", {"0": 2, "1": 2})


def test_who_waits_in_a_group_that_is_unsubscribed_is_told_at_once(host: Host) -> None:
    host.join("m1")
    assert host.ask("m1", {"0": 0}) is None
    host.send("admin", unsubscribed())
    with pytest.raises(NotSubscribed):
        leases(host.take("m1"))


@pytest.mark.parametrize("named", [None, "mine"])
def test_a_group_is_unsubscribed_under_its_own_name_alone(host: Host, named: str | None) -> None:
    """An unsubscription affects only the group whose permission was checked."""
    host.join("m1")
    (answer,) = host.send("evil", unsubscribed(named=named))
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, InvalidRequest)
    assert host.beat("m1") == ("0",)
