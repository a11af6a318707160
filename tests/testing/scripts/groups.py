"""Groups: acknowledgements stay valid wherever the coordinator is."""

from __future__ import annotations

from pymq import Consumer, Record
from pymq.errors import FencedMember
from tests.testing.scripts.desk import PATIENCE_S, Desk, scenario


@scenario(offsets_replicas=1, brokers=1)
def commit(desk: Desk) -> None:
    """Join, work, acknowledge, commit, leave."""
    desk.topic(replicas=1)
    desk.send(5)
    desk.settle()
    desk.work()


@scenario()
def commit_with_replicas(desk: Desk) -> None:
    """Send, receive, acknowledge and commit, twice, with three brokers."""
    desk.topic()
    desk.send(3)
    desk.settle()
    desk.work()
    desk.send(2)
    desk.settle()
    desk.work()


@scenario()
def give_back_and_bury(desk: Desk) -> None:
    """A returned record is delivered again; after two deliveries it is a dead letter."""
    desk.topic()
    desk.topic("dead")
    desk.send(4)
    desk.settle()

    def handle(consumer: Consumer, record: Record) -> bool:
        if record.value.startswith(b"1 "):
            consumer.nack(record)
            desk.groups["g", "t"].add(("t", record.partition, record.offset))
            return False
        return True

    desk.work(handle=handle, max_deliver=2, dead_letter="dead")


@scenario()
def two_members_share(desk: Desk) -> None:
    """The second member joins while the first works, and takes over when the first leaves
    (KIP-429).
    """
    desk.topic(partitions=2)
    desk.send(3, partition="0")
    desk.send(3, partition="1")
    desk.settle()
    done = desk.groups.setdefault(("g", "t"), set())
    other = desk.cluster.client()
    try:
        with desk.mq.consumer("t", group="g") as first:
            mine = first.poll(2, timeout=5.0)
            with other.consumer("t", group="g") as second:
                theirs = second.poll(timeout=2.0)
                done.update(("t", r.partition, r.offset) for r in (*mine, *theirs))
                for consumer, records in ((first, mine), (second, theirs)):
                    consumer.ack(records)
                    desk.insist(consumer.commit, timeout=PATIENCE_S)
    except FencedMember:
        pass  # the leased records are delivered again, to the next member
    desk.work()


@scenario(session_ms=600, heartbeat_ms=100)
def the_coordinator_dies(desk: Desk) -> None:
    """The coordinator dies, and another broker loads its groups."""
    desk.topic()
    desk.send(3)
    desk.settle()
    desk.work()
    coordinator = desk.leader("__consumer_offsets")
    desk.cluster.crash(coordinator)
    desk.send(2)
    desk.settle()
    desk.work()
    desk.cluster.restart(coordinator)


@scenario(brokers=4)
def the_coordinator_moves(desk: Desk) -> None:
    """Other brokers get the coordinator's partition: emigration, then immigration."""
    desk.topic()
    desk.send(3)
    desk.settle()
    desk.work()
    rest = desk.followers("__consumer_offsets")
    desk.insist(desk.mq.decommission, desk.leader("__consumer_offsets"))
    assert rest
    desk.send(2)
    desk.settle()
    desk.work()


@scenario(brokers=1)
def reset(desk: Desk) -> None:
    """An administrator resets a group to the beginning."""
    desk.topic(replicas=1)
    desk.send(4)
    desk.settle()
    desk.work()
    desk.insist(desk.mq.reset_group, "g", "t", "begin")
    desk.work()
