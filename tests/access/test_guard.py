"""The guard refuses each message without permission, with the answer that its sender expects."""

from __future__ import annotations

import json
from random import Random
from typing import Any, get_args

import pytest

from pymq.access import guard
from pymq.access.audit import LINES_MAX, TEXT_MAX, Audit
from pymq.access.guard import Guard
from pymq.access.requirements import CLUSTER_ACTION, Requirement, is_declared, requirements
from pymq.access.rules import Pattern, Policy, Rule, parse_policy
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message
from pymq.core.types import OFFSETS_TOPIC, AckMode
from pymq.errors import AuthorizationFailed, QuotaExceeded
from tests.transport.samples import sample

MESSAGES = get_args(Message)
# Messages without an answer, and answers.
UNANSWERED = {
    cls.__name__
    for cls in (
        *(msg.Produced, msg.Sequence, msg.Fetched, msg.OffsetFound, msg.Assigned, msg.Acquired),
        *(msg.Cancelled, msg.EpochFound),
        *(msg.Settled, msg.GroupState, msg.GroupNames, msg.GroupLeases, msg.Answer, msg.UnderWay),
        *(msg.LeaderAndIsrAnswer, msg.Copied),
        *(msg.JoinedClassic, msg.SyncedClassic, msg.ClassicDone, msg.ClassicState),
        *(msg.Reconciled, msg.ReconciledState),
        *(msg.BrokerHeartbeat, msg.StopReplica, msg.Stopped, msg.Seal, msg.Sealed, msg.RollWanted),
        *(msg.RetireBlocks, msg.BlockSizes, msg.AlterIsr, msg.BecomeLeader, msg.Progress),
        *(msg.OfflineReplicas, msg.TransferLeader),
        msg.ReplicaEnds,
        *(msg.DescribePartitions, msg.PartitionReports, msg.Ping, msg.ReplicaFetch),
        *(msg.ReplicaFetched, msg.RaftAppend, msg.RaftAppended, msg.RaftVote, msg.RaftVoted),
        msg.RaftTimeout,
    )
}


# The permission of each client request, as in docs/security.md: an operation, its resource, and the
# field with the name. The list is repeated here, so that the test finds mistakes in the other one.
NEEDED: dict[type, set[tuple[str, str, str]]] = {
    msg.Produce: {("Write", "topic", "topic")},
    msg.GetSequence: {("Write", "topic", "topic")},
    msg.CancelDelayed: {("Write", "topic", "topic")},
    msg.InitProducer: {("Write", "producer", "name")},
    msg.Fetch: {("Read", "topic", "topic")},
    msg.FindOffset: {("Read", "topic", "topic")},
    msg.FindEpoch: {("Read", "topic", "topic")},
    msg.DeleteRecords: {("Delete", "topic", "topic")},
    msg.Copy: {("Write", "topic", "topic"), ("Read", "topic", "origin")},
    msg.Locate: {("Read", "topic", "topic")},
    msg.Unsubscribe: {("Read", "topic", "topic"), ("Delete", "group", "group")},
    msg.Subscribe: {("Read", "topic", "topic"), ("Read", "group", "group")},
    msg.Join: {("Read", "group", "group"), ("Read", "topic", "topic")},
    msg.CommitOffset: {("Read", "group", "group"), ("Read", "topic", "topic")},
    msg.JoinClassic: {("Read", "group", "group")},
    msg.SyncClassic: {("Read", "group", "group")},
    msg.BeatClassic: {("Read", "group", "group")},
    msg.LeaveClassic: {("Read", "group", "group")},
    msg.CommitClassic: {("Read", "group", "group")},
    msg.DescribeClassic: {("Describe", "group", "group")},
    msg.BeatReconciled: {("Read", "group", "group")},
    msg.DescribeReconciled: {("Describe", "group", "group")},
    msg.Heartbeat: {("Read", "group", "group")},
    msg.Leave: {("Read", "group", "group")},
    msg.Acquire: {("Read", "group", "group")},
    msg.Settle: {("Read", "group", "group")},
    msg.DeleteGroup: {("Delete", "group", "group")},
    msg.GetGroup: {("Describe", "group", "group")},
    msg.GetLeases: {("Describe", "group", "group"), ("Describe", "topic", "topic")},
    msg.GetMetadata: {("Describe", "topic", "topic")},
    msg.DescribeTopic: {("Describe", "topic", "name")},
    msg.ListTopics: {("Describe", "cluster", "")},
    msg.ListGroups: {("Describe", "cluster", "")},
    msg.DescribeCluster: {("Describe", "cluster", "")},
    msg.CreateTopic: {("Create", "topic", "name")},
    msg.DeleteTopic: {("Delete", "topic", "name")},
    msg.AlterTopic: {("Alter", "topic", "name")},
    msg.CreatePartition: {("Alter", "topic", "topic")},
    msg.SetPartitionState: {("Alter", "topic", "topic")},
    msg.Reassign: {("Alter", "cluster", "")},
    msg.Decommission: {("Alter", "cluster", "")},
    msg.Recommission: {("Alter", "cluster", "")},
    msg.BalanceLeaders: {("Alter", "cluster", "")},
    msg.RecoverPartition: {("Alter", "cluster", "")},
}


class Door:
    """A guard with its audit log, and a settable clock."""

    def __init__(self, policy: Policy) -> None:
        self.now = 0
        self.lines: list[dict[str, Any]] = []
        self.audit = Audit(lambda line: self.lines.append(json.loads(line)), lambda: 1_700_000)
        self.guard = Guard(policy, self.audit, lambda: self.now)

    def ask(self, message: Message, principal: str = "p") -> Any:
        return self.guard(principal, "client-1.producer", message)


def allowing(*operations: str, resources: tuple[str, ...], **more: Any) -> Policy:
    allow = {"principal": "p", "operations": list(operations), "resources": list(resources)}
    return parse_policy({"rule": [allow], **more})


def produce(size: int = 10) -> msg.Produce:
    batch = EncodedBatch.encode([bytes(size)], timestamp_ms=0)
    return msg.Produce(7, "orders", "0", AckMode.LEADER, batch)


def test_every_message_is_declared() -> None:
    """Every message declares a requirement.

    A message without one would be accessible to everyone.
    """
    assert [cls.__name__ for cls in MESSAGES if not is_declared(cls)] == []


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_needs_what_is_written_down(cls: type) -> None:
    """The requirements equal a second list, because a wrong one could allow a reader to delete."""
    for seed in range(20):
        message = sample(cls, Random(seed))
        wanted = {
            (operation, kind, getattr(message, field) if field else "")
            for operation, kind, field in NEEDED.get(cls, {("ClusterAction", "cluster", "")})
        }
        if isinstance(message, msg.InitProducer) and not message.name:
            wanted = set()  # an id of the principal itself
        if isinstance(message, msg.CommitClassic):
            wanted |= {("Read", "topic", each.topic) for each in message.offsets}
        if isinstance(message, msg.BeatReconciled):
            wanted |= {("Read", "topic", name) for name, _, _ in message.topics or ()}
        found = {(n.operation.value, n.kind.value, n.name) for n in requirements(message)}
        # the requirements that do not concern the group
        assert found == {need for need in wanted if need[2] is not None}


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("principal", ["", "p"])
def test_who_has_no_rule_can_do_nothing(cls: type, principal: str) -> None:
    """Without a rule, the guard refuses any content, logs the refusal, and answers a request."""
    door = Door(Policy())
    is_answered, asked_anyhow = False, 0
    for seed in range(20):
        message = sample(cls, Random(seed))
        answers = door.ask(message, principal)
        if principal and not requirements(message):
            assert answers is None
            asked_anyhow += 1
            continue
        assert answers is not None
        for answer in answers:
            is_answered = True
            assert type(answer).__name__ in UNANSWERED  # the message is an answer, not a request
            assert isinstance(answer.error, AuthorizationFailed)
            assert answer.id == message.id
        door.now += 1000
    assert is_answered == (cls.__name__ not in UNANSWERED)
    assert door.audit.refused == len(door.lines) == 20 - asked_anyhow


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_who_has_all_that_is_needed_is_let_in_and_with_less_is_not(cls: type) -> None:
    for seed in range(10):
        message = sample(cls, Random(seed))
        needed = [_rule_for(each) for each in set(requirements(message))]
        assert Door(Policy(tuple(needed))).ask(message) is None
        for left_out in needed:
            less = tuple(rule for rule in needed if rule is not left_out)
            assert Door(Policy(less)).ask(message) is not None


def _rule_for(need: Requirement) -> Rule:
    pattern = Pattern(need.kind, need.name, is_prefix=False)
    return Rule(True, frozenset({"p"}), frozenset({need.operation}), (pattern,))


def test_internal_topics_are_the_clusters() -> None:
    """Clients cannot access internal topics, which hold data of other principals."""
    door = Door(allowing("All", resources=("topic:*", "group:*", "producer:*")))
    fetch = msg.Fetch(1, OFFSETS_TOPIC, "0", 0, 1000, 0)
    for message in (
        fetch,
        msg.DeleteTopic(1, OFFSETS_TOPIC),
        msg.AlterTopic(1, "__anything", {}),
        msg.FindOffset(1, OFFSETS_TOPIC, "0", 0),
    ):
        assert requirements(message) == (CLUSTER_ACTION,)
        assert door.ask(message) is not None
    # Any member may look up its group coordinator.
    assert door.ask(msg.GetMetadata(1, OFFSETS_TOPIC)) is None
    assert Door(allowing("ClusterAction", resources=("cluster",))).ask(fetch) is None


def test_an_unauthorised_leader_and_isr_is_refused_for_each_partition() -> None:
    for seed in range(50):
        message = sample(msg.LeaderAndIsr, Random(seed))
        (answer,) = Door(Policy()).ask(message)
        assert [error[:2] for error in answer.errors] == [
            (each.topic, each.partition) for each in message.partitions
        ]
        assert all(error.code == "CLUSTER_AUTHORIZATION_FAILED" for _, _, error in answer.errors)


def test_a_new_policy_holds_from_the_next_message_on() -> None:
    door = Door(allowing("Write", resources=("topic:orders",)))
    assert door.ask(produce()) is None
    door.guard.replace(Policy())
    (answer,) = door.ask(produce())
    assert "p may not Write topic:orders: Produce needs it" in str(answer.error)


def join(member: str = "m") -> msg.Join:
    return msg.Join(1, "g", member, "t", ("0",), "sticky", 10_000, 30_000, 0, msg.BEGIN)


def test_a_member_that_may_not_read_its_topic_any_more_is_no_member_for_long() -> None:
    """A member without the right to read leases nothing, and may still acknowledge its records."""
    door = Door(allowing("Read", resources=("topic:t", "group:g")))
    beat, acquire = msg.Heartbeat(2, "g", "m", ()), msg.Acquire(3, "g", "m", (), 1, 0)
    settle = msg.Settle(4, "g", "m")
    for message in (join(), beat, acquire, settle):
        assert door.ask(message) is None
    door.guard.replace(allowing("Read", resources=("group:g",)))
    assert door.ask(settle) is None
    for message in (beat, acquire):
        (answer,) = door.ask(message)
        assert isinstance(answer, msg.Assigned | msg.Acquired)
        assert isinstance(answer.error, AuthorizationFailed)
        assert answer.error.details["resource"] == "topic:t"
    assert door.ask(msg.Leave(5, "g", "m")) is None
    assert door.ask(acquire) is None, "the coordinator knows no such member"


def everybody(*resources: str, **more: Any) -> Policy:
    allow = {"principal": "*", "operations": ["Read"], "resources": list(resources)}
    return parse_policy({"rule": [allow], **more})


def is_refused(door: Door, member: str, principal: str) -> bool:
    """Return whether the member's requests are refused after it loses the right to read its
    topic.
    """
    door.guard.replace(everybody("group:g"))
    answers = door.ask(msg.Heartbeat(2, "g", member, ()), principal)
    door.guard.replace(everybody("topic:t", "group:g"))
    return answers is not None


def test_a_principal_with_many_members_drives_out_its_own_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A principal with very many member names cannot hide other members that lost their rights."""
    monkeypatch.setattr(guard, "MEMBERS_MAX", 10)
    door = Door(everybody("topic:t", "group:g"))
    assert door.ask(join(), "other") is None
    for number in range(30):
        assert door.ask(join(f"m{number}")) is None
    assert is_refused(door, "m", "other")
    refused = [is_refused(door, f"m{number}", "p") for number in range(30)]
    assert refused == [False] * 20 + [True] * 10
    for number in range(30):
        assert door.ask(msg.Leave(3, "g", f"m{number}")) is None
    assert list(door.guard._consumed) == ["other"]


def test_a_member_that_a_quota_keeps_out_is_not_remembered() -> None:
    """A member refused by a quota is not remembered, since the coordinator has not received its
    join.
    """
    door = Door(everybody("topic:t", "group:g", quota={"p": {"requests_per_second": 1}}))
    assert door.ask(join("m0")) is None
    assert door.ask(join("m1")) is not None
    assert is_refused(door, "m0", "p")
    assert not is_refused(door, "m1", "p")


def test_requests_over_the_quota_are_told_when_to_come_again() -> None:
    """At two requests a second the third has to wait, and an hour without requests allows only one
    second's worth at once.
    """
    quota = {"p": {"requests_per_second": 2}}
    door = Door(allowing("All", resources=("topic:*", "group:*"), quota=quota))
    fetch = msg.Fetch(1, "orders", "0", 0, 1000, 0)
    assert [door.ask(fetch) for _ in range(2)] == [None, None]
    (answer,) = door.ask(fetch)
    assert isinstance(answer.error, QuotaExceeded)
    assert answer.error.retriable
    wait_ms = answer.error.details["retry_ms"]
    assert isinstance(wait_ms, int)
    assert 0 < wait_ms <= 500
    # if this request were refused, the member would lose its leases
    assert door.ask(msg.Heartbeat(1, "g", "m", ())) is None
    door.now += 3_600_000
    assert [door.ask(fetch) is None for _ in range(3)] == [True, True, False]


def test_bytes_are_paid_for_with_the_time_after_them() -> None:
    quota = {
        "*": {"produce_bytes_per_second": 1000},
        "reader": {"fetch_bytes_per_second": 1000},
    }
    policy = parse_policy({"superusers": ["p", "reader"], "quota": quota})
    door = Door(policy)
    assert door.ask(produce(5000)) is None
    (answer,) = door.ask(produce(1))
    assert 4000 < answer.error.details["retry_ms"] < 5000
    door.now += answer.error.details["retry_ms"]
    assert door.ask(produce(1)) is None
    fetch = msg.Fetch(1, "orders", "0", 0, 1000, 0)
    assert door.ask(fetch, "reader") is None
    door.guard.send("reader", msg.Fetched(1, "orders", "0", 0, 0, 1, data=bytes(1500)))
    (answer,) = door.ask(fetch, "reader")
    assert isinstance(answer.error, QuotaExceeded)
    assert answer.error.details["retry_ms"] == 501


def test_what_is_copied_is_paid_for_as_it_is_written() -> None:
    quota = {"*": {"produce_bytes_per_second": 1000, "requests_per_second": 1}}
    door = Door(parse_policy({"superusers": ["p"], "quota": quota}))
    copy = msg.Copy(1, "t", "0", AckMode.RAFT, 7, 0, 0, "o", (msg.Piece("0", 0, 1),))
    assert door.ask(copy) is None
    assert door.guard.produce_wait_ms("p") == 0, "requests do not hold up what is under way"
    door.guard.produced("p", 5000)
    assert 4000 < door.guard.produce_wait_ms("p") <= 5000
    door.guard.send("p", msg.Copied(1, 1, 5000))
    assert door.guard.produce_wait_ms("p") <= 5000, "it is charged once"
    door.now += 3_000
    (answer,) = door.ask(produce(1))
    assert 1000 < answer.error.details["retry_ms"] <= 2000


@pytest.mark.parametrize(
    "message",
    [
        msg.Heartbeat(1, "g", "m", ()),
        msg.Settle(1, "g", "m"),
        msg.Leave(1, "g", "m"),
        msg.GetGroup(1, "g"),
    ],
)
def test_whatever_costs_is_held_up_sooner_or_later(message: Message) -> None:
    """Above the quota only a bounded number of a member's heartbeats are admitted."""
    quota = {"p": {"requests_per_second": 20, "produce_bytes_per_second": 10}}
    door = Door(allowing("All", resources=("topic:*", "group:*"), quota=quota))
    let_in = 0
    for _ in range(4_000):
        let_in += door.ask(message) is None
        door.now += 1
    assert 80 <= let_in <= 20 + 4 * 20 + 2 * 20 + 1


def test_a_member_that_has_sent_much_says_all_the_same_that_it_is_alive() -> None:
    quota = {"p": {"produce_bytes_per_second": 10}}
    door = Door(allowing("All", resources=("topic:*", "group:*"), quota=quota))
    assert door.ask(produce(100_000)) is None
    assert door.ask(produce(1))
    assert door.ask(msg.Heartbeat(1, "g", "m", ())) is None


def test_nobody_pays_for_what_another_has_used_up() -> None:
    """A quota for "*" counts separately for each principal."""
    quota = {"*": {"requests_per_second": 1}}
    door = Door(parse_policy({"superusers": ["p", "q"], "quota": quota}))
    fetch = msg.Fetch(1, "orders", "0", 0, 1000, 0)
    found = [door.ask(fetch, who) is None for who in ("p", "p", "q", "q")]
    assert found == [True, False, True, False]


def test_brokers_are_never_held_up() -> None:
    """Brokers have no quota, because a slow broker delays the whole cluster."""
    quota = {"*": {"requests_per_second": 1}}
    door = Door(allowing("ClusterAction", resources=("cluster",), quota=quota))
    assert all(door.ask(msg.Ping(1)) is None for _ in range(100))


def test_what_was_let_in_is_written_down_if_the_policy_says_so() -> None:
    allowed = ("topic:orders", "cluster")
    door = Door(allowing("All", resources=allowed, audit=["Create", "Delete", "Alter"]))
    assert door.ask(produce()) is None
    assert door.ask(msg.DescribeCluster(1)) is None
    assert door.lines == []
    assert door.ask(msg.DeleteTopic(1, "orders")) is None
    assert door.ask(msg.Reassign(2, "orders", "0", ("b1",))) is None
    assert door.ask(msg.DeleteTopic(3, "others"))  # the request is refused
    told = [(one["event"], one["request"], one["resource"]) for one in door.lines]
    assert told == [
        ("allowed", "DeleteTopic", "topic:orders"),
        ("allowed", "Reassign", "cluster"),
        ("refused", "DeleteTopic", "topic:others"),
    ]
    assert door.audit.refused == 1


def test_what_a_quota_holds_up_was_not_let_in() -> None:
    quota = {"p": {"requests_per_second": 1}}
    door = Door(allowing("All", resources=("topic:*",), audit="All", quota=quota))
    assert [bool(door.ask(msg.DeleteTopic(1, f"t{n}"))) for n in range(2)] == [False, True]
    assert [(one["event"], one["operation"]) for one in door.lines] == [
        ("allowed", "Delete"),
        ("refused", "quota"),
    ]


def test_the_audit_log_is_bounded() -> None:
    """A thousand refusals a second produce one line a second, which contains their number."""
    door = Door(Policy())
    for _ in range(3000):
        door.ask(produce())
        door.now += 1
    assert door.audit.refused == 3000
    assert [line.get("left_out", 0) for line in door.lines] == [0, 999, 999]
    assert door.lines[0] == {
        "event": "refused",
        "operation": "Write",
        "principal": "p",
        "request": "Produce",
        "resource": "topic:orders",
        "source": "client-1.producer",
        "time_ms": 1_700_000,
    }


def test_the_audit_log_is_bounded_whatever_names_are_asked_for() -> None:
    """New names do not produce new kinds of lines, which would fill disk and memory."""
    door = Door(Policy())
    for number in range(20_000):
        door.ask(msg.DescribeTopic(1, f"{number}-{'x' * 1_000}"))
    door.now += 1000
    door.ask(produce())
    assert door.audit.refused == 20_001
    assert len(door.lines) == LINES_MAX + 1
    assert max(len(json.dumps(line)) for line in door.lines) < 2 * TEXT_MAX
    # Lines of other principals are still written, and the last line has the number left out.
    assert door.lines[-1]["left_out"] == 20_000 - LINES_MAX
    door.ask(produce(), "q")
    assert door.lines[-1]["principal"] == "q"


def test_what_is_allowed_is_written_down_however_much_it_is() -> None:
    door = Door(allowing("Create", resources=("topic:*",), audit=["Create"]))
    for number in range(2 * LINES_MAX):
        door.ask(msg.CreateTopic(1, f"t{number}", ("0",), 1, AckMode.LEADER, {}, False))
    assert len(door.lines) == 2 * LINES_MAX


def test_a_group_shows_no_topics_that_one_may_not_describe() -> None:
    """A description of a group omits the topics that the principal may not describe."""
    rule = {"principal": "p", "operations": ["Describe"], "resources": ["group:g", "topic:mine*"]}
    door = Door(parse_policy({"rule": [rule], "superusers": ["root"]}))
    assert door.ask(msg.GetGroup(1, "g")) is None
    members = tuple(msg.GroupMember(f"m.{topic}", topic, ("0",)) for topic in ("mine", "theirs"))
    offsets = tuple(msg.GroupOffset(topic, "0", 1, 1, 0) for topic in ("mine2", "theirs", "secret"))
    state = msg.GroupState(1, "g", 5, members, offsets)
    seen = door.guard.send("p", state)
    assert seen == msg.GroupState(1, "g", 5, members[:1], offsets[:1])
    assert door.guard.send("root", state) is state
    assert door.guard.send("nobody", state) == msg.GroupState(1, "g", 5)
