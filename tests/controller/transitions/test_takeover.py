"""Blocks that cannot have a leader: disks were replaced, or no replica returns."""

from __future__ import annotations

import pytest

from pymq.core.message import (
    AlterTopic,
    BecomeLeader,
    DescribeCluster,
    DescribeTopic,
    GetMetadata,
    Reassign,
    RecoverPartition,
    Seal,
)
from pymq.core.metadata.coordination import CoordRequest
from pymq.core.metadata.descriptions import (
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)
from pymq.core.metadata.nodes import Loss
from pymq.core.types import AckMode
from pymq.errors import StoreFull
from tests.controller.cluster import SESSION_MS, T0, Broker, Cluster


def raft(replicas: int) -> Cluster:
    cluster = Cluster(brokers=max(3, replicas))
    cluster.topic(AckMode.RAFT, replicas)
    cluster.write(5)
    return cluster


def described(cluster: Cluster) -> PartitionDescription:
    request = cluster.send(lambda i: DescribeTopic(i, "t"))
    cluster.pass_ms(2_000)  # the brokers of these tests report nothing
    found = cluster.answers[request].result
    assert isinstance(found, TopicDescription)
    return found.partitions[0]


def recover(cluster: Cluster) -> Loss | None:
    found = cluster.ask(lambda i: RecoverPartition(i, *T0))
    assert found is None or isinstance(found, Loss)
    return found


# --- raft blocks without a majority -------------------------------------------------------------


def test_of_two_raft_replicas_either_has_all_that_was_committed() -> None:
    """In a block of two replicas the majority is both of them, so each has all committed records.

    The leader's disk was replaced, but its follower has all committed records.
    """
    cluster = raft(2)
    leader, (one,) = cluster.leader(), cluster.followers()
    cluster.write(7, leader)
    cluster.restart(leader, "another disk")
    part = cluster.part()
    assert cluster.brokers[one].last(Seal).takeover
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (5, (one,))
    assert not part.blocks[0].is_unclean
    assert part.node.losses == ()
    assert part.open_block.leader == one
    assert len(part.open_block.replicas) == 2


def test_a_block_that_was_opened_on_a_disk_that_was_gone_by_then_goes_on() -> None:
    """Found by the simulator: --profile wipe --zkservers 2 --seconds 6 --seeds 0."""
    cluster = Cluster()
    cluster.topic(AckMode.RAFT, 2)
    one, two = cluster.open().replicas
    cluster.brokers[two].is_up = False  # the broker is stopping, and no other node knows that
    cluster.to_active(one, BecomeLeader(*T0, 0, 3, one))
    cluster.restart(two, "another disk")
    assert cluster.open().number == 1
    assert cluster.leader() == one
    cluster.pass_ms(5_000)
    assert len(cluster.open().replicas) == 2


def test_of_four_two_see_all_and_the_later_epoch_counts() -> None:
    cluster = raft(4)
    first, *others = cluster.open().replicas
    one, two, three = others
    for name, epoch, end in ((two, 3, 6), (three, 2, 9)):
        cluster.brokers[name].log_epochs[T0] = epoch
        cluster.write(end, name)
    cluster.brokers[three].seals = False
    for name in (first, one, two):
        # the block has a leader, which has not sealed the block yet
        cluster.brokers[name].seals = False
    cluster.restart(first, "another disk").seals = False
    cluster.restart(one, "another disk, too")
    cluster.brokers[two].seals = True
    cluster.pass_ms(5_000)
    assert cluster.open().number == 0  # The one that has not answered may have more.
    cluster.brokers[three].seals = True
    cluster.pass_ms(5_000)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (6, (two,))
    assert not part.blocks[0].is_unclean


def test_of_two_copies_that_are_as_long_only_the_later_epochs_one_is_whole() -> None:
    """The other copy contains records of a leader that was replaced."""
    cluster = raft(4)
    first, one, two, three = cluster.open().replicas
    for name, epoch in ((two, 3), (three, 2)):
        cluster.brokers[name].log_epochs[T0] = epoch
        cluster.write(6, name)
    for name in (first, one, two, three):
        cluster.brokers[name].seals = False
    cluster.restart(first, "another disk").seals = False
    cluster.restart(one, "another disk, too")
    cluster.brokers[two].seals = cluster.brokers[three].seals = True
    cluster.pass_ms(5_000)
    sealed = cluster.part().blocks[0]
    assert (sealed.end, sealed.leader, sealed.in_sync) == (6, two, (two,))


def test_who_has_a_majority_is_left_to_elect() -> None:
    cluster = raft(3)
    leader, (one, two) = cluster.leader(), cluster.followers()
    for name in (one, two):
        cluster.brokers[name].seals = False
    cluster.restart(leader, "another disk")
    cluster.pass_ms(5_000)
    assert cluster.open().number == 0
    assert not any(seal.takeover for seal in cluster.brokers[one].all(Seal))
    assert recover(cluster) is None


@pytest.mark.parametrize("acks", [AckMode.RAFT, AckMode.LEADER])
def test_what_may_be_lost_is_given_up_only_where_that_is_allowed(acks: AckMode) -> None:
    cluster = Cluster()
    cluster.topic(acks)
    cluster.write(5)
    gone, other, left = cluster.open().replicas
    if acks is not AckMode.RAFT:
        cluster.brokers[left].is_mute = True
    cluster.brokers[gone].is_up = cluster.brokers[other].is_up = False
    cluster.restart(gone, "another disk")
    cluster.restart(other, "another disk, too")
    cluster.pass_ms(3 * SESSION_MS)
    cluster.write(3, left)
    assert cluster.open().number == 0
    shown = described(cluster)
    assert shown.leader is None
    assert "the disk of" in str(shown.problem)
    cluster.brokers[left].is_mute = False
    cluster.ask(lambda i: AlterTopic(i, "t", {"unclean_election": True}))
    cluster.pass_ms(3 * SESSION_MS)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (3, (left,))
    lost = part.node.losses
    if acks is AckMode.RAFT:
        assert part.blocks[0].is_unclean
        assert [(loss.offset, loss.holder) for loss in lost] == [(3, left)]
        assert cluster.active.machine.unclean_elections == 1
    shown = described(cluster)
    assert (shown.problem, shown.losses) == (None, lost)


# --- a single replica ---------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [AckMode.RAFT, AckMode.LEADER])
def test_a_single_replica_whose_disk_was_replaced_waits_for_a_word(acks: AckMode) -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(acks, 1)
    cluster.write(5)
    # the zkserver ignores Seal, which it never receives normally
    cluster.to_active("b0", Seal(0, *T0, 0, 0))
    cluster.restart("b0", "another disk")
    cluster.pass_ms(20_000)
    assert cluster.open().number == 0
    shown = described(cluster)
    assert (shown.leader, shown.losses) == (None, ())
    assert shown.problem is not None
    assert "the disk of b0 was replaced" in shown.problem
    assert "recover_partition()" in shown.problem
    found = cluster.ask(DescribeCluster)
    assert isinstance(found, ClusterDescription)
    assert found.leaderless == ("t/0",)
    assert cluster.ask(lambda i: GetMetadata(i, "t")).partitions[0].leader is None
    loss = recover(cluster)
    assert loss is not None
    assert (loss.block, loss.offset, loss.log_start, loss.holder) == (0, 0, 0, None)
    assert cluster.part().node.losses == (loss,)
    assert list(cluster.part().blocks) == [1]
    assert cluster.leader() == "b0"
    assert described(cluster).problem is None
    assert recover(cluster) is None


def test_a_single_replica_goes_on_by_itself_where_that_is_allowed() -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(AckMode.LEADER, 1, unclean_election=True)
    cluster.write(5)
    cluster.restart("b0", "another disk")
    part = cluster.part()
    assert list(part.blocks) == [1]
    assert [loss.offset for loss in part.node.losses] == [0]


def test_sealed_blocks_that_nobody_has_any_more_go_with_it() -> None:
    cluster = Cluster(brokers=1)
    cluster.topic(AckMode.LEADER, 1)
    cluster.write(5)
    cluster.set_state(AckMode.RAFT)
    cluster.write(9)
    cluster.restart("b0", "another disk")
    loss = recover(cluster)
    assert loss is not None
    # The content of the open block is unknown; new records get the same offsets.
    assert (loss.block, loss.offset, loss.log_start) == (1, 5, 5)
    assert list(cluster.part().blocks) == [2]


def test_recovery_does_not_wait_for_a_broker_that_stays_away() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.LEADER, 1)
    cluster.write(5)
    gone = cluster.leader()
    cluster.kill(gone)
    cluster.pass_ms(20_000)
    assert cluster.open().number == 0
    loss = recover(cluster)
    assert loss is not None
    assert loss.holder is None
    assert cluster.leader() != gone
    back = cluster.restart(gone)  # the broker is told to remove its files
    assert T0 not in back.states
    assert cluster.part().node.leaving == ()


def test_recovery_takes_what_is_left_of_a_raft_block() -> None:
    cluster = raft(3)
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(4, two)
    cluster.kill(leader)
    cluster.kill(one)
    assert cluster.open().number == 0
    loss = recover(cluster)
    assert loss is not None
    assert (loss.offset, loss.holder) == (4, two)
    assert cluster.part().blocks[0].is_unclean
    assert cluster.leader() == two


def test_who_waits_for_a_dead_block_does_not_keep_it_from_being_recovered() -> None:
    """Found by the simulator: --profile all --seconds 4 --seeds 157 (and 224, 1818)."""
    cluster = Cluster(brokers=2)
    cluster.topic(AckMode.RAFT, 1)
    cluster.write(5)
    old, new = cluster.leader(), next(b for b in cluster.brokers if b != cluster.leader())
    cluster.restart(old, "another disk")
    waiting = [cluster.send(lambda i: Reassign(i, *T0, (new,))) for _ in range(2)]
    assert not cluster.answers.keys() & set(waiting)
    loss = recover(cluster)
    assert loss is not None
    assert (loss.offset, loss.holder) == (0, None)
    assert [cluster.answers[request].error for request in waiting] == [None, None]
    assert cluster.open().replicas == (new,)
    assert cluster.leader() == new


def test_a_word_that_is_said_again_is_taken_once() -> None:
    """Requests that wait behind a roll stay in the order in which they first arrived."""
    cluster = Cluster(brokers=3)
    cluster.topic(AckMode.LEADER, 1)
    cluster.brokers[cluster.leader()].seals = False
    old = cluster.leader()
    others = [name for name in cluster.brokers if name != old]
    requests = [Reassign(100 + i, *T0, (other,)) for i, other in enumerate(others)]
    for request in (*requests, requests[0]):  # a client repeats its request until it gets an answer
        cluster.active.machine.step("client", request, cluster.now)
        cluster.run()
    cluster.brokers[old].seals = True
    cluster.pass_ms(5_000)
    assert cluster.open().replicas == (others[1],)


def test_a_recovery_that_is_told_to_have_failed_does_not_come_about_later() -> None:
    """A failed recovery is not carried out later, and does not undo the change for another
    client.
    """
    cluster = Cluster(brokers=2)
    cluster.topic(AckMode.RAFT, 1)
    cluster.write(5)
    old, new = cluster.leader(), next(b for b in cluster.brokers if b != cluster.leader())
    cluster.restart(old, "another disk")
    cluster.send(lambda i: Reassign(i, *T0, (new,)))
    cluster.crash_zk("zk-0")  # only the zkserver's commits are left
    cluster.start_zk("zk-1")
    for name in cluster.brokers:
        cluster.register(name)
    cluster.pass_ms(2 * SESSION_MS)
    zk = cluster.active

    def full(request: CoordRequest) -> bool:
        zk.machine.commit_failed(getattr(request, "tag", 0), StoreFull("full"), cluster.now)
        return False

    zk.on_submit = full
    with pytest.raises(StoreFull):
        recover(cluster)
    zk.on_submit = lambda request: True
    cluster.pass_ms(20_000)
    assert cluster.open().number == 0
    assert cluster.part().node.wanted is not None
    assert recover(cluster) is not None
    assert cluster.leader() == new


def test_who_told_the_end_has_another_disk_before_that_is_committed() -> None:
    """The best copy is lost, and the next best one determines the end; the block is not abandoned.

    Simulated: tests/data/plans/sealed-after-its-disk-was-known-to-be-gone.json.
    """
    cluster = Cluster()
    cluster.topic()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(5)
    cluster.write(9, one)
    cluster.brokers[two].seals = False
    cluster.restart(leader, "another disk")
    assert cluster.open().number == 0  # One answer is not enough.
    again = Broker(one, 2, "another disk, too")
    machine, late = cluster.active.machine, cluster.brokers[two]
    (answer,) = late.sealed(late.last(Seal))
    cluster.brokers[one] = again
    machine.step(one, again.registration(), cluster.now)
    # Now two answers are enough, and the new disk is about to be committed.
    machine.step(two, answer, cluster.now)
    cluster.run()
    cluster.pass_ms(1_000)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (5, (two,))
    assert not part.blocks[0].is_unclean
    assert part.node.losses == ()
    assert part.open_block.leader == two


# --- replicas that started anew -----------------------------------------------------------------


def test_everybody_starts_anew_and_one_with_another_disk() -> None:
    """Found by the simulator: --profile wipe --zkservers 2 --seconds 6 --seeds 64 (and 107)."""
    cluster = Cluster()
    cluster.topic()
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.write(6, leader)
    cluster.write(5, one)
    cluster.write(7, two)
    cluster.brokers[two].seals = False
    cluster.restart(leader)
    cluster.restart(one)
    assert cluster.open().in_sync == (two,)
    assert [entry.broker for entry in cluster.open().interrupted] == [leader, one]
    cluster.brokers[one].is_mute = True
    cluster.active.machine.step(one, cluster.brokers[one].registration(), cluster.now)
    cluster.restart(two, "another disk")
    assert cluster.open().number == 0  # The silent replica may have more records.
    cluster.brokers[one].is_mute = False
    cluster.pass_ms(5_000)
    part = cluster.part()
    assert (part.blocks[0].end, part.blocks[0].in_sync) == (6, (leader,))
    assert part.open_block.leader == leader
    assert set(part.open_block.replicas) == {leader, one, two}


def test_who_starts_anew_twice_has_what_it_had() -> None:
    """After the first restart the replica has synced all records that it found, so the second
    restart loses none.

    Simulated: tests/data/plans/started-anew-twice.json.
    """
    cluster = Cluster()
    cluster.topic(AckMode.LEADER, 2)
    leader, (one,) = cluster.leader(), cluster.followers()
    cluster.write(5)
    cluster.brokers[one].is_up = False
    cluster.restart(leader)
    (known,) = cluster.open().interrupted
    cluster.pass_ms(300)
    cluster.restart(leader)
    assert cluster.open().interrupted == (known,)
    cluster.restart(one, "another disk")
    cluster.pass_ms(1_000)
    assert (cluster.part().blocks[0].end, cluster.part().blocks[0].is_unclean) == (5, False)
    assert cluster.part().blocks[0].in_sync == (leader,)


def gone_on_alone() -> tuple[Cluster, str, list[str]]:
    """Return a leader that continues without its two followers, both of which have restarted."""
    cluster = Cluster()
    cluster.topic()
    cluster.write(5)
    leader, followers = cluster.leader(), cluster.followers()
    for name in followers:
        cluster.restart(name)
    cluster.pass_ms(300)
    cluster.write(9, leader)
    return cluster, leader, followers


def test_a_leader_that_goes_on_may_do_so_without_who_started_anew_twice() -> None:
    """The leader may have continued without these replicas since the first of their restarts."""
    cluster, leader, (one, two) = gone_on_alone()
    cluster.brokers[leader].is_up = False
    for name in (one, two):
        cluster.restart(name)
    cluster.restart(leader, "another disk")
    cluster.pass_ms(10_000)
    assert cluster.open().number == 0
    assert cluster.open().interrupted == ()


def test_the_leader_was_not_heard_of_any_more_when_the_others_started_anew() -> None:
    """Found by the simulator: --profile wipe --zkservers 2 --seconds 6 --seeds 18."""
    cluster = Cluster()
    cluster.topic()
    cluster.write(5)
    leader, (one, two) = cluster.leader(), cluster.followers()
    cluster.pass_ms(500)
    cluster.brokers[leader].is_up = False
    cluster.pass_ms(300)
    for name in (one, two):
        cluster.restart(name)
    assert cluster.open().in_sync == (leader,)
    cluster.restart(leader, "another disk")
    cluster.pass_ms(1_000)
    assert cluster.part().blocks[0].end == 5
    assert set(cluster.part().blocks[0].in_sync) >= {one, two}


def test_a_leader_may_have_gone_on_without_those_that_started_anew() -> None:
    cluster, leader, _ = gone_on_alone()
    cluster.restart(leader, "another disk")
    cluster.pass_ms(10_000)
    assert cluster.open().number == 0
    assert cluster.open().interrupted == ()
    loss = recover(cluster)
    assert loss is not None
    assert (loss.offset, cluster.part().blocks[0].is_unclean) == (5, True)
