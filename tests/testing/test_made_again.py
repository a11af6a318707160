"""A topic is deleted and created again while clients send to it and read it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pymq.client.option_types import Reset
from pymq.errors import OffsetOutOfRange, PymqError, UnknownTopic
from pymq.testing import Cluster


@pytest.mark.parametrize("reset", ["begin", "end"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_group_gets_what_comes_into_the_topic_that_was_made_again(
    count: int, reset: Reset
) -> None:
    """In an earlier version members reported the ends of the earlier topic, and the group began
    there.
    """
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096, retention_bytes=4096)
        clients = [cluster.client() for _ in range(count)]
        with mq.producer() as producer:
            for number in range(30):
                producer.send("t", b"%0900d" % number).result()
        cluster.run(seconds=12)
        assert mq.describe_topic("t").partitions[0].blocks[0].start_offset > 10
        members = [c.consumer("t", group="g", auto_offset_reset=reset) for c in clients]
        got: list[bytes] = []

        def poll() -> None:
            for member in members:
                try:
                    for record in member.poll(100, timeout=0.2):
                        got.append(record.value)
                        member.ack(record)
                except PymqError:
                    cluster.run(seconds=0.3)  # the topic is being deleted, or is already deleted

        for _ in range(3):
            poll()
        mq.delete_topic("t")
        mq.create_topic("t", replicas=3, acks="raft")
        for _ in range(50):
            poll()
        got.clear()
        sent = [b"new %d" % number for number in range(10)]
        with mq.producer() as producer:
            for value in sent:
                producer.send("t", value).result()
        for _ in range(20):
            poll()
        assert sorted(got) == sent
        for member in members:
            member.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_group_of_a_topic_that_was_made_again_breaks_no_rule(seed: int) -> None:
    """In an earlier version, acknowledgements in the earlier topic counted for the new one."""

    def consume(count: int) -> list[bytes]:
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(count)]).result()
        with mq.consumer("t", group="g") as consumer:
            got = []
            for record in consumer.until_end():
                got.append(record.value)
                consumer.ack(record)
            consumer.commit()
        return got

    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        for count in (20, 5, 9):
            mq.create_topic("t")
            assert consume(count) == [b"%d" % number for number in range(count)]
            mq.delete_topic("t")
        cluster.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_that_was_made_again_is_not_waited_for(seed: int) -> None:
    """In an earlier version a request about the earlier topic kept the consumer from requesting
    again for up to a second.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("t", b"old").result()
        member = cluster.client().consumer("t", group="g")
        while not (records := member.poll(1, timeout=0.2)):
            pass
        member.ack(records[0])
        member.commit()
        member.poll(1, timeout=0.5)
        mq.delete_topic("t")
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("t", b"new").result()
        sent_at = cluster.world.now
        while True:
            try:
                if member.poll(1, timeout=0.2):
                    break
            except PymqError:
                cluster.run(seconds=0.05)
        assert cluster.world.now - sent_at < 500_000
        member.close()


@pytest.mark.parametrize("stays", [False, True])
def test_a_topic_that_is_made_again_while_its_groups_have_no_coordinator(*, stays: bool) -> None:
    """A new coordinator does not learn of the deletion: in an earlier version the group continued
    at its offset in the earlier topic.
    """
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer:
            for number in range(5):
                producer.send("t", b"old %d" % number).result()
        client, got = cluster.client(), list[bytes]()
        member = client.consumer("t", group="g")

        def poll(wanted: int) -> None:
            for _ in range(60):
                try:
                    for record in member.poll(10, timeout=0.5):
                        got.append(record.value)
                        member.ack(record)
                except PymqError:
                    cluster.run(seconds=0.3)  # the topic is being deleted, or is already deleted
                if len(got) >= wanted:
                    return

        poll(5)
        member.commit()
        if not stays:
            member.close()
        coordinator = mq.describe_topic("__consumer_offsets").partitions[0].leader
        assert coordinator is not None
        cluster.crash(coordinator)
        mq.delete_topic("t")
        mq.create_topic("t", replicas=2, acks="raft")
        got.clear()
        sent = [b"new %d" % number for number in range(8)]
        with mq.producer() as producer:
            for value in sent:
                producer.send("t", value).result()
        if not stays:
            cluster.run(seconds=5)
            member = client.consumer("t", group="g")
        poll(len(sent))
        assert got == sent
        member.close()
        cluster.restart(coordinator)
        cluster.run(seconds=10)
        member = client.consumer("t", group="g")
        poll(len(sent) + 1)
        assert got == sent, "who hears of the deletion late goes by the id"
        member.close()


def test_who_makes_a_topic_again_finds_its_leader() -> None:
    """The new topic's epochs are lower: in an earlier version the client considered the old topic's
    leader as the new one's.
    """
    with Cluster(brokers=2, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            before = mq.describe_topic("t").partitions[0]
            (other,) = {"broker-0", "broker-1"} - {before.leader}
            mq.reassign("t", "0", [other])
            cluster.run(seconds=2)
            assert producer.send("t", b"old").result().offset == 0
            assert mq.describe_topic("t").partitions[0].epoch > before.epoch
            mq.delete_topic("t")
            mq.create_topic("t")
            assert mq.describe_topic("t").partitions[0].leader == before.leader
            assert producer.send("t", b"new").result(timeout=5).offset == 0


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_reader_is_told_that_its_position_is_in_another_topic(count: int, is_own: bool) -> None:
    """In an earlier version the reader skipped as many records of the new topic as it had read of
    the old one.
    """
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        reader = (mq if is_own else cluster.client()).consumer("t", mode="psb")
        with mq.producer(linger_ms=0) as producer:
            for _ in range(5):
                producer.send("t", b"old").result()
            got: list[bytes] = []
            while len(got) < 5:
                got += [record.value for record in reader.poll(10, timeout=0.3)]
            mq.delete_topic("t")
            mq.create_topic("t", replicas=3, acks="raft")
            sent = [b"new %d" % number for number in range(count)]
            for value in sent:
                producer.send("t", value).result()
        for _ in range(2):  # the error is raised repeatedly, until the reader seeks
            with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
                reader.poll(10, timeout=2)
        reader.seek("0", "begin")
        got.clear()
        while len(got) < count:
            got += [record.value for record in reader.poll(10, timeout=0.3)]
        assert got == sent
        reader.close()


@pytest.mark.parametrize("partition", [None, 0])
def test_a_reader_hears_that_its_topic_is_there_again(partition: int | None) -> None:
    """In an earlier version a reader of one partition never requested the metadata of the new
    topic.
    """
    with Cluster(brokers=1, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        reader = cluster.client().consumer("t", mode="psb", partition=partition)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"old").result()
            assert reader.poll(10, timeout=1)
            mq.delete_topic("t")
            for _ in range(2):
                with pytest.raises(UnknownTopic):
                    reader.poll(10, timeout=5)
            mq.create_topic("t")
            for _ in range(2):  # the first call may use cached metadata, the second one requests it
                with suppress(UnknownTopic, OffsetOutOfRange):
                    reader.poll(10, timeout=1)
                cluster.run(seconds=0.1)
            with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
                reader.poll(10, timeout=1)
        reader.close()


def test_a_named_producer_has_written_nothing_to_a_topic_that_was_made_again() -> None:
    """In an earlier version the producer got the count of the earlier topic, and skipped as many
    records.
    """
    with Cluster(brokers=1, seed=0) as cluster:
        mq = cluster.client()
        with mq.producer(linger_ms=0, producer_id="me") as producer:
            for _ in range(2):
                mq.create_topic("t")
                assert producer.next_sequence("t", 0) == 0
                for number in range(3):
                    assert producer.send("t", b"x").result().offset == number
                assert producer.next_sequence("t", 0) == 3
                mq.delete_topic("t")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2)])
def test_a_producer_sends_to_the_partitions_that_there_are_now(before: int, after: int) -> None:
    """In an earlier version records failed if their keys belonged to a partition that the new topic
    does not have.
    """
    with Cluster(brokers=1, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=before)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"old").result()
            mq.delete_topic("t")
            mq.create_topic("t", partitions=after, max_record_bytes=10_000_000)
            producer.send("t", b"new", partition=0).result()
            sent = [producer.send("t", b"new", key=b"%d" % number) for number in range(40)]
            assert {delivery.result().partition for delivery in sent} == {
                str(number) for number in range(after)
            }
            producer.send("t", bytes(5_000_000)).result()


def test_a_producer_is_told_at_once_what_partitions_are_called_now() -> None:
    with Cluster(brokers=1, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=["old"])
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"x", partition="old").result()
            mq.delete_topic("t")
            mq.create_topic("t", partitions=["new"])
            assert producer.send("t", b"x", partition="new").result().partition == "new"


@pytest.mark.parametrize("reset", ["begin", "end"])
def test_a_group_does_not_take_the_topic_before_for_the_one_that_there_is(reset: Reset) -> None:
    """In an earlier version, if the leader had not learned of the new topic, the group lost as many
    records as the old topic had.
    """
    with Cluster(brokers=1, seed=0) as cluster:
        mq, client = cluster.client(), cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            for _ in range(5):
                producer.send("t", b"old").result()
        member, got = client.consumer("t", group="g", auto_offset_reset=reset), list[bytes]()

        def poll(seconds: float) -> None:
            until = cluster.now + seconds
            while cluster.now < until:
                for record in member.poll(10, timeout=0.2):
                    got.append(record.value)
                    member.ack(record)

        poll(1)
        member.commit()
        cut = cluster.cut("zkserver-0", "broker-0", one_way=True)
        mq.delete_topic("t")
        mq.create_topic("t")
        # the member learns of the new topic, the broker does not
        client.questions.topic_metadata("t")
        got.clear()
        poll(1)
        cluster.heal(cut)
        while not mq.describe_group("g").committed:
            poll(0.5)
        sent = [b"new %d" % number for number in range(7)]
        with mq.producer() as producer:
            for value in sent:
                producer.send("t", value).result()
        poll(2)
        assert got == sent
        member.close()
