"""Reconciled groups, heartbeat by heartbeat: what KIP-848 promises to members."""

from __future__ import annotations

from random import Random

import pytest

from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.coordinator import SESSION_MS
from pymq.core.group.kafka.reconciled.group import JOIN, LEAVE, LEAVE_FOR_NOW
from pymq.core.message import (
    BEGIN,
    BeatClassic,
    BeatReconciled,
    ClassicDone,
    ClassicOffset,
    CommitClassic,
    DescribeReconciled,
    Indexes,
    Join,
    JoinClassic,
    JoinedClassic,
    Message,
    Reconciled,
    ReconciledState,
)
from pymq.errors import InvalidRequest, NotLeader
from tests.core.group.test_coordinator import Host

REBALANCE_MS = 10_000
A, B = "a" * 32, "b" * 32  # ids of topics
NAMES = {A: "orders", B: "bills"}
Part = tuple[str, int]


def parts(found: Indexes) -> set[Part]:
    return {(topic, index) for topic, each in found for index in each}


def indexes(found: set[Part]) -> Indexes:
    topics = sorted({topic for topic, _ in found})
    return tuple((t, tuple(sorted(i for topic, i in found if topic == t))) for t in topics)


class Client:
    """A member that does as KIP-848 wants: it gives up at once what it is no longer assigned."""

    rebalance_ms = REBALANCE_MS

    def __init__(self, host: Host, name: str, topics: dict[str, int], **more: str) -> None:
        self.host, self.name, self.more = host, name, more
        self.topics = topics
        self.epoch = JOIN
        self.uses: set[Part] = set()
        self.last: Reconciled | None = None

    def send(
        self, *, owned: bool = True, topics: bool = True, epoch: int | None = None
    ) -> Reconciled:
        """Send a heartbeat; returns the answer, which the member has not seen yet."""
        beat = BeatReconciled(
            self.host.id(),
            "g",
            self.name,
            self.more.get("instance"),
            self.epoch if epoch is None else epoch,
            rebalance_ms=self.rebalance_ms,
            topics=tuple((NAMES[t], t, n) for t, n in self.topics.items()) if topics else None,
            assignor=self.more.get("assignor"),
            owned=indexes(self.uses) if owned and self.epoch != JOIN else None,
        )
        self.host.coordinator.step(self.name, beat, self.host.now)
        (answer,) = [m for m in self.host.take(self.name) if isinstance(m, Reconciled)]
        return answer

    def take(self, answer: Reconciled) -> None:
        """Do what an answer says."""
        self.last = answer
        if answer.code in (ReconciledCode.FENCED_MEMBER_EPOCH, ReconciledCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.uses = JOIN, set()
            return
        assert not answer.code, answer
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.uses = parts(answer.assignment)

    def beat(self, **how: bool) -> Reconciled:
        answer = self.send(**how)
        self.take(answer)
        return answer


@pytest.fixture
def host() -> Host:
    return Host()


def describe(host: Host) -> ReconciledState:
    host.coordinator.step("tool", DescribeReconciled(host.id(), "g"), host.now)
    (found,) = [m for m in host.take("tool") if isinstance(m, ReconciledState)]
    return found


def settle(*clients: Client) -> None:
    """Let all members send heartbeats until the group is stable."""
    for _ in range(6):
        for client in clients:
            client.beat()
    assert describe(clients[0].host).state == "Stable"


def test_the_first_member_gets_all_partitions_with_its_first_answer(host: Host) -> None:
    a = Client(host, "a", {A: 3, B: 1})
    answer = a.beat()
    assert (answer.epoch, answer.interval_ms) == (1, 2_000)
    assert a.uses == {(A, 0), (A, 1), (A, 2), (B, 0)}
    assert a.beat(owned=False, topics=False).assignment is None  # nothing has changed
    assert describe(host).state == "Stable"


def test_a_partition_is_given_up_before_another_member_gets_it(host: Host) -> None:
    a, b = Client(host, "a", {A: 4}), Client(host, "b", {A: 4})
    a.beat()
    b.beat()
    assert b.uses == set()  # the other member uses all of them
    assert b.epoch == 2
    answer = a.send(owned=False)  # the member learns that it has to give two up
    assert answer.assignment is not None
    assert len(parts(answer.assignment)) == 2
    assert answer.epoch == 1  # and keeps its epoch until it has
    b.beat()
    assert b.uses == set()
    assert describe(host).state == "Reconciling"
    a.take(answer)
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert len(a.uses) == len(b.uses) == 2
    assert not a.uses & b.uses
    assert describe(host).state == "Stable"


def test_a_member_that_does_not_give_up_in_time_is_removed(host: Host) -> None:
    a, b = Client(host, "a", {A: 4}), Client(host, "b", {A: 4})
    a.beat()
    b.beat()
    a.send(owned=False)
    for _ in range(12):
        host.at(host.now + 1_000)
        a.send(owned=False, topics=False)
        b.beat()
    assert b.uses == {(A, index) for index in range(4)}
    assert a.send().code == ReconciledCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_after_its_session(host: Host) -> None:
    a, b = Client(host, "a", {A: 2}), Client(host, "b", {A: 2})
    a.beat()
    b.beat()
    settle(a, b)
    for _ in range(SESSION_MS // 1_000 + 2):
        host.at(host.now + 1_000)
        b.beat()
    assert b.uses == {(A, 0), (A, 1)}
    a.beat()
    assert a.epoch == JOIN  # it was fenced, and uses nothing


def test_a_member_that_leaves_gives_its_partitions_to_the_others(host: Host) -> None:
    a, b = Client(host, "a", {A: 2}), Client(host, "b", {A: 2})
    a.beat()
    b.beat()
    settle(a, b)
    assert a.send(epoch=LEAVE).epoch == LEAVE
    b.beat()
    assert b.uses == {(A, 0), (A, 1)}
    assert b.send(epoch=LEAVE).code == 0
    assert describe(host).state == ""


def test_a_static_member_that_comes_back_keeps_its_partitions(host: Host) -> None:
    a, b = Client(host, "a", {A: 2}, instance="one"), Client(host, "b", {A: 2})
    a.beat()
    b.beat()
    settle(a, b)
    held = set(a.uses)
    a.send(epoch=LEAVE_FOR_NOW)
    b.beat()
    assert b.uses == {(A, 0), (A, 1)} - held
    again = Client(host, "a2", {A: 2}, instance="one")
    again.beat()
    assert again.uses == held
    assert describe(host).state == "Stable"
    twin = Client(host, "a3", {A: 2}, instance="one")
    assert twin.send().code == ReconciledCode.UNRELEASED_INSTANCE_ID
    assert a.send().code == ReconciledCode.UNKNOWN_MEMBER_ID


def test_more_partitions_and_other_subscriptions_change_the_assignment(host: Host) -> None:
    a, b = Client(host, "a", {A: 1}), Client(host, "b", {A: 1})
    a.beat()
    b.beat()
    settle(a, b)
    a.topics = {A: 3}
    settle(a, b)
    assert len(a.uses | b.uses) == 3
    b.topics = {B: 2}
    settle(a, b)
    assert a.uses == {(A, 0), (A, 1), (A, 2)}
    assert b.uses == {(B, 0), (B, 1)}


def test_spare_members_get_nothing(host: Host) -> None:
    clients = [Client(host, name, {A: 2}) for name in "abcd"]
    for client in clients:
        client.beat()
    settle(*clients)
    assert sorted(len(client.uses) for client in clients) == [0, 0, 1, 1]


def test_the_assignor_that_most_members_want_is_used(host: Host) -> None:
    clients = [Client(host, name, {A: 4}, assignor="range") for name in "ab"]
    for client in clients:
        client.beat()
    settle(*clients)
    assert describe(host).assignor == "range"
    assert clients[0].uses == {(A, 0), (A, 1)}
    wrong = Client(host, "c", {A: 4}, assignor="sticky")
    assert wrong.send().code == ReconciledCode.UNSUPPORTED_ASSIGNOR


def test_the_former_epoch_is_accepted_once_the_answer_was_lost(host: Host) -> None:
    a = Client(host, "a", {A: 4})
    a.beat()
    b = Client(host, "b", {A: 4})
    b.beat()
    a.beat()
    a.send()  # the answer, with the new epoch, is lost
    answer = a.send()
    assert (answer.code, answer.epoch) == (0, 2)
    assert answer.assignment is not None
    stranger = Client(host, "a", {A: 4})
    stranger.epoch = 7
    assert stranger.send().code == ReconciledCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    "change",
    [
        {"rebalance_ms": -1},
        {"topics": None},
        {"owned": ((A, (0,)),)},
        {"epoch": -3},
        {"epoch": -2},
        {"member": ""},
        {"rebalance_ms": 1 << 40},
    ],
)
def test_a_malformed_heartbeat_is_refused(host: Host, change: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "member": "a",
        "instance": None,
        "epoch": JOIN,
        "rebalance_ms": 1_000,
        "topics": (),
        **change,
    }
    beat = BeatReconciled(host.id(), "g", **fields)  # type: ignore[arg-type]  # as a client may send it
    host.coordinator.step("a", beat, host.now)
    (answer,) = host.take("a")
    assert isinstance(answer, Reconciled)
    assert answer.code == ReconciledCode.INVALID_REQUEST
    assert answer.why


def test_numbers_out_of_their_range_are_refused(host: Host) -> None:
    beat = BeatReconciled(host.id(), "g", "a", None, JOIN, topics=(("t", A, -1),))
    host.coordinator.step("a", beat, host.now)
    (answer,) = host.take("a")
    assert isinstance(answer, Reconciled)
    assert isinstance(answer.error, InvalidRequest)


def test_only_a_member_of_the_current_epoch_commits(host: Host) -> None:
    a = Client(host, "a", {A: 1})
    a.beat()

    def commit(member: str, epoch: int) -> int:
        offsets = (ClassicOffset("orders", "0", 5),)
        host.coordinator.step(
            "a", CommitClassic(host.id(), "g", member, None, epoch, offsets), host.now
        )
        host.settle_all()
        (done,) = [m for m in host.take("a") if isinstance(m, ClassicDone)]
        return done.codes[0]

    assert commit("a", a.epoch) == 0
    assert commit("a", a.epoch + 1) == ReconciledCode.STALE_MEMBER_EPOCH
    assert commit("b", a.epoch) == ReconciledCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) == ReconciledCode.UNKNOWN_MEMBER_ID


def ask(host: Host, message: Message) -> Message:
    host.coordinator.step("x", message, host.now)  # type: ignore[arg-type]  # any request
    (answer,) = host.take("x")
    return answer


def test_a_group_has_members_of_one_kind(host: Host) -> None:
    a = Client(host, "a", {A: 1})
    a.beat()
    classic = JoinClassic(
        host.id(), "g", "", "c", None, "c", "h", "consumer", (("range", b""),), 10_000, 10_000
    )
    refused = ask(host, classic)
    assert isinstance(refused, JoinedClassic)
    assert refused.code == ReconciledCode.INCONSISTENT_GROUP_PROTOCOL
    own = ask(host, Join(host.id(), "g", "m", "orders", ("0",), "sticky", 10_000, 10_000, 0, BEGIN))
    assert isinstance(own.error, InvalidRequest)  # type: ignore[union-attr]  # an answer
    assert host.coordinator.kinds() == (("g", "reconciled", "Stable"),)
    a.send(epoch=LEAVE)
    assert isinstance(ask(host, classic), JoinedClassic)
    a.epoch = JOIN
    assert a.send().code == ReconciledCode.INCONSISTENT_GROUP_PROTOCOL
    beat = BeatClassic(host.id(), "g", "c", None, 1)
    assert isinstance(ask(host, beat), ClassicDone)


def test_a_new_coordinator_fences_all_members(host: Host) -> None:
    a = Client(host, "a", {A: 1})
    a.beat()
    host.coordinator.resign(NotLeader("moved", leader=None), host.now)
    a.beat()
    assert a.epoch == JOIN


@pytest.mark.parametrize("seed", range(60))
def test_no_partition_ever_has_two_users(seed: int) -> None:
    """Members join, leave, die, and change what they want; answers get lost. At no moment do two
    living members use a partition, and in the end all partitions are in use.
    """
    rng, host = Random(seed), Host()
    living: list[Client] = []
    counts = {A: rng.randrange(1, 6), B: rng.randrange(1, 4)}
    for number in range(200):
        host.at(host.now + rng.choice((0, 1, 500)))
        dice = rng.random()
        if dice < 0.06 and len(living) < 6:
            wanted = {t: counts[t] for t in rng.sample([A, B], rng.choice((1, 2)))}
            living.append(Client(host, f"m{number}", wanted))
            living[-1].rebalance_ms = SESSION_MS  # nobody is removed for lost answers
        elif dice < 0.08 and living:
            gone = living.pop(rng.randrange(len(living)))
            if rng.random() < 0.5 and gone.epoch != JOIN:
                gone.send(epoch=LEAVE)
        elif dice < 0.1:
            counts[rng.choice((A, B))] += 1
            for client in living:
                client.topics = {t: counts[t] for t in client.topics}
        elif living:
            client = rng.choice(living)
            answer = client.send(
                owned=rng.random() < 0.7, topics=rng.random() < 0.5 or not client.epoch
            )
            if rng.random() < 0.85:
                client.take(answer)
        used = [part for client in living for part in client.uses]
        assert len(used) == len(set(used)), f"step {number}"
    if not living:
        return
    for _ in range(SESSION_MS // 1_000 + 5):
        host.at(host.now + 1_000)
        for client in living:
            client.beat()
    for _ in range(6):
        for client in living:
            client.beat()
    wanted_parts = {(t, i) for client in living for t in client.topics for i in range(counts[t])}
    assert {part for client in living for part in client.uses} == wanted_parts
    assert describe(host).state == "Stable"
