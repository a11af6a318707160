"""Several zkservers: one is active, and its successor continues its work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.controller.state.image import Draft
from pymq.controller.state.transactions import REPEATS_MAX
from pymq.coord import paths
from pymq.coord.memory import MemoryCoordinator
from pymq.core.message import (
    CreateTopic,
    DeleteTopic,
    GetMetadata,
    LeaderAndIsr,
    ListTopics,
    Message,
    Seal,
    SetPartitionState,
)
from pymq.core.metadata.coordination import (
    Check,
    Commit,
    CoordRequest,
    Failed,
    Load,
    Put,
    Resumed,
    Suspended,
    Uncertain,
)
from pymq.core.metadata.nodes import PartitionNode, ProducerNode, encode_node
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import (
    AuthorizationFailed,
    NotController,
    RequestTimeout,
    StoreError,
    StoreFull,
    UnknownTopic,
)
from tests.controller.cluster import SESSION_MS, T0, Cluster, Zk, crashes


def refusal(cluster: Cluster, zk: str) -> NotController:
    answer = cluster.answers[cluster.send(ListTopics, zk)]
    assert isinstance(answer.error, NotController)
    return answer.error


def test_one_is_active_and_the_others_name_it() -> None:
    cluster = Cluster(zks=3)
    assert cluster.active.name == "zk-0"
    assert refusal(cluster, "zk-2").details == {"controller": "zk-0", "endpoint": "tcp://zk-0"}
    zk = cluster.zks["zk-1"].machine
    zk.step("b0", cluster.brokers["b0"].registration(), cluster.now)
    cluster.run()
    peer, answer = cluster.refusals[-1]
    assert (peer, answer.id) == ("b0", 0)
    assert isinstance(answer.error, NotController)


def test_a_standby_takes_over_at_the_next_epoch() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    cluster.crash_zk("zk-0")
    assert cluster.active.name == "zk-1"
    assert cluster.image.controller_epoch == 2
    assert cluster.ask(ListTopics) == ("t",)
    cluster.pass_ms(200)  # brokers learn that they are not registered
    full = cluster.brokers["b0"].last(LeaderAndIsr)
    assert (full.full, full.controller, full.controller_epoch) == (True, "zk-1", 2)
    assert full.incarnation == 1


def test_a_lost_hint_costs_time_only() -> None:
    """K4: after a lost hint the standby zkserver still finds the change, by its own checks of the
    tree.
    """
    cluster = Cluster(zks=2, standby_ms=500)
    standby = cluster.zks["zk-1"]
    cluster.zks["zk-0"].is_up = False
    cluster.zks["zk-0"].coordinator.close()
    standby.coordinator.poll()  # the standby zkserver has not read its hints
    cluster.run()
    assert not cluster.is_active("zk-1")
    cluster.pass_ms(600)
    assert cluster.is_active("zk-1")


def test_every_commit_is_fenced() -> None:
    """K1: the first commit claims the controller epoch, and all others depend on it."""
    cluster = Cluster()
    cluster.topic()
    cluster.write(3)
    cluster.set_state(AckMode.RAFT)
    claim, *rest = cluster.active.commits
    assert rest
    assert not any(isinstance(op, Check) for op in claim.ops)
    for commit in rest:
        fence = (Check(paths.controller_epoch(), 0), Check(paths.controller(), 0))
        assert commit.ops[:2] == fence


def test_a_replaced_controller_can_commit_nothing() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    old = cluster.active
    old.is_stopped = True  # the zkserver is paused; its session ends meanwhile
    cluster.tree.expire(old.coordinator.session)
    cluster.run()
    assert cluster.is_active("zk-1")
    assert cluster.is_active("zk-0")  # the zkserver has not noticed
    before = cluster.tree.entries(paths.topics())
    request = cluster.send(lambda i: CreateTopic(i, "late", ("0",), 1, AckMode.LEADER, {}), "zk-0")
    # The zkserver sends its commit before it learns that the session has ended.
    ready = old.machine.ready(cluster.now)
    assert ready is not None
    for sent in ready.meta:
        old.coordinator.submit(sent)
    old.machine.advance(ready, cluster.now)
    assert cluster.tree.entries(paths.topics()) == before
    old.is_stopped = False
    cluster.run()
    assert not cluster.is_active("zk-0")
    assert isinstance(cluster.answers[request].error, NotController)
    assert refusal(cluster, "zk-0").details["controller"] == "zk-1"


def test_nobody_who_was_cut_off_decides() -> None:
    """K3: from the loss of its connection until its return a zkserver decides nothing."""
    cluster = Cluster(zks=2)
    cluster.topic()
    zk = cluster.active
    before = len(zk.commits)
    zk.coordinator.suspend()
    cluster.run()
    assert not cluster.is_active("zk-0")
    assert refusal(cluster, "zk-0").details["controller"] is None
    cluster.brokers["b0"].is_up = False
    cluster.pass_ms(5 * SESSION_MS)
    assert len(zk.commits) == before
    assert not cluster.brokers["b1"].all(Seal)
    zk.coordinator.resume()
    cluster.run()
    assert cluster.is_active("zk-0")
    assert cluster.ask(ListTopics) == ("t",)


def test_a_session_that_ends_while_cut_off_ends_the_reign() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    roll = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    zk = cluster.zks["zk-0"]
    create = cluster.send(lambda i: CreateTopic(i, "x", ("0",), 1, AckMode.LEADER, {}))
    assert cluster.answers[create].error is None
    zk.coordinator.suspend()
    cluster.tree.expire(zk.coordinator.session)
    cluster.run()
    zk.coordinator.resume()
    cluster.run()
    assert cluster.active.name == "zk-1"
    assert isinstance(cluster.answers[roll].error, NotController)
    cluster.crash_zk("zk-1")
    assert cluster.active.name == "zk-0"
    assert cluster.image.controller_epoch == 3


def test_one_alone_that_loses_its_session_is_elected_again() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.tree.expire(cluster.active.coordinator.session)
    cluster.run()
    assert cluster.active.machine.image.controller_epoch == 2
    cluster.pass_ms(200)
    cluster.set_state(AckMode.RAFT)


def test_requests_wait_for_the_election() -> None:
    cluster = Cluster(brokers=0, zks=0)
    zk = Zk(cluster, "zk-0", cluster.config)
    cluster.zks["zk-0"] = zk
    zk.machine.step("client", ListTopics(7), 0)
    cluster.run()
    assert cluster.answers[7].result == ()


def test_a_tree_that_cannot_be_written_is_said_to_be() -> None:
    cluster = Cluster(brokers=0, zks=0, standby_ms=500)
    zk = Zk(cluster, "zk-0", cluster.config)
    cluster.zks["zk-0"] = zk

    def full(request: CoordRequest) -> bool:
        if isinstance(request, Commit):
            zk.machine.commit_failed(request.tag, StoreFull("full"), cluster.now)
            return False
        return True

    zk.on_submit = full
    zk.machine.step("client", ListTopics(7), 0)
    cluster.run()
    assert isinstance(cluster.answers[7].error, StoreFull)
    zk.on_submit = lambda request: True
    cluster.pass_ms(600)
    assert zk.machine.is_active


# --- conflicts ----------------------------------------------------------------------------------


def meddle(cluster: Cluster) -> None:
    """Change the partition in the tree directly."""
    path = paths.partition(*T0)
    image = cluster.image
    node = image.partition(*T0).node
    changed = PartitionNode(
        node.name, node.index, node.acks, node.replicas, node.next_block, node.epoch + 1
    )
    put = Put(path, encode_node(changed), image.versions[path])
    hand = MemoryCoordinator(cluster.tree, session=f"hand-{cluster.count()}")
    hand.submit(Commit(1, (put,)))
    hand.close()


def test_a_lost_race_is_planned_again_on_what_the_tree_is() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.write(4)
    zk = cluster.active
    left = 2

    def race(request: CoordRequest) -> bool:
        nonlocal left
        if isinstance(request, Commit) and left:
            left -= 1
            meddle(cluster)
        return True

    zk.on_submit = race
    assert cluster.set_state(AckMode.RAFT) is True
    part = cluster.part()
    assert part.node.epoch == 4
    assert part.blocks[0].end == 4
    assert zk.machine.is_active


def test_nothing_is_committed_on_what_is_known_to_be_out_of_date() -> None:
    """No commit is planned on an outdated tree, even if a lost connection is back meanwhile.

    Otherwise a refused commit could count as done if the previous answer was lost.
    """
    cluster = Cluster()
    cluster.topic()
    zk = cluster.active
    commits: list[Commit] = []
    loads: list[Load] = []

    def race(request: CoordRequest) -> bool:
        if isinstance(request, Load):
            loads.append(request)
            return False
        assert isinstance(request, Commit)
        commits.append(request)
        if len(commits) == 1:
            meddle(cluster)
        elif len(commits) == 2:
            zk.machine.decided(Uncertain(request.tag), cluster.now)
            return False
        return True

    zk.on_submit = race
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT, 3))
    assert len(commits) == 1
    with counting() as marks:
        zk.machine.decided(Suspended(), cluster.now)
        zk.machine.decided(Resumed(), cluster.now)
        cluster.run()
    assert not marks["commits.was_done"]
    assert len(commits) == 1
    zk.on_submit = lambda request: True
    for load in loads:
        zk.coordinator.submit(load)
    cluster.run()
    assert cluster.answers[request].result is True
    assert cluster.open().acks is AckMode.RAFT
    assert zk.machine.image.versions == cluster.image.versions


def test_a_race_that_is_lost_again_and_again_is_given_up() -> None:
    cluster = Cluster()
    cluster.topic()
    zk = cluster.active

    def race(request: CoordRequest) -> bool:
        if isinstance(request, Commit):
            meddle(cluster)
        return True

    zk.on_submit = race
    with pytest.raises(RequestTimeout):
        cluster.set_state(AckMode.NONE)
    zk.on_submit = lambda request: True
    assert cluster.set_state(AckMode.NONE) is True


@pytest.mark.parametrize("was_done", [False, True])
def test_a_commit_of_which_nobody_knows_is_looked_up(was_done: bool) -> None:
    """After an uncertain commit the client gets the real result, not the error that the topic
    exists.
    """
    cluster = Cluster()
    zk = cluster.active
    cut = False

    def cut_off(request: CoordRequest) -> bool:
        nonlocal cut
        if not isinstance(request, Commit) or cut:
            return True
        cut = True
        if was_done:
            zk.coordinator.submit(request)
        else:
            zk.machine.decided(Uncertain(request.tag), cluster.now)
        zk.coordinator.suspend()
        return False

    zk.on_submit = cut_off
    request = cluster.send(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {}))
    assert request not in cluster.answers
    zk.coordinator.resume()
    cluster.run()
    assert cluster.answers[request].result is True
    assert len([c for c in zk.commits if len(c.ops) > 4]) == 3  # The commit was submitted twice.
    assert cluster.brokers["b0"].states.keys() == {T0}


def loses_answers(zk: Zk, count: int, *, is_done: bool = True) -> list[Load]:
    """Carry out the next *count* commits of *zk*, or not, without an answer.

    Then return its reads.
    """
    read: list[Load] = []
    left = count

    def submit(request: CoordRequest) -> bool:
        nonlocal left
        if isinstance(request, Load):
            read.append(request)
        elif left:
            left -= 1
            if is_done:
                zk.coordinator.submit(request)
                zk.coordinator.suspend()
                zk.coordinator.resume()
            else:
                zk.machine.decided(Uncertain(request.tag), 0)
            return False
        return True

    zk.on_submit = submit
    return read


@pytest.mark.parametrize("is_done", [False, True])
def test_a_commit_whose_answer_is_lost_costs_no_reading_of_the_tree(is_done: bool) -> None:
    """If the answer to a commit is lost, the zkserver does not read the whole tree again."""
    cluster = Cluster()
    names = tuple(str(index) for index in range(1_000))
    assert cluster.ask(lambda i: CreateTopic(i, "large", names, 3, AckMode.LEADER, {})) is True
    read = loses_answers(cluster.active, 1, is_done=is_done)
    with counting() as marks:
        assert cluster.ask(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {})) is True
        cluster.run()
    assert marks["commits.was_done"] == is_done
    assert marks["commits.was_not_done"] == (not is_done)
    assert {load.root for load in read} <= {paths.controller()}
    assert cluster.active.machine.image.versions == cluster.image.versions
    assert cluster.brokers["b0"].states[T0].leader is not None
    assert cluster.active.machine.journal.counts["topic_created"] == 2


def test_the_tree_tells_what_became_of_a_commit_that_is_never_answered() -> None:
    """The tree shows whether an unanswered commit was done, so the zkserver does not retry it
    forever.
    """
    cluster = Cluster()
    read = loses_answers(cluster.active, 1 + REPEATS_MAX)
    with counting() as marks:
        assert cluster.ask(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {})) is True
    assert marks["commits.looked_up"] == 1
    assert [load.root for load in read if load.root == "/"] == ["/"]
    assert cluster.active.machine.image.versions == cluster.image.versions


def test_a_commit_that_is_refused_when_it_is_repeated_may_have_been_done_before() -> None:
    """If a repeated commit is refused, the first one may have been done, so the tree decides."""
    cluster = Cluster()
    zk = cluster.active
    read = loses_answers(zk, 1)
    lose = zk.on_submit
    commits = 0

    def submit(request: CoordRequest) -> bool:
        nonlocal commits
        commits += isinstance(request, Commit)
        if isinstance(request, Commit) and commits == 2:
            zk.machine.decided(Failed(request.tag, StoreError("no")), 0)
            return False
        return lose(request)

    zk.on_submit = submit
    assert cluster.ask(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {})) is True
    assert "/" in [load.root for load in read]
    assert zk.machine.image.versions == cluster.image.versions


def test_a_commit_is_not_repeated_by_a_zkserver_that_another_has_replaced() -> None:
    """The refusal tells a zkserver that it was replaced, so it need not read the tree."""
    cluster = Cluster(zks=2)
    old = next(zk for zk in cluster.zks.values() if zk.machine.is_active)
    other = next(zk for zk in cluster.zks.values() if zk is not old)
    read: list[str] = []
    repeated: list[Commit] = []

    def submit(request: CoordRequest) -> bool:
        if isinstance(request, Load):
            read.append(request.root)
            return True
        assert isinstance(request, Commit)
        repeated.append(request)
        if len(repeated) > 1:
            return True
        old.coordinator.suspend()
        old.machine.decided(Uncertain(request.tag), 0)
        return False

    old.on_submit = submit
    request = cluster.send(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {}))
    cluster.tree.expire(old.coordinator.session)
    cluster.pass_ms(4 * SESSION_MS)
    assert other.machine.is_active
    read.clear()
    old.coordinator.resume()
    cluster.run()
    assert len(repeated) == 3
    assert not old.machine.is_active
    assert not cluster.image.topics
    assert isinstance(cluster.answers[request].error, NotController)
    assert "/" not in read


def test_a_claim_of_which_nobody_knows_is_looked_up() -> None:
    cluster = Cluster(brokers=0, zks=0)
    zk = cluster.zks["zk-0"] = Zk(cluster, "zk-0", cluster.config)

    def cut_off(request: CoordRequest) -> bool:
        if isinstance(request, Commit):
            zk.coordinator.submit(request)
            zk.coordinator.suspend()
            return False
        return True

    zk.on_submit = cut_off
    cluster.run()
    zk.on_submit = lambda request: True
    zk.coordinator.resume()
    cluster.run()
    assert zk.machine.is_active
    assert cluster.image.controller_epoch == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_claim_that_is_made_in_the_next_session(times: int) -> None:
    """The session ends before its claim is sent, and the zkserver does not know that.

    The new session owns the claim.

    No other zkserver could be elected as long as that session lasts. Simulated: seed 10969 of
    --profile all --seconds 4.
    """
    cluster = Cluster(brokers=0, zks=0)
    zk = cluster.zks["zk-0"] = Zk(cluster, "zk-0", cluster.config)

    def lose_session(request: CoordRequest) -> bool:
        if isinstance(request, Commit):
            zk.on_submit = lambda request: True
            for _ in range(times):
                cluster.tree.expire(zk.coordinator.session)
        return True

    zk.on_submit = lose_session
    cluster.run()
    assert zk.machine.is_active
    assert cluster.image.controller_epoch == 1


@pytest.mark.parametrize("refused", [Load, Commit])
def test_a_zkserver_that_is_refused_says_why_and_tries_again(
    refused: type[Load] | type[Commit],
) -> None:
    """If the coordinator refuses a zkserver, for example by ACLs, the zkserver logs the reason and
    retries.
    """
    cluster = Cluster(brokers=0, zks=0)
    zk = cluster.zks["zk-0"] = Zk(cluster, "zk-0", cluster.config)
    why = AuthorizationFailed("not yours")

    def refuse(request: CoordRequest) -> bool:
        if isinstance(request, refused):
            zk.machine.decided(Failed(request.tag, why), cluster.now)
            return False
        return True

    zk.on_submit = refuse
    cluster.run()
    assert cluster.answers[cluster.send(ListTopics, "zk-0")].error is why
    zk.on_submit = lambda request: True
    cluster.pass_ms(3_000)
    assert zk.machine.is_active
    zk.on_submit = refuse
    if refused is Commit:
        with pytest.raises(AuthorizationFailed):
            cluster.topic(AckMode.UNSET)
        zk.on_submit = lambda request: True
        cluster.topic(AckMode.UNSET)
    else:
        # After an uncertain commit the zkserver reads the tree again, and retries until it is
        # allowed to.
        zk.machine.decided(Suspended(), cluster.now)
        zk.machine.decided(Resumed(), cluster.now)
        cluster.run()
        assert zk.machine.is_active
        zk.on_submit = lambda request: True
        cluster.pass_ms(3_000)
        cluster.topic(AckMode.UNSET)


def test_a_large_change_takes_no_other_down_with_it() -> None:
    """A large change fails alone: it does not share a commit with small changes, because a backend
    refuses a commit as a whole.
    """
    cluster = Cluster(brokers=0)
    zk = cluster.active
    commits = zk.machine._commits
    done: list[int] = []

    def change(number: int, nodes: int) -> None:
        def plan(draft: Draft) -> None:
            for node in range(nodes):
                name = f"{'x' * 240}-{number}-{node}"
                draft.create(paths.producer(name), ProducerNode(name, 0))

        scope = TopicPartition("t", str(number))
        commits.do(plan, scope=scope, done=lambda now: done.append(number))

    before = len(zk.commits)
    for number in range(6):
        change(number, 900 if number == 3 else 1)
    cluster.pass_ms(100)
    zk.machine.tick(cluster.now)
    cluster.run()
    assert done == [0, 1, 2, 3, 4, 5]
    assert [len(commit.ops) - 2 for commit in zk.commits[before:]] == [3, 900, 2]


# --- a take-over at every point -----------------------------------------------------------------


def crash_at_every_point(
    start: Callable[[Cluster], Callable[[int], Message]],
    check: Callable[[Cluster], None],
) -> int:
    """Crash the active zkserver before each of its effects in turn; returns how many there were."""
    points = 0
    for cluster, make, request in crashes(start):
        if cluster.zks["zk-0"].is_up:
            assert request in cluster.answers
        else:
            points += 1
            cluster.crash_zk("zk-0")
            cluster.pass_ms(4 * SESSION_MS)  # brokers register; blocks that were sealed are rolled
            cluster.ask(make)
            cluster.pass_ms(SESSION_MS)
        check(cluster)
    return points


@pytest.mark.parametrize("before", [AckMode.LEADER, AckMode.RAFT])
def test_a_roll_survives_its_zkserver(before: AckMode) -> None:
    """The zkserver crashes before Seal, after Sealed, after the commit, or before LeaderAndIsr: no
    offset is lost.
    """
    after = AckMode.RAFT if before is AckMode.LEADER else AckMode.LEADER

    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic(before)
        cluster.write(5)
        return lambda i: SetPartitionState(i, *T0, after)

    def check(cluster: Cluster) -> None:
        part = cluster.part()
        sealed = [block for block in part.blocks.values() if block.end is not None]
        assert (sealed[0].start, sealed[0].end, sealed[0].acks) == (0, 5, before)
        assert part.open_block.start == 5
        assert part.node.acks is part.open_block.acks is after
        assert len(part.open_block.replicas) == 3
        state = cluster.image.topics["t"].state("0")
        for broker in part.hosts:
            assert cluster.brokers[broker].states[T0] == state
            assert not cluster.brokers[broker].unrolled

    assert crash_at_every_point(start, check) >= 4


def test_a_deletion_survives_its_zkserver() -> None:
    """Once the deletion is committed, every broker is told to remove the topic, by any zkserver."""

    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic()
        return lambda i: DeleteTopic(i, "t")

    def check(cluster: Cluster) -> None:
        assert not cluster.image.topics
        assert not cluster.image.deleted
        assert not any(broker.states for broker in cluster.brokers.values())

    point = 0
    while True:
        point += 1
        cluster = Cluster(zks=2)
        make = start(cluster)
        zk = cluster.zks["zk-0"]
        zk.crash_before = zk.effects + point
        cluster.send(make)
        if zk.is_up:
            check(cluster)
            break
        cluster.crash_zk("zk-0")
        cluster.pass_ms(SESSION_MS)
        try:
            cluster.ask(make)
        except UnknownTopic:
            pass
        check(cluster)
    assert point > 4


def test_a_take_over_of_a_partition_survives_its_zkserver() -> None:
    """The leader dies, and then, at any point, the zkserver that replaces it."""
    point = 0
    while True:
        point += 1
        cluster = Cluster(brokers=4, zks=2)
        cluster.topic()
        leader, (one, two) = cluster.leader(), cluster.followers()
        cluster.write(9, leader)
        cluster.write(7, one)
        cluster.write(6, two)
        zk = cluster.zks["zk-0"]
        zk.crash_before = zk.effects + point
        cluster.kill(leader)
        if not zk.is_up:
            cluster.crash_zk("zk-0")
            cluster.pass_ms(4 * SESSION_MS)
        part = cluster.part()
        assert part.blocks[0].end == 7
        assert part.blocks[0].in_sync == (one,)
        assert part.open_block.start == 7
        assert leader not in part.open_block.replicas
        if zk.is_up:
            break
    assert point > 4


def test_nobody_is_dead_before_a_session_has_passed() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    leader = cluster.leader()
    cluster.crash_zk("zk-0")
    for name in cluster.followers():
        cluster.register(name)
    found = cluster.ask(lambda i: GetMetadata(i, "t"))
    # the zkserver does not know whether the leader is alive
    assert found.partitions[0].leader is None
    assert not cluster.brokers[cluster.followers()[0]].all(Seal)
    cluster.register(leader)
    found = cluster.ask(lambda i: GetMetadata(i, "t"))
    assert found.partitions[0].leader == leader
    cluster.pass_ms(3 * SESSION_MS)
    assert cluster.part().node.epoch == 1


def test_what_needs_brokers_waits_for_them_after_a_take_over() -> None:
    cluster = Cluster(zks=2)
    cluster.crash_zk("zk-0")
    request = cluster.send(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {}))
    assert request not in cluster.answers
    cluster.pass_ms(100)
    assert cluster.answers[request].result is True
