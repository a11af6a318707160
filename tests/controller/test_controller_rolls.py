"""Rolls and take-overs: the end of the block, the next leader, and the leaders' reports."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import attrs
import pytest

from pymq.controller.state.image import Image
from pymq.core.message import (
    AlterIsr,
    AlterTopic,
    BecomeLeader,
    BlockSizes,
    DescribeCluster,
    LeaderAndIsr,
    Locate,
    Progress,
    RollWanted,
    Seal,
    Sealed,
    SetPartitionState,
    Subscribe,
)
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NoBrokers, NotLeader, StoreError, StoreFull
from tests.controller.cluster import SESSION_MS, T0, Cluster


def led(acks: AckMode = AckMode.LEADER, **config: int) -> Cluster:
    cluster = Cluster(**config)
    cluster.topic(acks)
    cluster.write(5)
    return cluster


# --- planned ------------------------------------------------------------------------------------


def test_only_the_leader_of_a_fetch_block_is_asked() -> None:
    cluster = led()
    cluster.to_active(cluster.leader(), RollWanted(*T0, 0, 1, "size"))
    for name in cluster.followers():
        assert not cluster.brokers[name].all(Seal)
    part = cluster.part()
    assert part.blocks[0].end == 5
    assert part.blocks[0].size == 50
    assert part.open_block.replicas == part.blocks[0].replicas
    assert part.open_block.leader == part.blocks[0].leader
    cluster.to_active(cluster.leader(), RollWanted(*T0, 0, 1, "size"))  # this report is late
    assert list(cluster.part().blocks) == [0, 1]


def test_the_holders_are_those_that_the_leader_names() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.brokers[leader].holders[T0] = (leader, one)
    cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    part = cluster.part()
    assert set(part.blocks[0].in_sync) == {leader, one}
    assert part.replicas[0, one].end == 5
    assert (part.replicas[0, two].end, part.replicas[0, two].in_sync) == (0, False)
    assert set(part.open_block.in_sync) == {leader, one, two}


def test_the_epoch_is_beyond_whatever_the_leader_was_at() -> None:
    cluster = led(AckMode.RAFT)
    cluster.brokers[cluster.leader()].epochs[T0] = 9
    cluster.set_state(AckMode.LEADER)
    assert cluster.part().node.epoch == cluster.open().epoch == 10


def test_a_leader_that_is_elected_meanwhile_is_asked() -> None:
    cluster = led(AckMode.RAFT)
    one = cluster.followers()[0]
    old = cluster.brokers[cluster.leader()]
    old.seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.LEADER))
    cluster.write(6, one)
    cluster.to_active(one, BecomeLeader(*T0, 0, 4, one))
    assert cluster.answers[request].result is True
    assert cluster.brokers[one].last(Seal).epoch == 5
    part = cluster.part()
    assert (part.blocks[0].end, part.open_block.leader) == (6, one)
    assert part.node.epoch == 5


def test_who_cannot_seal_says_so() -> None:
    cluster = led()
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    seal = leader.last(Seal)
    not_now = Sealed(*T0, 0, seal.epoch, leader.name, error=NotLeader("not yet"))
    cluster.to_active(leader.name, not_now)
    assert request not in cluster.answers
    full = Sealed(*T0, 0, seal.epoch, leader.name, error=StoreFull("full"))
    cluster.to_active(leader.name, full)
    assert isinstance(cluster.answers[request].error, StoreFull)
    assert cluster.open().number == 0
    leader.seals = True
    assert cluster.set_state(AckMode.RAFT) is True


def test_a_leader_whose_disk_broke_is_taken_over() -> None:
    cluster = led()
    leader = cluster.brokers[cluster.leader()]
    one, two = cluster.followers()
    leader.seals = False
    cluster.to_active(leader.name, RollWanted(*T0, 0, 1, "size"))
    for _ in range(2):
        seal = leader.last(Seal)
        broken = Sealed(*T0, 0, seal.epoch, leader.name, error=StoreError("broken"))
        cluster.to_active(leader.name, broken)
    part = cluster.part()
    assert part.blocks[0].end == 5
    assert set(part.blocks[0].in_sync) == {one, two}
    assert part.open_block.leader in (one, two)


def test_a_trouble_of_a_raft_follower_is_no_reason_to_give_up() -> None:
    cluster = led(AckMode.RAFT)
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.LEADER))
    seal, one = leader.last(Seal), cluster.followers()[0]
    cluster.to_active(one, Sealed(*T0, 0, seal.epoch, one, error=StoreError("broken")))
    assert request not in cluster.answers
    leader.seals = True
    cluster.pass_ms(1_000)
    assert cluster.answers[request].result is True


def test_a_block_that_was_sealed_for_somebody_else_is_rolled() -> None:
    cluster = led()
    leader = cluster.leader()
    cluster.to_active(leader, Sealed(*T0, 0, 2, leader, 5))  # an answer without a request
    assert cluster.part().blocks[0].end == 5
    assert cluster.open().number == 1


def test_a_full_coordinator_leaves_the_roll_going_on() -> None:
    cluster = led()
    zk = cluster.active

    commits: list[object] = []

    def full(request: object) -> bool:
        commits.append(request)
        if len(commits) == 1:
            return True  # the intention is committed
        zk.machine.commit_failed(getattr(request, "tag", 0), StoreFull("full"), cluster.now)
        return False

    zk.on_submit = full
    with pytest.raises(StoreFull):
        cluster.set_state(AckMode.RAFT)
    zk.on_submit = lambda request: True
    cluster.pass_ms(5_000)
    # The epoch is not the requested one, but the block is sealed, and producers wait for the next.
    assert cluster.open().number == 1
    assert cluster.part().node.acks is AckMode.LEADER
    assert cluster.part().node.wanted is None


def test_an_answer_to_an_earlier_roll_does_not_end_this_one() -> None:
    """The answer belongs to an earlier roll; since then the block has got more records."""
    cluster = led()
    leader = cluster.leader()
    cluster.brokers[leader].seals = False
    cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    asked = cluster.brokers[leader].last(Seal)
    late = Sealed(*T0, 0, asked.epoch - 1, leader, 3, holders=(leader,))
    cluster.to_active(leader, late)
    assert cluster.open().number == 0
    cluster.to_active(leader, attrs.evolve(late, epoch=asked.epoch, end=5))
    assert cluster.part().blocks[0].end == 5


# --- take-overs ---------------------------------------------------------------------------------


def test_the_longest_copy_is_the_end() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(9, leader)
    cluster.write(8, one)
    cluster.write(7, two)
    cluster.kill(leader)
    part = cluster.part()
    assert cluster.brokers[two].last(Seal).takeover
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (8, (one,))
    assert part.blocks[0].leader == part.open_block.leader == one
    assert set(part.open_block.replicas) == {one, two}
    assert not part.blocks[0].is_unclean
    # The old leader returns, learns the block's end, and becomes a replica again.
    broker = cluster.restart(leader)
    assert broker.last(LeaderAndIsr).partitions[0].blocks[0].end == 8
    assert set(cluster.open().replicas) == {leader, one, two}


def test_those_that_do_not_answer_are_waited_for_only_so_long() -> None:
    cluster = led(takeover_ms=700)
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.brokers[two].seals = False
    cluster.kill(leader)
    assert cluster.open().number == 0
    cluster.pass_ms(800)
    assert cluster.open().number == 1
    assert cluster.part().blocks[0].in_sync == (one,)
    assert set(cluster.open().replicas) == {one, two}


def test_a_clock_that_jumps_does_not_end_the_wait() -> None:
    """A jump of the clock must not end the wait, or a shorter copy would determine the end."""
    cluster = led(takeover_ms=2_000)
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(7, one)
    cluster.write(9, two)
    cluster.brokers[two].seals = False
    cluster.kill(leader)
    cluster.pass_ms(60_000, step=60_000)
    assert cluster.open().number == 0
    cluster.brokers[two].seals = True
    cluster.pass_ms(1_500)  # the request is repeated meanwhile
    assert cluster.part().blocks[0].end == 9
    assert set(cluster.open().replicas) == {one, two}


def test_whoever_may_have_all_is_waited_for_while_the_zkserver_is_new() -> None:
    """A new zkserver declares no broker dead before it has listened for a session, whatever its
    clock does.
    """
    cluster = Cluster(brokers=3, zks=2, takeover_ms=100)
    cluster.topic()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(7, one)
    cluster.write(9, two)
    cluster.crash_zk("zk-0")
    cluster.brokers[two].is_up = False
    cluster.register(one)
    cluster.restart(leader, "another disk")
    cluster.pass_ms(60_000, step=60_000)
    assert cluster.open().number == 0
    cluster.brokers[two].is_up = True
    cluster.register(two)
    cluster.pass_ms(SESSION_MS)
    assert cluster.part().blocks[0].end == 9


def test_only_those_in_sync_are_enough() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, one)))
    cluster.write(3, two)
    cluster.brokers[one].is_up = False
    cluster.kill(leader)
    cluster.pass_ms(20_000)
    assert cluster.open().number == 0
    assert not cluster.brokers[two].all(Seal)
    # the restarted replica leaves the set, since it may have lost its tail: only the old leader is
    # left
    cluster.restart(one)
    cluster.pass_ms(5_000)
    assert cluster.open().number == 0
    cluster.write(4, leader)
    cluster.restart(leader)
    part = cluster.part()
    assert part.blocks[0].end == 5
    assert not part.blocks[0].is_unclean


def test_an_unclean_end_is_taken_only_where_it_is_allowed() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader,)))
    cluster.write(3, one)
    cluster.write(4, two)
    cluster.kill(leader)
    cluster.pass_ms(10_000)
    assert cluster.open().number == 0
    cluster.ask(lambda i: AlterTopic(i, "t", {"unclean_election": True}))
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (4, (two,))
    assert part.blocks[0].is_unclean
    assert cluster.active.machine.unclean_elections == 1
    assert part.open_block.leader == two


def test_a_leader_that_comes_back_during_its_take_over_is_asked_too() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(9, leader)
    for name in (one, two):
        cluster.brokers[name].seals = False
    cluster.kill(leader)
    cluster.brokers[leader].is_up = True
    cluster.pass_ms(200)  # the broker has the same incarnation: it was only cut off
    assert cluster.brokers[leader].last(Seal).takeover
    for name in (one, two):
        cluster.brokers[name].seals = True
    cluster.pass_ms(3_000)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (9, (leader,))
    assert part.open_block.leader == leader


def test_the_in_sync_set_does_not_change_during_a_take_over() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    for name in (one, two):
        cluster.brokers[name].seals = False
    cluster.kill(leader)
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader,)))
    assert set(cluster.open().in_sync) == {leader, one, two}


def test_a_planned_roll_becomes_a_take_over_when_the_leader_dies() -> None:
    cluster = led()
    leader = cluster.leader()
    cluster.brokers[leader].seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    cluster.kill(leader)
    assert cluster.answers[request].result is True
    part = cluster.part()
    assert part.node.acks is AckMode.RAFT
    assert part.blocks[0].end == 5
    assert leader not in part.open_block.replicas


def test_a_thousand_partitions_are_taken_over_in_a_few_commits() -> None:
    cluster = Cluster()
    cluster.topic(replicas=2, partitions=300)
    names = [TopicPartition("t", str(index)) for index in range(300)]
    for name in names:
        cluster.write(2, name=name)
    led_by = [
        name
        for name in names
        if cluster.active.machine.image.partition(*name).open_block.leader == "b0"
    ]
    before = len(cluster.active.commits)
    cluster.kill("b0")
    image = cluster.image
    assert len(led_by) == 100
    assert all(image.partition(*name).blocks[0].end == 2 for name in led_by)
    assert len(cluster.active.commits) - before < 10


# --- AlterIsr, BecomeLeader, Progress -----------------------------------------------------------


def test_the_in_sync_set_shrinks_and_grows() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two)))
    assert set(cluster.open().in_sync) == {leader, two}
    for name in (leader, one, two):
        assert set(cluster.brokers[name].states[T0].blocks[-1].in_sync) == {leader, two}
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two, one)))
    assert set(cluster.open().in_sync) == {leader, one, two}


def test_a_wish_that_is_not_granted_is_answered_with_what_is() -> None:
    """A leader whose request is refused gets the current state, so that it does not keep an old one
    (KAFKA-2729).
    """
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    before, told = cluster.open(), cluster.brokers[leader]
    wishes = [
        AlterIsr(*T0, 1, 1, leader, (leader,)),
        AlterIsr(*T0, 0, 7, leader, (leader,)),
        AlterIsr(*T0, 0, 1, leader, (one, two)),
        AlterIsr(*T0, 0, 1, leader, (leader, "b9")),
        AlterIsr(*T0, 0, 1, leader, (leader,), version=99),
        AlterIsr(*T0, 0, 1, leader, before.in_sync),
    ]
    for wish in wishes:
        count = len(told.all(LeaderAndIsr))
        cluster.to_active(leader, wish)
        assert cluster.open() == before, wish
        assert len(told.all(LeaderAndIsr)) == count + 1, wish
    cluster.to_active(one, AlterIsr(*T0, 0, 1, one, (one,)))
    cluster.to_active(one, AlterIsr("gone", "0", 0, 1, one, (one,)))
    assert cluster.open() == before


def test_a_dead_broker_is_not_taken_in() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two)))
    cluster.kill(one)
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two, one)))
    assert set(cluster.open().in_sync) == {leader, two}


def test_what_was_asked_for_is_void_once_it_was_refused() -> None:
    """The leader must learn of the refusal of its request: until then it waits for the replicas
    that the request names.
    """
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two)))
    cluster.kill(one)
    told = cluster.brokers[leader]
    version = told.states[T0].version
    wish = AlterIsr(*T0, 0, 1, leader, (leader, two, one), version=version)
    cluster.to_active(leader, wish)
    assert told.states[T0].version > version
    cluster.restart(one)
    cluster.to_active(leader, wish)  # The request arrives a second time.
    assert set(cluster.open().in_sync) == {leader, two}


def test_a_wish_that_is_taken_back_voids_the_one_on_its_way() -> None:
    """A new request for the present in-sync set cancels the earlier request in flight."""
    cluster = led()
    leader = cluster.leader()
    told, before = cluster.brokers[leader], cluster.open()
    version = told.states[T0].version
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, before.in_sync, version=version))
    assert told.states[T0].version > version
    cluster.to_active(
        leader, AlterIsr(*T0, 0, 1, leader, (leader,), version=version)
    )  # the report arrives late
    assert cluster.open() == before


def test_who_may_join_does_so_though_another_may_not() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader,)))
    cluster.kill(one)
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two, one)))
    assert set(cluster.open().in_sync) == {leader, two}


def test_an_elected_leader_is_committed_and_everybody_told() -> None:
    cluster = led(AckMode.RAFT)
    one, two = cluster.followers()
    cluster.to_active(one, BecomeLeader(*T0, 0, 3, one))
    part = cluster.part()
    assert (part.node.epoch, part.open_block.epoch, part.open_block.leader) == (3, 3, one)
    assert all(cluster.brokers[name].states[T0].leader == one for name in part.hosts)
    # Repeated, late and senseless reports change nothing, but a repeated one is answered.
    before, told = cluster.tree.entries(), len(cluster.brokers[one].all(LeaderAndIsr))
    cluster.to_active(one, BecomeLeader(*T0, 0, 3, one))
    assert len(cluster.brokers[one].all(LeaderAndIsr)) == told + 1
    for message in (
        BecomeLeader(*T0, 0, 2, two),
        BecomeLeader(*T0, 0, 3, two),
        BecomeLeader(*T0, 1, 9, two),
        BecomeLeader(*T0, 0, 9, "b9"),
    ):
        cluster.to_active(two, message)
    assert cluster.tree.entries() == before


def test_a_fetch_block_elects_nobody() -> None:
    cluster = led()
    before = cluster.tree.entries()
    one = cluster.followers()[0]
    cluster.to_active(one, BecomeLeader(*T0, 0, 9, one))
    assert cluster.tree.entries() == before


def test_progress_is_one_commit_a_message() -> None:
    cluster = Cluster()
    cluster.topic(partitions=3)
    names = [TopicPartition("t", str(index)) for index in range(3)]
    for name in names:
        cluster.write(5, name=name)
        leader = cluster.leader(name)
        cluster.brokers[leader].holders[name] = (leader,)
        cluster.to_active(leader, RollWanted(*name, 0, 1, "size"))
    before = len(cluster.active.commits)
    missing = [name for name in names if "b0" not in cluster.part(name).blocks[0].in_sync]
    assert missing
    whole = tuple((*name, 0, 5) for name in names)
    cluster.to_active("b0", Progress("b0", whole, 1))
    assert len(cluster.active.commits) == before + 1
    for name in names:
        assert "b0" in cluster.part(name).blocks[0].in_sync
        assert cluster.part(name).replicas[0, "b0"].end == 5
    cluster.to_active("b0", Progress("b0", whole, 1))
    assert len(cluster.active.commits) == before + 1
    # The copy has lost a part; the zkserver ignores reports of blocks that are open, unknown or on
    # other brokers.
    lost = ((*names[0], 0, 4), (*names[1], 1, 9), ("gone", "0", 0, 1), (*names[1], 7, 1))
    cluster.to_active("b0", Progress("b0", lost, 1))
    cluster.to_active("b9", Progress("b9", whole))
    assert "b0" not in cluster.part(names[0]).blocks[0].in_sync
    assert "b0" in cluster.part(names[1]).blocks[0].in_sync


def test_sizes_are_noted() -> None:
    cluster = led()
    cluster.set_state(AckMode.RAFT)
    version = cluster.part().node.version
    cluster.to_active("b0", BlockSizes(*T0, ((0, 7), (99, 1))))
    assert cluster.part().blocks[0].size == 7
    assert cluster.part().node.version == version + 1


# --- reading ------------------------------------------------------------------------------------


def test_locate_names_who_has_it() -> None:
    cluster = led()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.brokers[leader].holders[T0] = (leader, one)
    cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    cluster.write(8)
    cluster.ask(lambda i: Subscribe(i, "s", "t", "ptp", "s"))

    def where(offset: int) -> tuple[str, str]:
        ((found),) = cluster.ask(lambda i: Locate(i, "s", "t", (("0", offset),)))
        if found.error is not None:
            assert isinstance(found.error, NoBrokers)
            return found.block, ""
        assert found.endpoint == f"tcp://{found.broker}"
        return found.block, found.broker

    assert where(0) == ("Block_0", leader)
    assert where(99) == ("NowBlock", leader)
    cluster.brokers[two].seals = False
    cluster.kill(leader)
    assert where(0) == ("Block_0", one)
    cluster.pass_ms(2_000)
    cluster.kill(one)
    assert where(0) == ("Block_0", two)  # the second broker perhaps has a part of the block
    cluster.kill(two)
    assert where(0) == ("Block_0", "")
    ((gone),) = cluster.ask(lambda i: Locate(i, "s", "t", (("x", 0),)))
    assert gone.error.code == "UNKNOWN_PARTITION"


# --- whatever happens ---------------------------------------------------------------------------


def check_image(image: Image, versions: dict[TopicPartition, int]) -> None:
    """Check the invariants of the tree."""
    for topic in image.topics.values():
        for part in topic.partitions.values():
            name = TopicPartition(topic.node.name, part.node.name)
            found = list(part.blocks.values())
            assert [block.end is None for block in found] == [False] * (len(found) - 1) + [True]
            for before, after in pairwise(found):
                assert before.end == after.start > before.start
                assert before.epoch < after.epoch
            assert part.node.epoch == found[-1].epoch
            assert part.node.next_block == found[-1].number + 1
            for block in found:
                assert set(block.in_sync) <= set(block.replicas)
                assert len(block.storages) == len(block.replicas) == len(set(block.replicas))
                for broker in block.replicas:
                    replica = part.replicas[block.number, broker]
                    assert block.end is None or replica.in_sync == (broker in block.in_sync)
            opened = found[-1]
            if opened.acks is not AckMode.RAFT and opened.leader is not None:
                assert opened.leader in opened.in_sync
            assert not set(part.node.leaving) & set(part.hosts)
            assert versions.get(name, 0) <= part.node.version
            versions[name] = part.node.version


def set_state(name: TopicPartition, acks: AckMode, request: int) -> SetPartitionState:
    return SetPartitionState(request, *name, acks)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_tree_is_sound(seed: int) -> None:
    """Brokers and zkservers die and restart, log ends are lost, ack modes change.

    In the end all partitions work.

    A record that all in-sync replicas had is never truncated while one of them still has it.
    """
    rng = random.Random(seed)
    cluster = Cluster(brokers=4, zks=2, replace_ms=2_000, check_ms=5_000)
    cluster.topic(rng.choice([AckMode.RAFT, AckMode.LEADER]), partitions=3)
    names = [TopicPartition("t", str(index)) for index in range(3)]
    brokers = list(cluster.brokers)
    versions: dict[TopicPartition, int] = {}
    committed: dict[tuple[TopicPartition, int], int] = {}
    asked = 0
    for _ in range(40):
        name, broker = rng.choice(names), rng.choice(brokers)
        opened = cluster.open(name)
        match rng.randrange(9):
            case 0 if sum(b.is_up for b in cluster.brokers.values()) > 2:
                cluster.brokers[broker].is_up = False
            case 1 | 2:
                for lost in names:
                    block = cluster.open(lost)
                    if block.acks is not AckMode.RAFT and set(block.in_sync) - {broker}:
                        # the record was not synced
                        cluster.brokers[broker].ends[lost] = block.start
                cluster.restart(broker)
            case 3 if opened.leader is not None and cluster.brokers[opened.leader].is_up:
                shown = {b.name: b for b in cluster.ask(DescribeCluster).brokers}
                if not shown[opened.leader].alive:
                    continue  # the broker may have been fenced
                if any(opened.number in b.unrolled.values() for b in cluster.brokers.values()):
                    continue  # the block may have been sealed
                end = max(opened.start, cluster.brokers[opened.leader].ends.get(name, 0))
                end += rng.randrange(1, 5)
                cluster.write(end, *opened.in_sync, name=name)
                committed[name, opened.number] = end
            case 4 if any(zk.machine.is_active for zk in cluster.zks.values() if zk.is_up):
                acks = rng.choice([AckMode.RAFT, AckMode.LEADER, AckMode.NONE])
                cluster.send(partial(set_state, name, acks))
                asked += 1
            case 5:
                old = cluster.active.name
                cluster.crash_zk(old)
                cluster.start_zk(old)
            case 6 if opened.acks is AckMode.RAFT:
                leader = rng.choice(opened.replicas)
                epoch = opened.epoch + rng.randrange(3)
                cluster.to_active(leader, BecomeLeader(*name, opened.number, epoch, leader))
            case 7 if opened.leader is not None:
                in_sync = tuple(b for b in opened.replicas if rng.random() < 0.7)
                wish = AlterIsr(*name, opened.number, opened.epoch, opened.leader, in_sync)
                cluster.to_active(opened.leader, wish)
                for joined in sorted(set(cluster.open(name).in_sync) - set(opened.in_sync)):
                    ends = cluster.brokers[opened.leader].ends
                    cluster.write(ends.get(name, opened.start), joined, name=name)
            case 8:
                cluster.brokers[broker].seals = not cluster.brokers[broker].seals
            case _:
                pass
        cluster.pass_ms(rng.choice([0, 100, SESSION_MS // 2, 2 * SESSION_MS]))
        check_image(cluster.image, versions)
        for (partition, number), end in committed.items():
            part = cluster.part(partition)
            kept = part.blocks[number].end
            assert part.node.next_block - 1 == number or (kept is not None and kept >= end)
    for broker in brokers:
        cluster.brokers[broker].seals = True
        if not cluster.brokers[broker].is_up:
            cluster.restart(broker)
    cluster.pass_ms(20_000)
    image = cluster.image
    check_image(image, versions)
    for name in names:
        part = image.partition(*name)
        assert part.open_block.leader is not None
        assert len(part.open_block.replicas) == 3
        for broker in part.hosts:
            assert cluster.brokers[broker].states[name] == image.topics["t"].state(name.partition)
    # No message is pending, and the index equals the tree.
    machine = cluster.active.machine
    assert machine.image.hosting.leads == image.hosting.leads
    for broker in brokers:
        assert set(machine.image.hosting.hosted(broker)) == set(image.hosting.hosted(broker))
        assert set(machine.image.hosting.opened(broker)) == set(image.hosting.opened(broker))
    assert machine.image.versions == image.versions
    assert asked == 0 or cluster.answers
