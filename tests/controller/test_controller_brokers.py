"""Brokers come, leave, return with another disk, and get updates until they confirm them."""

from __future__ import annotations

import pytest

from pymq.controller.operations.broker_updates import STATES_MAX
from pymq.core.message import (
    AlterIsr,
    BrokerHeartbeat,
    CreateTopic,
    Decommission,
    DeleteTopic,
    DescribeCluster,
    GetMetadata,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Message,
    Progress,
    Reassign,
    RegisterBroker,
    RetireBlocks,
    Seal,
    Stopped,
    StopReplica,
)
from pymq.core.types import OFFSETS_TOPIC, AckMode, TopicPartition
from pymq.errors import (
    InvalidName,
    InvalidRequest,
    NoBrokers,
    NotEnoughBrokers,
    NotRegistered,
    PartitionUnset,
    StoreError,
)
from tests.controller.cluster import SESSION_MS, T0, Cluster


def full_cluster(acks: AckMode = AckMode.LEADER, **config: int) -> Cluster:
    cluster = Cluster(**config)
    cluster.topic(acks)
    cluster.write(5)
    return cluster


# --- registration -------------------------------------------------------------------------------


def test_a_registration_is_committed_and_answered_with_everything() -> None:
    cluster = full_cluster()
    broker = cluster.restart("b1")
    node = cluster.image.brokers["b1"]
    assert (node.incarnation, node.storage_id, node.endpoint) == (2, "disk-b1", "tcp://b1")
    full = broker.last(LeaderAndIsr)
    assert (full.full, full.incarnation) == (True, 2)
    assert full.partitions == (cluster.image.topics["t"].state("0"),)


def test_what_is_too_much_for_a_message_is_sent_in_several() -> None:
    """A broker with very many partitions gets its states in messages that the transport accepts."""
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=2, partitions=10)
    cluster.active.machine._updates.bytes_max = 3_000
    broker = cluster.restart("b1")
    told = broker.all(LeaderAndIsr)
    assert [m.full for m in told[:3]] == [False, False, True]
    names = [state.partition for m in told[:3] for state in m.partitions]
    assert sorted(names, key=int) == [str(number) for number in range(10)]
    cluster.pass_ms(20_000)
    # The broker confirmed each message separately.
    assert len(broker.all(LeaderAndIsr)) == len(told)


def test_a_part_that_was_lost_is_sent_again() -> None:
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=2, partitions=10)
    cluster.active.machine._updates.bytes_max = 3_000
    lost: list[Message] = []

    def is_lost(source: str, peer: str, message: Message) -> bool:
        if peer != "b1" or not isinstance(message, LeaderAndIsr) or lost:
            return False
        lost.append(message)
        return True

    cluster.dropped = is_lost
    broker = cluster.restart("b1")
    (first,) = lost
    assert isinstance(first, LeaderAndIsr)
    cluster.pass_ms(1_000)
    told = [state.partition for m in broker.all(LeaderAndIsr) for state in m.partitions]
    assert {state.partition for state in first.partitions} <= set(told)
    assert cluster.active.machine._updates._boxes["b1"].is_empty


def test_asking_again_changes_nothing() -> None:
    cluster = full_cluster()
    before, commits = cluster.tree.entries(), len(cluster.active.commits)
    cluster.register("b1")
    assert cluster.tree.entries() == before
    assert len(cluster.active.commits) == commits
    assert len([m for m in cluster.brokers["b1"].all(LeaderAndIsr) if m.full]) == 2


def test_an_ended_incarnation_is_refused() -> None:
    """A late message from before the restart must not count as a restart (E-5)."""
    cluster = full_cluster()
    old = cluster.brokers["b1"].registration()
    cluster.restart("b1")
    before = cluster.tree.entries()
    cluster.to_active("b1", old)
    assert cluster.tree.entries() == before
    _, answer = cluster.refusals[0]
    assert isinstance(answer.error, NotRegistered)
    assert answer.error.details["incarnation"] == 2


def test_a_heartbeat_of_nobody_is_answered() -> None:
    cluster = full_cluster()
    cluster.to_active("b9", BrokerHeartbeat("b9", 1))
    cluster.brokers["b1"].is_mute = True
    cluster.to_active("b1", BrokerHeartbeat("b1", 7))
    ((_, answer),) = cluster.refusals
    assert (answer.id, type(answer.error)) == (0, NotRegistered)


def test_a_name_that_is_none_is_refused() -> None:
    cluster = Cluster(brokers=0)
    cluster.to_active("a/b", RegisterBroker(1, "a/b", "", None, 1, "", 1))
    assert isinstance(cluster.answers[1].error, InvalidName)


def test_a_new_endpoint_is_no_restart() -> None:
    cluster = full_cluster()
    before = cluster.open()
    cluster.to_active("b1", RegisterBroker(0, "b1", "tcp://new", "r", 1, "disk-b1", 1))
    assert cluster.image.brokers["b1"].endpoint == "tcp://new"
    assert cluster.open() == before


# --- restarts -----------------------------------------------------------------------------------


def test_a_restarted_follower_leaves_the_in_sync_set_and_comes_back() -> None:
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    late = AlterIsr(*T0, 0, 1, leader, (leader, one, two), version=2)
    cluster.restart(one)
    assert set(cluster.open().in_sync) == {leader, two}
    assert cluster.brokers[leader].states[T0].blocks[-1].in_sync == cluster.open().in_sync
    # The leader sent this request before it knew of the restart, so it is refused (KIP-903).
    cluster.to_active(leader, late)
    assert set(cluster.open().in_sync) == {leader, two}
    version = cluster.brokers[leader].states[T0].version
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, one, two), version=version))
    assert cluster.open().in_sync == cluster.open().replicas


def test_a_wish_of_another_life_of_the_leader_is_not_granted() -> None:
    """A request from the leader's earlier incarnation is refused, since its disk may be another
    one.
    """
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    for incarnation in (2, 1 << 40):
        cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, one), 0, incarnation))
        assert set(cluster.open().in_sync) == {leader, one, two}
    known = cluster.brokers[leader].incarnation
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, one), 0, known))
    assert set(cluster.open().in_sync) == {leader, one}


def test_who_was_started_anew_does_not_join_by_what_its_last_life_had() -> None:
    """A restarted follower does not join the set because of its old progress, which it may have
    lost (KIP-903).
    """
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two)))

    def wish(*lives: int) -> AlterIsr:
        version = cluster.brokers[leader].states[T0].version
        everybody = (leader, one, two)
        return AlterIsr(*T0, 0, 1, leader, everybody, version, 1, "", lives)

    late = wish(1, 1, 1)
    cluster.restart(one)
    assert cluster.brokers[leader].states[T0].version == late.version, "nothing has changed"
    cluster.to_active(leader, late)
    assert set(cluster.open().in_sync) == {leader, two}
    # The leader learns that it must not count on this replica any more.
    assert cluster.brokers[leader].states[T0].version > late.version
    cluster.to_active(leader, wish(1, 2, 0))
    assert set(cluster.open().in_sync) == {leader, one, two}


@pytest.mark.parametrize("lives", [(), (1,), (1, 0, 1)])
def test_a_leader_may_not_know_of_lives(lives: tuple[int, ...]) -> None:
    """Requests without incarnations, from an older version of the leader, still work."""
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader, two)))
    cluster.restart(one)
    everybody = (leader, one, two)
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, everybody, 0, 1, "", lives))
    assert set(cluster.open().in_sync) == {leader, one, two}


def test_a_restarted_leader_leads_no_more() -> None:
    """A restarted leader may have lost its tail, so it must not assign these offsets a
    second time.
    """
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(8, one)
    cluster.brokers[one].seals = cluster.brokers[two].seals = False
    broker = cluster.restart(leader)
    state = broker.states[T0]
    assert (state.leader, state.blocks[-1].leader) == (None, None)
    assert set(state.blocks[-1].in_sync) == {one, two}
    assert state.epoch == state.blocks[-1].epoch == 2
    cluster.brokers[one].seals = cluster.brokers[two].seals = True
    cluster.pass_ms(2_000)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (8, (one,))
    assert part.open_block.leader == one
    assert set(part.open_block.replicas) == {leader, one, two}
    assert part.node.epoch > 2


def test_the_longest_copy_counts_even_that_of_a_restarted_leader() -> None:
    cluster = full_cluster()
    leader, followers = cluster.leader(), cluster.followers()
    cluster.write(12, leader)
    cluster.restart(leader)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (12, (leader,))
    assert part.open_block.leader == leader
    assert set(part.open_block.replicas) == {leader, *followers}


def test_the_last_one_in_sync_stays_so() -> None:
    """The last in-sync replica stays in the set after a restart: its copy is the best there is."""
    cluster = full_cluster()
    leader = cluster.leader()
    cluster.to_active(leader, AlterIsr(*T0, 0, 1, leader, (leader,)))
    assert cluster.open().in_sync == (leader,)
    cluster.write(20, leader)
    cluster.brokers[leader].is_up = False
    cluster.pass_ms(3 * SESSION_MS)
    assert cluster.part().open_block.number == 0  # the others may lack acknowledged records
    cluster.write(19, leader)  # some records were lost
    cluster.restart(leader)
    assert cluster.part().blocks[0].end == 19


def test_a_single_replica_may_restart() -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(replicas=1)
    before = cluster.open()
    cluster.restart("b0")
    assert cluster.open() == before


def test_raft_knows_what_to_do_about_a_restart() -> None:
    cluster = full_cluster(AckMode.RAFT)
    before = cluster.part()
    for name in before.open_block.replicas:
        cluster.restart(name)
    assert cluster.part().node == before.node


def test_what_was_sealed_by_a_broker_that_restarted_is_void() -> None:
    cluster = full_cluster()
    leader, (one, two) = cluster.leader(), cluster.followers()
    for name in (one, two):
        cluster.brokers[name].seals = False
    cluster.kill(leader)
    seal = cluster.brokers[one].last(Seal)
    (answer,) = cluster.brokers[one].sealed(seal)
    cluster.to_active(one, answer)  # the answer waits for the other replica
    cluster.write(2, one)  # ... and loses unsynced records
    broker = cluster.restart(one)
    broker.seals = False
    cluster.to_active(one, answer)  # the answer comes from the earlier incarnation
    cluster.pass_ms(1_500)
    assert cluster.open().number == 0
    broker.seals = cluster.brokers[two].seals = True
    cluster.write(4, two)
    cluster.pass_ms(4_000)
    assert cluster.part().blocks[0].end == 4
    assert cluster.part().blocks[0].in_sync == (two,)


# --- another disk -------------------------------------------------------------------------------


def test_a_wiped_broker_holds_nothing() -> None:
    cluster = full_cluster()
    cluster.set_state(AckMode.RAFT)
    cluster.write(9)
    cluster.set_state(AckMode.LEADER)
    cluster.write(12)
    one = cluster.followers()[0]
    cluster.restart(one, storage="new")
    part = cluster.part()
    for number in (0, 1):
        block = part.blocks[number]
        assert one not in block.in_sync
        assert one in block.replicas
        assert block.storages[block.replicas.index(one)] == "new"
        assert not part.replicas[number, one].in_sync
    # The open block is sealed, and the broker has a replica of the next block on its new disk.
    assert part.blocks[2].end == 12
    assert one not in part.blocks[2].in_sync
    opened = part.open_block
    assert one in opened.replicas
    assert opened.storages[opened.replicas.index(one)] == "new"
    # A repeated registration does not undo the broker's progress since the first one.
    cluster.to_active(one, Progress(one, ((*T0, 0, 5),), 2))
    assert one in cluster.part().blocks[0].in_sync
    cluster.restart(one)
    assert one in cluster.part().blocks[0].in_sync


@pytest.mark.parametrize("acks", [AckMode.LEADER, AckMode.RAFT])
def test_wiped_open_blocks_are_rolled(acks: AckMode) -> None:
    cluster = full_cluster(acks)
    leader = cluster.leader()
    one = cluster.followers()[0]
    cluster.restart(one, storage="new")
    part = cluster.part()
    assert part.blocks[0].end == 5
    assert one not in part.blocks[0].in_sync  # this holds whatever the leader's report says
    assert part.open_block.leader == leader
    assert set(part.open_block.replicas) == {leader, *cluster.followers()}


def test_a_leader_that_was_wiped_is_not_asked() -> None:
    cluster = full_cluster()
    leader = cluster.leader()
    cluster.write(99, leader)  # this leader would report a wrong end
    cluster.restart(leader, storage="new")
    assert cluster.part().blocks[0].end == 5
    assert leader not in cluster.part().blocks[0].in_sync
    assert cluster.leader() != leader


def test_the_only_copy_being_wiped_is_not_glossed_over() -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(replicas=1)
    cluster.write(5)
    cluster.restart("b0", storage="new")
    cluster.pass_ms(60_000)
    block = cluster.open()
    assert (block.number, block.leader, block.in_sync) == (0, None, ())


def test_a_late_progress_of_another_incarnation_is_not_believed() -> None:
    cluster = full_cluster()
    cluster.set_state(AckMode.RAFT)
    one = cluster.followers()[0]
    cluster.restart(one, storage="new")
    cluster.to_active(one, Progress(one, ((*T0, 0, 5),), 1))
    assert one not in cluster.part().blocks[0].in_sync


# --- deaths -------------------------------------------------------------------------------------


def test_a_dead_broker_is_replaced_after_a_while() -> None:
    cluster = Cluster(brokers=4, replace_ms=5_000)
    cluster.topic(AckMode.RAFT)
    cluster.write(5)
    gone = cluster.followers()[0]
    (spare,) = set(cluster.brokers) - set(cluster.open().replicas)
    stay = set(cluster.open().replicas) - {gone}
    cluster.kill(gone)
    cluster.pass_ms(4_000)
    assert cluster.open().number == 0  # the other replicas elect a leader if needed
    cluster.pass_ms(2_000)
    assert set(cluster.open().replicas) == {*stay, spare}
    assert cluster.part().blocks[0].replicas == (*cluster.part().blocks[0].replicas,)


def test_a_clock_that_jumps_has_nobody_replaced() -> None:
    """After a jump of the clock a broker must not count as dead for long enough to be replaced."""
    cluster = Cluster(brokers=4, replace_ms=5_000)
    cluster.topic(AckMode.RAFT)
    gone = cluster.followers()[0]
    cluster.kill(gone)
    for name in sorted({*cluster.brokers} - {gone}):
        cluster.pass_ms(60_000, step=60_000)
        cluster.register(name)  # the registration makes the zkserver check the broker's partitions
    cluster.pass_ms(2_000)
    assert cluster.open().number == 0
    cluster.pass_ms(3_000)
    assert cluster.open().number == 1
    assert gone not in cluster.open().replicas


def test_who_comes_and_goes_is_waited_for_anew() -> None:
    cluster = Cluster(brokers=4, replace_ms=5_000)
    cluster.topic(AckMode.RAFT)
    gone = cluster.followers()[0]
    cluster.kill(gone)
    cluster.pass_ms(3_000)
    cluster.restart(gone)
    cluster.kill(gone)
    cluster.pass_ms(4_500)
    assert cluster.open().number == 0
    cluster.pass_ms(1_000)
    assert cluster.open().number == 1


def test_without_anybody_else_a_dead_broker_is_waited_for() -> None:
    cluster = Cluster(brokers=3, replace_ms=1_000)
    cluster.topic(AckMode.RAFT)
    cluster.kill(cluster.followers()[0])
    cluster.pass_ms(60_000)
    assert cluster.open().number == 0
    assert not any(broker.all(Seal) for broker in cluster.brokers.values())


def test_a_follower_that_died_is_replaced_too() -> None:
    cluster = Cluster(brokers=4, replace_ms=1_000)
    cluster.topic()
    cluster.write(5)
    leader, gone = cluster.leader(), cluster.followers()[0]
    cluster.kill(gone)
    assert cluster.open().number == 0
    cluster.pass_ms(2_000)
    assert cluster.leader() == leader
    assert gone not in cluster.open().replicas
    assert len(cluster.open().replicas) == 3


def test_fewer_replicas_than_wanted_are_made_up_for() -> None:
    cluster = full_cluster()
    leader = cluster.leader()
    cluster.kill(leader)
    assert len(cluster.open().replicas) == 2
    assert T0 in cluster.active.machine.image.short
    cluster.write(8)
    cluster.start_broker("b9")
    assert len(cluster.open().replicas) == 3
    assert "b9" in cluster.open().replicas
    assert not cluster.active.machine.image.short
    cluster.pass_ms(60_000)
    assert cluster.part().node.next_block == 3


def test_a_broker_that_only_was_cut_off_goes_on() -> None:
    cluster = full_cluster()
    follower = cluster.brokers[cluster.followers()[0]]
    follower.is_mute = True
    cluster.pass_ms(2 * SESSION_MS)
    shown = cluster.ask(DescribeCluster)
    assert [b.name for b in shown.brokers if not b.alive] == [follower.name]
    follower.is_mute = False
    cluster.pass_ms(200)
    assert all(b.alive for b in cluster.ask(DescribeCluster).brokers)
    assert cluster.part().node.next_block == 1


def test_heartbeats_cost_no_look_at_partitions() -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(replicas=1, partitions=2_000)
    # a check of this partition would find no problem, or fail
    cluster.active.machine.image.topics.clear()
    cluster.pass_ms(3_000)
    shown = cluster.ask(DescribeCluster)
    assert [(b.alive, b.leads) for b in shown.brokers] == [(True, 2_000)]


# --- decommissioning, reassigning ---------------------------------------------------------------


def test_decommissioning_moves_what_is_open_and_places_nothing_there() -> None:
    cluster = Cluster(brokers=4)
    cluster.topic(replicas=2, partitions=8)
    for index in range(8):
        cluster.write(3, name=TopicPartition("t", str(index)))
    count = len(cluster.image.hosting.opened("b0"))
    assert count
    assert cluster.ask(lambda i: Decommission(i, "b0")) == count
    image = cluster.image
    assert image.brokers["b0"].is_draining
    assert image.hosting.opened("b0") == ()
    assert len(image.hosting.hosted("b0")) == count  # the earlier blocks stay where they are
    cluster.topic(replicas=3, partitions=4, name="u")
    assert cluster.image.hosting.opened("b0") == ()
    with pytest.raises(NotEnoughBrokers):
        cluster.topic(replicas=4, name="v")
    cluster.restart("b0")
    assert cluster.image.brokers["b0"].is_draining
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: Reassign(i, *T0, ("b0",)))


def test_decommissioning_that_cannot_succeed_changes_nothing() -> None:
    cluster = full_cluster()
    before = cluster.tree.entries()
    with pytest.raises(NotEnoughBrokers):
        cluster.ask(lambda i: Decommission(i, "b0"))
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: Decommission(i, "nobody"))
    assert cluster.tree.entries() == before


def test_decommissioning_goes_on_after_a_take_over() -> None:
    cluster = Cluster(brokers=4, zks=2)
    cluster.topic()
    cluster.write(5)
    leader = cluster.leader()
    cluster.brokers[leader].seals = False
    cluster.ask(lambda i: Decommission(i, leader))
    cluster.crash_zk("zk-0")
    cluster.brokers[leader].seals = True
    cluster.pass_ms(3 * SESSION_MS)
    assert leader not in cluster.open().replicas
    assert len(cluster.open().replicas) == 3


def test_reassigning_is_a_roll() -> None:
    cluster = Cluster(brokers=4)
    cluster.topic(replicas=2)
    cluster.write(5)
    old = cluster.open().replicas
    new = tuple(name for name in cluster.brokers if name not in old)
    assert cluster.ask(lambda i: Reassign(i, *T0, new)) is True
    part = cluster.part()
    assert part.blocks[0].replicas == old
    assert part.open_block.replicas == new
    assert part.open_block.leader == new[0]
    assert part.hosts.keys() == set(cluster.brokers)
    assert all(cluster.brokers[name].states[T0].epoch == 2 for name in cluster.brokers)
    assert cluster.ask(lambda i: Reassign(i, *T0, new)) is False
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: Reassign(i, *T0, ()))
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: Reassign(i, *T0, ("b0", "b0")))
    with pytest.raises(NotEnoughBrokers):
        cluster.ask(lambda i: Reassign(i, *T0, ("nobody",)))
    cluster.topic(AckMode.UNSET, name="u")
    with pytest.raises(PartitionUnset):
        cluster.ask(lambda i: Reassign(i, "u", "0", ("b0",)))


# --- deletions ----------------------------------------------------------------------------------


def test_a_broker_that_was_down_hears_of_a_deletion_when_it_is_back() -> None:
    cluster = full_cluster()
    topic_id = cluster.image.topics["t"].node.id
    cluster.kill("b1")
    cluster.ask(lambda i: DeleteTopic(i, "t"))
    assert cluster.image.deleted[topic_id].brokers == ("b1",)
    assert not cluster.brokers["b0"].states
    stop = cluster.brokers["b0"].last(StopReplica)
    assert (stop.topic_id, stop.partition, stop.index, stop.delete) == (topic_id, "", -1, True)
    cluster.topic(replicas=2)  # the new topic has the same name and another id
    broker = cluster.restart("b1")
    assert broker.last(StopReplica).topic_id == topic_id
    assert not cluster.image.deleted
    assert not broker.states


def test_a_broker_is_told_until_it_confirms() -> None:
    cluster = full_cluster()
    cluster.brokers["b1"].is_mute = True
    topic_id = cluster.image.topics["t"].node.id
    cluster.ask(lambda i: DeleteTopic(i, "t"))
    cluster.pass_ms(800)
    assert len(cluster.brokers["b1"].all(StopReplica)) == 2
    cluster.brokers["b1"].is_mute = False
    cluster.to_active("b1", Stopped(cluster.brokers["b1"].last(StopReplica).id, "b1"))
    assert topic_id not in cluster.image.deleted
    cluster.pass_ms(20_000)
    assert len(cluster.brokers["b1"].all(StopReplica)) == 2


def test_a_topic_that_nobody_hosts_leaves_nothing() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.UNSET)
    cluster.ask(lambda i: DeleteTopic(i, "t"))
    assert not cluster.image.deleted
    cluster.topic(name="__x")
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: DeleteTopic(i, "__x"))


def test_who_hosts_no_block_any_more_is_told_to_remove_his_files() -> None:
    """A broker that has no block after retention is told to remove its files, even if it was down
    (K7).
    """
    cluster = Cluster(brokers=4)
    cluster.topic(replicas=2)
    cluster.write(5)
    old = cluster.open().replicas
    new = tuple(name for name in cluster.brokers if name not in old)
    cluster.ask(lambda i: Reassign(i, *T0, new))
    cluster.kill(old[0])
    cluster.to_active(new[0], RetireBlocks(*T0, 2, 1))
    assert list(cluster.part().blocks) == [1]
    assert cluster.part().node.leaving == (old[0],)
    stop = cluster.brokers[old[1]].last(StopReplica)
    assert (stop.partition, stop.index, stop.epoch, stop.delete) == ("0", 0, 2, True)
    broker = cluster.restart(old[0])
    assert broker.last(StopReplica).partition == "0"
    assert broker.last(LeaderAndIsr).partitions == ()
    assert cluster.part().node.leaving == ()


def test_who_is_given_a_partition_again_is_not_told_to_remove_it() -> None:
    cluster = Cluster(brokers=4)
    cluster.topic(replicas=2)
    cluster.write(5)
    old = cluster.open().replicas
    new = tuple(name for name in cluster.brokers if name not in old)
    cluster.ask(lambda i: Reassign(i, *T0, new))
    cluster.brokers[old[0]].is_mute = True  # this broker confirms no requests
    cluster.to_active(new[0], RetireBlocks(*T0, 2, 1))
    cluster.write(9)
    cluster.ask(lambda i: Reassign(i, *T0, old))
    assert cluster.part().node.leaving == ()
    told = len(cluster.brokers[old[0]].all(StopReplica))
    cluster.pass_ms(900)
    assert len(cluster.brokers[old[0]].all(StopReplica)) == told


# --- telling ------------------------------------------------------------------------------------


def test_states_are_sent_until_they_are_confirmed() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.brokers["b1"]
    broker.is_mute = True
    cluster.topic(replicas=2)
    assert len(broker.all(LeaderAndIsr)) == 2
    for _ in range(40):  # the broker sends only heartbeats
        cluster.to_active("b1", BrokerHeartbeat("b1", 1))
        cluster.pass_ms(200)
    sent = broker.all(LeaderAndIsr)
    assert 5 <= len(sent) <= 8
    assert sent[-1].partitions == (cluster.image.topics["t"].state("0"),)
    cluster.to_active("b1", LeaderAndIsrAnswer(sent[-1].id, "b1", ((*T0, None),)))
    for _ in range(40):
        cluster.to_active("b1", BrokerHeartbeat("b1", 1))
        cluster.pass_ms(200)
    assert len(broker.all(LeaderAndIsr)) == len(sent)
    assert cluster.active.machine.deadline > cluster.now


def test_a_broker_is_told_the_next_of_much_when_it_has_taken_in_what_was_before() -> None:
    """A broker gets the next updates only after it has confirmed the previous ones, so that its
    heartbeats are not late.
    """
    count = 1_000
    cluster = Cluster(brokers=1)
    broker = cluster.brokers["b0"]
    broker.is_mute = True
    names = tuple(str(index) for index in range(count))
    before = len(broker.heard)
    cluster.send(lambda i: CreateTopic(i, "t", names, 1, AckMode.LEADER, {}))
    untold = set(names)
    while True:
        new = [m for m in broker.heard[before:] if isinstance(m, LeaderAndIsr)]
        before = len(broker.heard)
        if not new:
            break
        assert len(new) == 1
        assert len(new[0].partitions) <= STATES_MAX
        untold -= {state.partition for state in new[0].partitions}
        # Brokers with few updates get them at once.
        if len(untold) < count // 2 and "little" not in cluster.image.topics:
            cluster.send(lambda i: CreateTopic(i, "little", ("0",), 1, AckMode.LEADER, {}))
            (little,) = broker.heard[before:]
            assert isinstance(little, LeaderAndIsr)
            assert [state.topic for state in little.partitions] == ["little"]
            before = len(broker.heard)
        errors = tuple((state.topic, state.partition, None) for state in new[0].partitions)
        cluster.to_active("b0", LeaderAndIsrAnswer(new[0].id, "b0", errors))
        cluster.now += 400  # The zkserver does not repeat requests to a broker that makes progress.
        cluster.to_active("b0", BrokerHeartbeat("b0", broker.incarnation))
        cluster.active.machine.tick(cluster.now)
    assert not untold


def test_what_a_broker_does_not_answer_it_is_told_again_ever_more_seldom() -> None:
    """Of a thousand states a silent broker gets only the first, and again 0.5, 1.5 and 3.5
    s later.
    """
    cluster = Cluster(brokers=1)
    broker = cluster.brokers["b0"]
    broker.is_mute = True
    before = len(broker.heard)
    names = tuple(str(index) for index in range(1_000))
    cluster.send(lambda i: CreateTopic(i, "t", names, 1, AckMode.LEADER, {}))
    for _ in range(30):
        cluster.to_active("b0", BrokerHeartbeat("b0", broker.incarnation))
        cluster.pass_ms(100)
    told = [m for m in broker.heard[before:] if isinstance(m, LeaderAndIsr)]
    assert [len(m.partitions) for m in told] == [STATES_MAX] * 3
    assert len({m.partitions for m in told}) == 1


def test_who_registers_while_he_is_being_told_is_not_told_twice() -> None:
    """A broker that registers each second gets its updates once, although it needs longer than that
    to apply them.
    """
    cluster = full_cluster()
    broker = cluster.brokers["b1"]
    broker.incarnation, broker.is_mute = 2, True
    for _ in range(4):
        cluster.register("b1")
        cluster.pass_ms(100)
    assert [m.incarnation for m in broker.all(LeaderAndIsr) if m.full][1:] == [2]
    broker.storage = "another disk"
    cluster.register("b1")
    assert cluster.image.brokers["b1"].storage_id == "another disk"
    broker.is_mute = False
    cluster.pass_ms(2_000)
    assert broker.states[T0] == cluster.image.topics["t"].state("0")


def test_an_error_is_no_confirmation() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.brokers["b1"]
    broker.is_mute = True
    cluster.topic(replicas=2)
    told = broker.last(LeaderAndIsr)
    failed = LeaderAndIsrAnswer(told.id, "b1", ((*T0, StoreError("no disk")),))
    cluster.to_active("b1", failed)
    cluster.pass_ms(700)
    again = broker.last(LeaderAndIsr)
    assert again.id != told.id
    assert again.partitions == told.partitions


def test_a_late_answer_confirms_only_what_it_answers() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.brokers["b1"]
    broker.is_mute = True
    cluster.topic(replicas=2)
    first = broker.last(LeaderAndIsr)
    cluster.set_state(AckMode.NONE)
    cluster.to_active("b1", LeaderAndIsrAnswer(first.id, "b1", ((*T0, None),)))
    cluster.pass_ms(700)
    assert broker.last(LeaderAndIsr).partitions[0].acks is AckMode.NONE
    assert len(broker.all(LeaderAndIsr)) == 4


def test_the_first_answer_of_a_restarted_broker_is_what_counts() -> None:
    """An answer to updates of the earlier incarnation confirms nothing."""
    cluster = Cluster(brokers=2)
    cluster.brokers["b1"].is_mute = True
    cluster.topic(replicas=2)
    old = cluster.brokers["b1"].last(LeaderAndIsr)
    broker = cluster.brokers["b1"]
    broker.incarnation += 1
    cluster.register("b1")
    cluster.to_active("b1", LeaderAndIsrAnswer(old.id, "b1", ((*T0, None),)))
    cluster.pass_ms(700)
    assert [m.full for m in broker.all(LeaderAndIsr)][-2:] == [True, True]


def test_the_offsets_topic_is_made_up_for_too() -> None:
    cluster = Cluster(brokers=0, offsets_partitions=2, offsets_replicas=2)
    with pytest.raises(NoBrokers):
        cluster.ask(lambda i: GetMetadata(i, OFFSETS_TOPIC))
    cluster.start_broker("b0")
    found = cluster.ask(lambda i: GetMetadata(i, OFFSETS_TOPIC))
    assert [p.leader for p in found.partitions] == ["b0", "b0"]
    cluster.start_broker("b1")
    for name in ("0", "1"):
        block = cluster.open(TopicPartition(OFFSETS_TOPIC, name))
        assert set(block.replicas) == {"b0", "b1"}


@pytest.mark.parametrize(
    ("brokers", "replicas", "acks"),
    [
        (1, 1, AckMode.LEADER),
        (2, 3, AckMode.LEADER),
        (5, 2, AckMode.LEADER),
        (3, 3, AckMode.RAFT),
        (5, 5, AckMode.RAFT),
    ],
)
def test_the_offsets_of_groups_are_kept_by_a_majority_if_there_can_be_one(
    brokers: int, replicas: int, acks: AckMode
) -> None:
    cluster = Cluster(brokers=brokers, offsets_partitions=2, offsets_replicas=replicas)
    cluster.ask(lambda i: GetMetadata(i, OFFSETS_TOPIC))
    for name in ("0", "1"):
        block = cluster.open(TopicPartition(OFFSETS_TOPIC, name))
        assert block.acks is acks
        assert len(block.replicas) == min(brokers, replicas)


def test_a_new_broker_is_used_by_new_blocks() -> None:
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=1, partitions=8)
    cluster.start_broker("b9")
    assert cluster.image.hosting.opened("b9") == ()
    cluster.ask(lambda i: CreateTopic(i, "u", ("0", "1", "2", "3"), 1, AckMode.LEADER, {}))
    assert len(cluster.image.hosting.opened("b9")) == 4


def test_coordinators_hear_of_a_deleted_topic_wherever_they_are() -> None:
    """Every coordinator learns of a deletion, so that a later topic of the same name does not get
    old offsets.
    """
    cluster = Cluster(brokers=1, offsets_partitions=1, offsets_replicas=1)
    cluster.ask(lambda i: GetMetadata(i, OFFSETS_TOPIC))
    cluster.start_broker("b9")
    cluster.ask(lambda i: CreateTopic(i, "u", ("0",), 1, AckMode.LEADER, {}))
    (coordinator,) = cluster.open(TopicPartition(OFFSETS_TOPIC, "0")).replicas
    (host,) = cluster.open(TopicPartition("u", "0")).replicas
    assert coordinator != host
    cluster.ask(lambda i: DeleteTopic(i, "u"))
    stop = cluster.brokers[coordinator].last(StopReplica)
    assert (stop.topic, stop.partition) == ("u", "")
