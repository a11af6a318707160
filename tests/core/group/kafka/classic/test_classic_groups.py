"""Classic groups, message by message: the behaviour in a rebalance on which Kafka's clients
rely.
"""

from __future__ import annotations

from typing import TypeVar

from pymq.core.group.kafka.classic.codes import ClassicCode
from pymq.core.group.request_validation import ASSIGNMENTS_MAX, SUBSCRIPTION_MAX
from pymq.core.message import (
    BeatClassic,
    ClassicDone,
    ClassicOffset,
    ClassicState,
    CommitClassic,
    CommitOffset,
    DeleteGroup,
    DescribeClassic,
    GetGroup,
    GroupNames,
    GroupState,
    JoinClassic,
    JoinedClassic,
    LeaveClassic,
    ListGroups,
    Message,
    Settled,
    SyncClassic,
    SyncedClassic,
)
from pymq.errors import InvalidRequest, NotLeader
from tests.core.group.test_coordinator import Host

SESSION, REBALANCE = 10_000, 30_000
RANGE = (("range", b"topics"),)
M = TypeVar("M")


class Clients:
    """Clients of one group; each has its own address, and its member has the client's name."""

    def __init__(self) -> None:
        self.host = Host()
        self.generation = 0

    def ask(self, source: str, request: Message, kind: type[M]) -> M | None:
        """Send a request; return the answer if it comes at once."""
        self.host.coordinator.step(source, request, self.host.now)  # type: ignore[arg-type]  # the coordinator takes any request
        return self.answer(source, kind)

    def answer(self, source: str, kind: type[M]) -> M | None:
        found = [message for message in self.host.take(source) if isinstance(message, kind)]
        return found[-1] if found else None

    def join(
        self,
        source: str,
        member: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        kind: str = "consumer",
        needs_id: bool = False,
        session: int = SESSION,
    ) -> JoinedClassic | None:
        names = (member, f"{source}!", instance, source, "host", kind, protocols)
        request = JoinClassic(self.host.id(), "g", *names, session, REBALANCE, needs_id)
        return self.ask(source, request, JoinedClassic)

    def sync(
        self, source: str, generation: int, instance: str | None = None, **assigned: bytes
    ) -> SyncedClassic | None:
        given = tuple((f"{member}!", what) for member, what in assigned.items())
        member = f"{source}!"
        request = SyncClassic(
            self.host.id(), "g", member, instance, generation, "consumer", "range", given
        )
        return self.ask(source, request, SyncedClassic)

    def beat(self, source: str, generation: int, instance: str | None = None) -> int:
        request = BeatClassic(self.host.id(), "g", f"{source}!", instance, generation)
        answer = self.ask(source, request, ClassicDone)
        assert answer is not None
        return answer.codes[0]

    def leave(self, source: str, instance: str | None = None) -> tuple[int, ...]:
        request = LeaveClassic(self.host.id(), "g", ((f"{source}!", instance),))
        answer = self.ask(source, request, ClassicDone)
        assert answer is not None
        return answer.codes

    def commit(
        self, source: str, generation: int, *offsets: ClassicOffset, member: str | None = None
    ) -> int:
        name = f"{source}!" if member is None else member
        request = CommitClassic(self.host.id(), "g", name, None, generation, offsets)
        self.host.coordinator.step(source, request, self.host.now)
        self.host.settle_all()
        answer = self.answer(source, ClassicDone)
        assert answer is not None
        return answer.codes[0]

    def two(self) -> int:
        """Let two members reach a stable generation, with ``a`` as the leader; return the
        generation.
        """
        self.join("a")
        self.sync("a", 1, a=b"all")
        assert self.join("b") is None
        assert self.beat("a", 1) == ClassicCode.REBALANCE_IN_PROGRESS
        leader = self.join("a", "a!")
        follower = self.answer("b", JoinedClassic)
        assert leader is not None
        assert follower is not None
        assert (leader.leader, follower.leader) == ("a!", "a!")
        assert [each.member for each in leader.members] == ["a!", "b!"]
        assert leader.members[1].metadata == b"topics"
        assert follower.members == ()
        assert self.sync("b", leader.generation) is None
        mine = self.sync("a", leader.generation, a=b"0", b=b"1")
        theirs = self.answer("b", SyncedClassic)
        assert mine is not None
        assert theirs is not None
        assert (mine.assignment, theirs.assignment) == (b"0", b"1")
        return leader.generation

    def state(self) -> ClassicState:
        answer = self.ask("x", DescribeClassic(self.host.id(), "g"), ClassicState)
        assert answer is not None
        return answer


def code(answer: JoinedClassic | SyncedClassic | None) -> int:
    assert answer is not None
    return answer.code


# --- joining ------------------------------------------------------------------------------------


def test_the_first_member_leads_and_a_second_one_starts_a_rebalance() -> None:
    clients = Clients()
    generation = clients.two()
    assert generation == 2
    assert clients.beat("a", 2) == clients.beat("b", 2) == 0
    assert clients.beat("a", 1) == ClassicCode.ILLEGAL_GENERATION
    assert clients.state().state == "Stable"


def test_a_new_member_gets_its_id_first_if_it_must() -> None:
    clients = Clients()
    first = clients.join("a", needs_id=True)
    assert first is not None
    assert (first.code, first.member) == (ClassicCode.MEMBER_ID_REQUIRED, "a!")
    second = clients.join("a", "a!", needs_id=True)
    assert second is not None
    assert (second.code, second.generation) == (0, 1)


def test_an_id_that_is_not_used_does_not_hold_others_up_for_ever() -> None:
    clients = Clients()
    clients.join("a", needs_id=True)
    assert clients.join("b") is None
    clients.host.at(SESSION + 300)
    found = clients.answer("b", JoinedClassic)
    assert found is not None
    assert found.generation == 1


def test_members_need_a_protocol_in_common() -> None:
    clients = Clients()
    clients.join("a", protocols=(("sticky", b""), ("range", b"")))
    clients.sync("a", 1)
    inconsistent = ClassicCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(clients.join("b", protocols=(("other", b""),))) == inconsistent
    assert code(clients.join("b", kind="connect")) == inconsistent
    assert code(clients.join("b", protocols=())) == inconsistent
    assert clients.join("b", protocols=RANGE) is None
    joined = clients.join("a", "a!", protocols=(("sticky", b""), ("range", b"")))
    assert joined is not None
    assert joined.protocol == "range"


def test_unknown_members_are_refused() -> None:
    clients = Clients()
    unknown = ClassicCode.UNKNOWN_MEMBER_ID
    assert clients.beat("a", 1) == unknown
    assert code(clients.sync("a", 1)) == unknown
    assert code(clients.join("a", "never!")) == unknown
    assert clients.leave("a") == (unknown,)
    clients.two()
    assert clients.beat("c", 2) == unknown


def test_a_session_has_bounds() -> None:
    clients = Clients()
    for session in (0, -1, 31 * 60_000):
        refused = clients.join("a", session=session)
        assert code(refused) == ClassicCode.INVALID_SESSION_TIMEOUT


def test_what_members_say_is_bounded() -> None:
    clients = Clients()
    large = clients.join("a", protocols=(("range", bytes(SUBSCRIPTION_MAX)),))
    assert large is not None
    assert isinstance(large.error, InvalidRequest)
    clients.join("a")
    refused = clients.sync("a", 1, a=bytes(ASSIGNMENTS_MAX))
    assert refused is not None
    assert isinstance(refused.error, InvalidRequest)


# --- rebalances ---------------------------------------------------------------------------------


def test_a_silent_member_is_removed_and_the_others_share() -> None:
    clients = Clients()
    clients.two()
    for now in range(3_000, 15_000, 3_000):
        clients.host.at(now)
        clients.beat("a", 2)
    assert clients.beat("a", 2) == ClassicCode.REBALANCE_IN_PROGRESS
    joined = clients.join("a", "a!")
    assert joined is not None
    assert [each.member for each in joined.members] == ["a!"]
    assert clients.beat("b", 2) == ClassicCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_join_again_is_removed_after_the_rebalance_timeout() -> None:
    clients = Clients()
    clients.two()
    assert clients.join("c") is None
    for now in range(3_000, REBALANCE + 3_000, 3_000):
        clients.host.at(now)
        clients.beat("a", 2)
        clients.beat("b", 2)
    found = clients.answer("c", JoinedClassic)
    assert found is not None
    assert [each.member for each in found.members] == ["c!"]


def test_a_leader_that_joins_and_does_not_sync_is_removed() -> None:
    clients = Clients()
    clients.two()
    assert clients.join("a", "a!") is None  # a leader that joins again starts a rebalance
    clients.join("b", "b!")
    clients.answer("a", JoinedClassic)
    assert clients.sync("b", 3) is None
    for now in range(3_000, REBALANCE + 6_000, 3_000):
        clients.host.at(now)
        clients.beat("a", 3)
        clients.beat("b", 3)
    assert code(clients.answer("b", SyncedClassic) or clients.sync("b", 3)) in (
        ClassicCode.REBALANCE_IN_PROGRESS,
        ClassicCode.ILLEGAL_GENERATION,
    )
    joined = clients.join("b", "b!")
    assert joined is not None
    assert joined.leader == "b!"


def test_a_member_that_leaves_starts_a_rebalance_at_once() -> None:
    clients = Clients()
    clients.two()
    assert clients.leave("b") == (0,)
    assert clients.beat("a", 2) == ClassicCode.REBALANCE_IN_PROGRESS
    assert code(clients.sync("a", 2)) == ClassicCode.REBALANCE_IN_PROGRESS
    joined = clients.join("a", "a!")
    assert joined is not None
    assert joined.generation == 3
    clients.leave("a")
    assert clients.state().state == ""


def test_syncs_that_wait_are_answered_when_a_new_rebalance_begins() -> None:
    clients = Clients()
    clients.two()
    clients.join("a", "a!")
    clients.join("b", "b!")
    assert clients.sync("b", 3) is None
    assert clients.join("c") is None
    assert code(clients.answer("b", SyncedClassic)) == ClassicCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_joins_again_unchanged_disturbs_nobody() -> None:
    clients = Clients()
    clients.two()
    joined = clients.join("b", "b!")
    assert joined is not None
    assert (joined.code, joined.generation) == (0, 2)
    assert clients.beat("a", 2) == 0
    assert clients.join("b", "b!", protocols=(("range", b"others"),)) is None
    assert clients.beat("a", 2) == ClassicCode.REBALANCE_IN_PROGRESS


# --- static members -----------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    clients = Clients()
    clients.join("a", instance="i")
    clients.sync("a", 1, "i", a=b"mine")
    again = clients.join("a2", instance="i")
    assert again is not None
    assert (again.code, again.generation, again.member) == (0, 1, "a2!")
    assert code(clients.sync("a", 1, "i")) == ClassicCode.FENCED_INSTANCE_ID
    assert clients.beat("a", 1, "i") == ClassicCode.FENCED_INSTANCE_ID
    synced = clients.sync("a2", 1, "i")
    assert synced is not None
    assert synced.assignment == b"mine"
    assert clients.leave("", "i") == (ClassicCode.FENCED_INSTANCE_ID,)
    request = LeaveClassic(clients.host.id(), "g", (("", "i"),))
    answer = clients.ask("admin", request, ClassicDone)
    assert answer is not None
    assert answer.codes == (0,)


# --- offsets ------------------------------------------------------------------------------------


def test_offsets_are_those_of_pymqs_groups() -> None:
    clients = Clients()
    clients.two()
    assert (
        clients.commit("a", 2, ClassicOffset("t", "0", 7, "note"), ClassicOffset("t", "1", 9)) == 0
    )
    loaded = Host(clients.host.log)  # the next coordinator loads the group
    (found,) = loaded.send("x", GetGroup(1, "g"))
    assert isinstance(found, GroupState)
    assert [(o.partition, o.committed, o.note) for o in found.offsets] == [
        ("0", 7, "note"),
        ("1", 9, ""),
    ]


def test_commits_of_others_are_refused() -> None:
    clients = Clients()
    offset = ClassicOffset("t", "0", 7)
    assert clients.commit("admin", -1, offset, member="") == 0
    assert clients.commit("a", 1, offset) == ClassicCode.ILLEGAL_GENERATION
    clients.two()
    assert clients.commit("admin", -1, offset, member="") == ClassicCode.UNKNOWN_MEMBER_ID
    assert clients.commit("a", 1, offset) == ClassicCode.ILLEGAL_GENERATION
    assert clients.commit("c", 2, offset) == ClassicCode.UNKNOWN_MEMBER_ID
    clients.join("c")
    assert clients.commit("a", 2, offset) == 0  # a member may commit until it joins again


# --- two kinds of members, and takeovers --------------------------------------------------------


def test_a_group_has_members_of_one_kind() -> None:
    clients = Clients()
    clients.host.join("pymq")
    assert code(clients.join("a")) == ClassicCode.INCONSISTENT_GROUP_PROTOCOL
    other = Clients()
    other.two()
    for request in (
        CommitOffset(other.host.id(), "g", "t", "0", 1),
        DeleteGroup(other.host.id(), "g"),
    ):
        answer = other.ask("x", request, Settled)
        assert answer is not None
        assert isinstance(answer.error, InvalidRequest)


def test_a_takeover_answers_what_waits() -> None:
    clients = Clients()
    clients.two()
    clients.join("c")
    clients.host.coordinator.resign(NotLeader("moved", leader="other"), 0)
    found = clients.answer("c", JoinedClassic)
    assert found is not None
    assert isinstance(found.error, NotLeader)


def test_a_group_that_is_deleted_is_not_listed() -> None:
    clients = Clients()
    clients.join("a")
    clients.sync("a", 1)
    clients.commit("a", 1, ClassicOffset("t", "0", 7))
    clients.leave("a")
    assert clients.state().state == "Empty"
    clients.ask("x", DeleteGroup(clients.host.id(), "g"), Settled)
    names = clients.ask("x", ListGroups(clients.host.id(), "0"), GroupNames)
    assert names is not None
    assert names.groups == ()
    assert clients.state().state == ""
