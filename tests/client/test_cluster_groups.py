"""Groups of a cluster (PTP): coordinators and leaders die.

Each record is processed at least once.
"""

from __future__ import annotations

import pytest

import pymq
from pymq.core.message import Unsubscribe
from pymq.errors import FencedMember, NotSubscribed, RequestTimeout, UnknownTopic
from pymq.testing import Cluster
from pymq.testing.simulation.network import LinkFaults
from tests.seeds import seeds

OFFSETS = "__consumer_offsets"


def put(mq: pymq.Client, *numbers: int, topic: str = "t") -> None:
    with mq.producer(linger_ms=1) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def values(records: list[pymq.Record]) -> list[int]:
    return [int(record.value) for record in records]


def places(records: list[pymq.Record]) -> list[tuple[str, int]]:
    return [(record.partition, int(record.value)) for record in records]


def coordinator(mq: pymq.Client) -> str:
    found = mq.describe_topic(OFFSETS).partitions[0].leader
    assert found is not None
    return found


def led_by(mq: pymq.Client, topic: str, name: str) -> bool:
    return any(p.leader == name for p in mq.describe_topic(topic).partitions)


def work(consumer: pymq.Consumer, missing: set[int], turns: int = 60) -> list[int]:
    """Consume until all of *missing* is done; failed commits and redeliveries are allowed."""
    seen: list[int] = []
    for _ in range(turns):
        records = consumer.poll(5, timeout=1.0)
        seen += values(records)
        consumer.ack(records)
        try:
            consumer.commit(timeout=20.0)
        except FencedMember:
            continue
        missing.difference_update(values(records))
        if not missing:
            break
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_the_coordinator_dies(seed: int) -> None:
    """The consumer joins the next coordinator; no record is skipped, and committed offsets stay."""
    with Cluster(brokers=3, seed=seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        put(other, *range(40))
        with mq.consumer("t", group="g") as consumer:
            missing = set(range(40))
            first = consumer.poll(10, timeout=5.0)
            consumer.ack(first)
            consumer.commit()
            missing -= set(values(first))
            held = consumer.poll(5, timeout=5.0)
            cluster.crash(coordinator(mq))
            seen = work(consumer, missing)
            assert not missing
            assert set(values(held)) <= set(seen)
            assert not set(values(first)) & set(seen)
            assert sum(consumer.lag().values()) == 0


def test_a_move_is_noticed_soon() -> None:
    with Cluster(brokers=3, seed=11) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.consumer("t", group="g") as consumer:
            put(other, 1)
            consumer.ack(consumer.poll(timeout=5.0))
            consumer.commit()
            cluster.run(seconds=1)
            cluster.crash(coordinator(mq))
            put(other, 2)
            since = cluster.now
            assert values(consumer.poll(timeout=10.0)) == [2]
            assert cluster.now - since < 5


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_all_groups_are_listed_also_while_their_leader_changes(seed: int) -> None:
    """While a restarted broker has not loaded its partitions, it does not answer that there are no
    groups.
    """
    with Cluster(brokers=3, seed=21 + seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        names = [f"g{number}" for number in range(8)]
        for name in names:
            mq.reset_group(name, "t", 0)
        for broker in (*cluster.brokers, *cluster.brokers):
            cluster.restart(broker)
            until = cluster.now + 1.5
            while cluster.now < until:
                assert mq.groups() == names


def test_an_acknowledgement_that_came_to_nothing_is_not_reported_as_done() -> None:
    """If a new coordinator has no leases of the records, commit reports them as not
    acknowledged.
    """
    with Cluster(brokers=3, seed=12) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(5))
        with mq.consumer("t", group="g") as consumer:
            held = consumer.poll(timeout=5.0)
            cluster.crash(coordinator(mq))
            consumer.ack(held)
            with pytest.raises(FencedMember):
                consumer.commit(timeout=30.0)
            assert consumer.status().unacknowledged_refused >= len(held)
            missing = set(range(5))
            work(consumer, missing)
            assert not missing
            consumer.commit()
            assert consumer.lag() == {"0": 0}


def test_what_comes_again_is_not_settled_by_an_acknowledgement_of_what_came_before() -> None:
    """The records are leased again to the same consumer while it still processes them.

    If a commit reports them as settled, they must not be delivered again.
    """
    with Cluster(brokers=3, seed=16) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(5))
        with mq.consumer("t", group="g") as consumer:
            held = consumer.poll(timeout=5.0)
            assert values(held) == list(range(5))
            assert consumer.poll(timeout=0.0) == []  # the consumer has room for more records
            cluster.crash(coordinator(mq))
            # The consumer joins the next coordinator, which leases all of the records again.
            cluster.run(seconds=10)
            consumer.ack(held)
            with pytest.raises(FencedMember, match="delivered again"):
                consumer.commit(timeout=30.0)
            again = consumer.poll(timeout=5.0)
            assert values(again) == list(range(5))
            consumer.ack(again)
            consumer.commit()
            assert consumer.poll(timeout=1.0) == []
            assert consumer.lag() == {"0": 0}


def test_what_was_long_on_its_way_is_not_handed_out_after_another_has_settled_it() -> None:
    """Records that a replaced coordinator leased are not handed out, because its successor does not
    know these leases.
    """
    with Cluster(brokers=4, seed=17) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=1, acks="raft")
        with mq.consumer("t", group="g") as slow:
            cluster.run(seconds=3)
            data = next(name for name in cluster.brokers if name != coordinator(mq))
            mq.reassign("t", 0, [data])
            put(other, *range(5))
            cluster.run(seconds=3)
            cluster.cut(("client-0",), (data,))
            assert slow.poll(timeout=0.2) == []  # The records are leased, but do not arrive.
            cluster.crash(coordinator(other))
            with other.consumer("t", group="g") as quick:
                records = quick.poll(timeout=4.0)
                assert values(records) == list(range(5))
                quick.ack(records)
                quick.commit()
                cluster.heal()
                assert slow.poll(timeout=10.0) == []


def test_who_waits_for_what_was_leased_gets_it_from_the_next_coordinator() -> None:
    """A consumer requests records again if they arrive after their lease has ended.

    Simulated: seed 71688 of --profile all --seconds 4.
    """
    with Cluster(brokers=4, seed=17) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=1, acks="raft")
        with mq.consumer("t", group="g") as consumer:
            cluster.run(seconds=3)
            data = next(name for name in cluster.brokers if name != coordinator(mq))
            mq.reassign("t", 0, [data])
            put(other, *range(5))
            cluster.run(seconds=3)
            leaves = cluster.brokers[coordinator(other)]
            cluster.pause(data)
            cluster.world.after(100_000, lambda a, b: leaves.leave(2_000))
            cluster.world.after(500_000, lambda a, b: cluster.resume(data))
            assert values(consumer.poll(timeout=60.0))[:1] == [0]


@pytest.mark.parametrize("takes", ["poll", "until_end"])
def test_what_was_fetched_ahead_is_not_handed_out_after_another_has_settled_it(takes: str) -> None:
    """If a consumer was cut off together with a replaced coordinator, its prefetched records are
    not handed out.
    """
    with Cluster(brokers=3, seed=19) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(10))
        with mq.consumer("t", group="g") as slow:
            assert values([next(iter(slow))]) == [0]  # Nine more records are fetched.
            cluster.run(seconds=0.1)
            cluster.cut("client-0")
            cluster.crash(coordinator(other))
            with other.consumer("t", group="g") as quick:
                missing = set(range(10))
                work(quick, missing)
                assert not missing
                assert slow.poll(timeout=1.0) == []  # No coordinator confirms the leases.
                cluster.heal()
                if takes == "poll":
                    assert slow.poll(timeout=10.0) == []
                else:
                    assert list(slow.until_end()) == []


def test_what_was_fetched_ahead_is_handed_out_while_it_is_leased() -> None:
    """A slow application renews its leases from time to time, and its records are not fetched
    again.
    """
    with Cluster(brokers=3, seed=20) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(10))
        with mq.consumer("t", group="g") as consumer:
            found = []
            for record in consumer.until_end():
                found.append(record)
                cluster.run(seconds=2.0)
                consumer.ack(record)
            assert values(found) == list(range(10))
            assert {record.delivery_count for record in found} == {1}


def test_what_was_on_its_way_is_not_handed_out_of_a_paused_partition() -> None:
    """The records arrive while the partition is paused, and are held until a proof confirms their
    lease.
    """
    with Cluster(brokers=4, seed=17) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=1, acks="raft")
        with mq.consumer("t", group="g") as consumer:
            cluster.run(seconds=3)
            data = next(name for name in cluster.brokers if name != coordinator(mq))
            mq.reassign("t", 0, [data])
            put(other, *range(5))
            cluster.run(seconds=3)
            cluster.pause(data)
            assert consumer.poll(timeout=0.4) == []  # The records are leased, but do not arrive.
            cut = cluster.cut("client-0", coordinator(other))
            cluster.resume(data)
            assert consumer.poll(timeout=0.2) == []  # The records have arrived.
            consumer.pause("0")
            cluster.heal(cut)
            assert consumer.poll(timeout=2.0) == []
            consumer.resume("0")
            records = consumer.poll(timeout=2.0)
            assert values(records) == list(range(5))
            assert {record.delivery_count for record in records} == {1}


def test_what_is_at_hand_stays_leased_though_nobody_coordinates_for_a_while() -> None:
    """After a failed renewal the consumer renews its leases again, and sends its waiting
    acknowledgements.
    """
    with Cluster(brokers=1, seed=19) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t")
        put(other, *range(10))
        consumer = mq.consumer("t", group="g", ack_wait_s=24)
        # Nine more records are fetched, and leased until 24 s unless renewed.
        first = next(iter(consumer))
        cluster.run(seconds=4)
        cut = cluster.cut("broker-0")
        cluster.run(seconds=3)
        consumer.ack(first)
        cluster.run(seconds=2.5)
        cluster.heal(cut)
        cluster.run(seconds=18)
        assert consumer.committed() == {"0": 1}
        found = list(consumer.until_end())
        assert values(found) == list(range(1, 10))
        assert {record.delivery_count for record in found} == {1}
        consumer.close()


def test_a_partition_that_comes_back_is_watched_at_once() -> None:
    """The end of a returned partition is watched at once, however many partitions an earlier
    request covered.
    """
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=120)
        stays = cluster.client().consumer("t", group="g")
        goes = cluster.client().consumer("t", group="g")
        while {len(stays.assignment()), len(goes.assignment())} != {60}:
            assert not goes.poll(timeout=0.1)
            assert not stays.poll(timeout=0.1)
        moved = goes.assignment()
        goes.close()
        while len(stays.assignment()) < 120:
            assert not stays.poll(timeout=0.05)
        since = cluster.now
        with mq.producer(linger_ms=0) as producer:
            for name in moved[:10]:
                producer.send("t", b"1", partition=name).result()
        found: list[pymq.Record] = []
        while len(found) < 10:
            found += stays.poll(timeout=0.1)
        assert cluster.now - since < 1
        stays.close()


@pytest.mark.parametrize("is_early", [True, False])
def test_news_of_many_partitions_comes_at_once(is_early: bool) -> None:
    """The consumer reports lost partitions one by one, long before the coordinator answers.

    No lease is lost.
    """
    with Cluster(brokers=3, seed=21, delay_us=20_000, jitter_us=20_000) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=60)
        if is_early:
            put(other, *range(600))
        with mq.consumer("t", group="g") as consumer:
            assert is_early or consumer.poll(timeout=5.0) == []
            if not is_early:
                put(other, *range(600))
            found: list[pymq.Record] = []
            since = cluster.now
            while len(found) < 600 and cluster.now < since + 10:
                records = consumer.poll(timeout=1.0)
                consumer.ack(records)
                found += records
            assert sorted(values(found)) == list(range(600))
            assert {record.delivery_count for record in found} == {1}


@pytest.mark.parametrize("is_patient", [True, False])
def test_records_that_cannot_be_had_do_not_keep_others_away(is_patient: bool) -> None:
    """The only holder of a partition is cut off.

    Records of other partitions are delivered; the records of this partition follow in their order
    when its holder is back.
    """
    with Cluster(brokers=3, seed=22) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=3, replicas=1)
        with mq.consumer("t", group="g") as consumer, other.producer() as producer:
            leaders = {p.name: p.leader for p in mq.describe_topic("t").partitions}
            cut_off = next(n for n in leaders.values() if n and n != coordinator(mq))
            for name in leaders:
                producer.send_many("t", [b"0", b"1"], partition=name)
            producer.flush()
            found = consumer.poll(max_records=1, timeout=5.0)
            cluster.network.link(cut_off, "client-0").faults = LinkFaults(loss=1.0)
            since = cluster.now
            away = {name for name, leader in leaders.items() if leader == cut_off}
            for name in leaders.keys() - away:
                producer.send("t", b"2", partition=name)
            producer.flush()
            expected = {(name, n) for name in leaders.keys() - away for n in range(3)}
            while cluster.now < since + 20 and expected - set(places(found)):
                found += consumer.poll(timeout=20.0 if is_patient else 0.3)
            assert expected <= set(places(found))
            cluster.network.calm()
            while len(found) < len(expected) + 2 * len(away):
                found += consumer.poll(timeout=20.0)
            assert {record.delivery_count for record in found} == {1}
            for name in leaders:
                of_it = [place for place in places(found) if place[0] == name]
                assert of_it == sorted(of_it)


def test_an_answer_to_a_commit_is_lost() -> None:
    """The consumer sends the commit again, and the effect of the first one does not count as a
    refusal.
    """
    with Cluster(brokers=1, seed=13) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="raft")
        put(mq, *range(5))
        with mq.consumer("t", group="g") as consumer:
            records = consumer.poll(timeout=5.0)
            consumer.ack(records)
            cluster.network.link("broker-0", "client-0").faults = LinkFaults(loss=1.0)
            cluster.world.after(300_000, lambda a, b: cluster.network.calm())
            consumer.commit()
            assert consumer.status().unacknowledged_refused == 0
            assert consumer.committed() == {"0": records[-1].offset + 1}


def test_nobody_coordinates() -> None:
    """A commit fails after its timeout, and the error gives the reason.

    Later the group continues.
    """
    with Cluster(brokers=3, seed=14) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(5))
        with mq.consumer("t", group="g") as consumer:
            consumer.ack(consumer.poll(timeout=5.0))
            for name in cluster.brokers:
                cluster.crash(name)
            since = cluster.now
            with pytest.raises(RequestTimeout, match="coordinator of group 'g'"):
                consumer.commit(timeout=5.0)
            assert cluster.now - since < 6
            idle = consumer.status().idle
            assert idle is not None
            assert "coordinator of group 'g'" in idle
            for name in cluster.brokers:
                cluster.restart(name)
            missing = set(range(5))
            work(consumer, missing)
            assert not missing


@pytest.mark.parametrize("seed", range(3))
def test_messages_get_lost(seed: int) -> None:
    with Cluster(brokers=3, seed=seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        with mq.consumer("t", group="g", ack_wait_s=3.0) as consumer:
            for broker in cluster.brokers:
                for link in (("client-0", broker), (broker, "client-0")):
                    cluster.network.link(*link).faults = LinkFaults(loss=0.1, duplicate=0.05)
            missing = set(range(40))
            put(other, *range(40))
            work(consumer, missing)
            assert not missing
            cluster.network.calm()


@pytest.mark.parametrize("seed", [8, 9, 15, 18, 22])
def test_leased_records_lie_on_other_brokers(seed: int) -> None:
    """An iteration to the end waits for leased records that arrive late."""
    with Cluster(brokers=4, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, acks="raft")
        for block in range(4):
            mq.reassign("t", 0, [f"broker-{block}"])
            put(mq, *range(10 * block, 10 * block + 10))
            cluster.run(seconds=0.5)
        with mq.consumer("t", group="g") as consumer:
            found = []
            for record in consumer.until_end():
                found.append(int(record.value))
                consumer.ack(record)
            assert found == list(range(40))
            consumer.commit()
            assert consumer.lag() == {"0": 0}


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_dies_while_it_is_consumed(seed: int) -> None:
    with Cluster(brokers=3, seed=20 + seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=3, replicas=3, acks="raft")
        put(other, *range(30))
        with mq.consumer("t", group="g") as consumer:
            missing = set(range(60))
            seen = work(consumer, missing, turns=2)
            who = coordinator(mq)
            cluster.crash(next(n for n in cluster.brokers if n != who and led_by(mq, "t", n)))
            put(other, *range(30, 60))
            seen += work(consumer, missing)
            assert not missing
            assert sorted(seen) == list(range(60))  # The leases were still valid after the fault.


def test_all_brokers_are_restarted_one_by_one() -> None:
    with Cluster(brokers=3, zkservers=2, seed=30) as cluster:
        mq, other, third = cluster.client(), cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        first, second = mq.consumer("t", group="g"), other.consumer("t", group="g")
        missing, seen = set(range(60)), set[int]()
        for turn, name in enumerate(cluster.brokers):
            put(third, *range(20 * turn, 20 * turn + 20))
            seen.update(work(first, missing, turns=2), work(second, missing, turns=2))
            cluster.stop(name)
            cluster.run(seconds=0.5)
            cluster.restart(name)
            cluster.run(seconds=1.0)
        for _ in range(20):
            seen.update(work(first, missing, turns=2), work(second, missing, turns=2))
            if not missing:
                break
        # A commit may report that earlier acknowledgements have failed, although its own have not.
        # So `missing` may keep records that no member gets again.
        assert seen == set(range(60))
        assert set(mq.describe_group("g").lag.values()) == {0}
        first.close()
        second.close()


@pytest.mark.parametrize("seed", range(4))
def test_until_end_includes_what_a_consumer_had_that_has_left_just_now(seed: int) -> None:
    """`until_end` also waits for the records of a member that is leaving the group. This holds even
    if the consumer does not know its own partitions yet.
    """
    with Cluster(brokers=1, seed=seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=4)
        put(mq, *range(40))
        with mq.consumer("t", group="g") as stays:
            leaves = other.consumer("t", group="g")
            while len(stays.assignment()) != 2:
                cluster.run(0.1)
            rest = list(leaves.until_end())
            done = list(stays.until_end())
            stays.ack(done)
            assert sorted(values(done + rest)) == list(range(40))
            leaves.close()
            assert sorted(values(list(stays.until_end()))) == sorted(values(rest))


@pytest.mark.parametrize(("brokers", "after_s"), [(3, 0), (3, 10), (1, 10)])
def test_the_first_group_of_a_cluster_waits_for_nothing(brokers: int, after_s: int) -> None:
    """The zkserver creates the offsets topic, empty, as soon as there are enough brokers."""
    with Cluster(brokers=brokers, zkservers=2, seed=1) as cluster:
        cluster.run(after_s)
        mq = cluster.client()
        mq.create_topic("t", replicas=brokers, acks="raft")
        put(mq, 1)
        since = cluster.now
        with mq.consumer("t", group="g") as consumer:
            assert values(consumer.poll(timeout=5.0)) == [1]
        assert cluster.now - since < 0.1
        offsets = mq.describe_topic(OFFSETS).partitions
        assert {len(found.replicas) for found in offsets} == {brokers}


def test_until_end_goes_on_over_a_move() -> None:
    with Cluster(brokers=3, seed=31) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(30))
        with mq.consumer("t", group="g") as consumer:
            seen: set[int] = set()
            for record in consumer.until_end():
                if len(seen) == 10 and int(record.value) not in seen:
                    cluster.crash(coordinator(mq))
                seen.add(int(record.value))
                consumer.ack(record)
            consumer.commit()
            assert seen == set(range(30))
            assert consumer.lag() == {"0": 0}


def test_a_group_keeps_its_offsets_when_a_partition_leaves_the_coordinator() -> None:
    """The coordinator's broker loses all replicas of a partition.

    This call does not delete the topic.
    """
    with Cluster(brokers=4, seed=32) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=4, acks="leader")
        put(mq, *range(20))
        with mq.consumer("t", group="g") as consumer:
            for record in consumer.until_end():
                consumer.ack(record)
            consumer.commit()
            before = consumer.committed()
            mq.create_partition("t", "new")
            rest = [name for name in cluster.brokers if name != coordinator(mq)]
            mq.reassign("t", "new", rest)
            cluster.run(seconds=5)
            assert consumer.committed()["0"] == before["0"]


@pytest.mark.parametrize("loses_first_holder", [False, True])
def test_a_coordinator_reads_what_only_other_brokers_hold(loses_first_holder: bool) -> None:
    """A new coordinator reads older blocks of its partition from the other brokers that
    hold them.
    """
    with Cluster(brokers=4, seed=33) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="raft", replicas=3)
        put(mq, *range(10))
        with mq.consumer("t", group="g") as consumer:
            for record in consumer.until_end():
                consumer.ack(record)
            consumer.commit()
        (partition,) = mq.describe_topic(OFFSETS).partitions
        (new,) = {*cluster.brokers} - {*partition.replicas}
        mq.reassign(OFFSETS, "0", [new])
        if loses_first_holder:
            cluster.crash(partition.replicas[0], "all")
        put(mq, *range(10, 15))
        with mq.consumer("t", group="g") as consumer:
            assert values(list(consumer.until_end())) == [10, 11, 12, 13, 14]
        assert coordinator(mq) == new


def test_dead_letters_are_as_safe_as_what_they_were() -> None:
    """A dead letter is stored as safely as its original, which is acknowledged once the letter is
    written.
    """
    with Cluster(brokers=3, seed=8) as cluster:
        mq = cluster.client()
        mq.create_topic("jobs", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("jobs", b"x").result()
        with mq.consumer("jobs", group="g", max_deliver=1) as consumer:
            for record in consumer.until_end():
                consumer.nack(record)
        (letters,) = mq.describe_topic("jobs.dlq").partitions
        assert (len(letters.replicas), letters.acks) == (3, pymq.AckMode.RAFT)


@pytest.mark.parametrize("seed", range(3))
def test_a_poison_record_does_not_outlive_its_coordinators(seed: int) -> None:
    """A change of coordinator does not reset the delivery count."""
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("a", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("a", b"poison").result()
        counts: list[int] = []
        with mq.consumer("a", group="g", max_deliver=3, ack_wait_s=5) as consumer:
            while "a.dlq" not in mq.topics() and len(counts) < 10:
                for record in consumer.poll(timeout=10):
                    counts.append(record.delivery_count)
                    consumer.nack(record)
                cluster.run(seconds=1)
                coordinator = next(
                    name
                    for name, host in cluster.brokers.items()
                    if host.broker is not None and host.broker.coordinators.by_index
                )
                cluster.crash(coordinator)
                cluster.run(seconds=1)
                cluster.restart(coordinator)
                cluster.run(seconds=2)
        # A delivery may be in progress when the coordinator changes; it must not change the counts.
        assert counts == sorted(counts)
        assert counts[-1] == 3
        assert "a.dlq" in mq.topics()


def poll_on(consumer: pymq.Consumer) -> None:
    """Poll for half a minute."""
    for _ in range(30):
        consumer.poll(timeout=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_coordinator_that_has_not_heard_does_not_keep_an_unsubscribed_member(seed: int) -> None:
    """If a coordinator missed the unsubscription, its successor learns of it from the zkserver."""
    with Cluster(brokers=3, seed=60 + seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(5))
        with mq.consumer("t", group="g") as consumer:
            consumer.ack(consumer.poll(1, timeout=5.0))
            consumer.commit()
            other.questions.ask(lambda r: Unsubscribe(r, "g", "t", "g"))
            cluster.crash(coordinator(other))
            with pytest.raises(NotSubscribed):
                poll_on(consumer)
            assert other.describe_group("g").consumers == ()


def test_a_consumer_of_a_topic_that_was_made_again_outlives_a_coordinator() -> None:
    """A recreated topic has no subscriptions; its consumers are subscribed again."""
    with Cluster(brokers=3, seed=64) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.consumer("t", group="g") as consumer:
            other.delete_topic("t")
            with pytest.raises((UnknownTopic, FencedMember)):
                poll_on(consumer)
            other.create_topic("t", replicas=3, acks="raft")
            for number in range(2):
                put(other, number)
                records: list[pymq.Record] = []
                for _ in range(60):
                    try:
                        records += consumer.poll(timeout=1.0)
                        consumer.ack(records)
                        consumer.commit(timeout=20.0)
                    except (UnknownTopic, FencedMember):
                        # Until the consumer has new metadata, it raises at once.
                        cluster.run(seconds=0.1)
                        continue
                    if number in values(records):
                        break
                assert number in values(records)
                if number == 0:
                    cluster.crash(coordinator(other))
