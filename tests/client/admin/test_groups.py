"""Consumer groups: assignment, leases, redelivery, acknowledgement and dead letters."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from pymq.errors import InvalidName, NotSubscribed, UnknownGroup, UnknownTopic
from tests.client.helpers import opened, polled


@pytest.fixture(params=["memory", "folder", "zmq"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pymq.Client]:
    with opened(request.param, tmp_path) as client:
        client.create_topic("t", partitions=4)
        yield client


def fill(mq: pymq.Client, count: int, topic: str = "t") -> None:
    with mq.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def numbers(records: Iterator[pymq.Record] | list[pymq.Record]) -> list[int]:
    return [int(record.value) for record in records]


def test_what_is_acknowledged_is_done(mq: pymq.Client) -> None:
    """No consumer gets an acknowledged record again.

    Unacknowledged records are.
    """
    fill(mq, 100)
    with mq.consumer("t", group="g") as first:
        for record in first.until_end():
            if int(record.value) % 2:
                first.ack(record)
        first.commit()
        assert sum(first.lag().values()) >= 50
    with mq.consumer("t", group="g") as second:
        again = list(second.until_end())
        assert sorted(numbers(again)) == list(range(0, 100, 2))
        assert {record.delivery_count for record in again} == {2}
        second.ack(again)
        second.commit()
        assert sum(second.lag().values()) == 0
        assert second.status().idle == "it has reached the end of all its partitions"
    with mq.consumer("t", group="g") as third:
        assert list(third.until_end()) == []


def test_offsets_outlive_a_restart(tmp_path: Path) -> None:
    """After reopening, the group keeps its committed offsets and the acknowledgements
    above them.
    """
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        fill(mq, 20)
        with mq.consumer("t", group="g") as consumer:
            records = consumer.poll(20)
            consumer.ack(records[:5])
            consumer.ack(records[10:12])
    with pymq.open(tmp_path) as mq, mq.consumer("t", group="g") as consumer:
        assert consumer.committed() == {"0": 5}
        assert numbers(consumer.until_end()) == [5, 6, 7, 8, 9, *range(12, 20)]
        assert mq.groups() == ["g"]


def test_nack_comes_again_and_ends_as_a_dead_letter(mq: pymq.Client) -> None:
    """After max_deliver deliveries the record becomes a dead letter, and its headers contain its
    origin.
    """
    mq.create_topic("jobs")
    fill(mq, 3, "jobs")
    seen: Counter[int] = Counter()
    with mq.consumer("jobs", group="g", max_deliver=3) as consumer:
        for record in consumer.until_end():
            seen[int(record.value)] += 1
            assert record.delivery_count == seen[int(record.value)]
            if record.value == b"1":
                consumer.nack(record)
            else:
                consumer.ack(record)
        assert seen == {0: 1, 1: 3, 2: 1}
        assert consumer.poll(timeout=0.2) == []
        consumer.commit()
        assert sum(consumer.lag().values()) == 0
    with mq.consumer("jobs.dlq", mode="psb") as dead:
        (letter,) = dead.until_end()
    assert (letter.value, letter.key) == (b"1", b"1")
    assert dict(letter.headers)["pymq.topic"] == b"jobs"
    assert dict(letter.headers)["pymq.offset"] == b"1"
    assert dict(letter.headers)["pymq.delivery_count"] == b"3"


@pytest.mark.parametrize("limit", [1_000, 1 << 20, 2 << 20])
def test_the_largest_record_can_be_a_dead_letter(mq: pymq.Client, limit: int) -> None:
    """The headers with its origin make a dead letter larger than the record.

    The dead-letter topic still accepts such a letter.
    """
    mq.create_topic("jobs", max_record_bytes=limit)
    with mq.producer() as producer:
        producer.send("jobs", bytes(limit))
    with mq.consumer("jobs", group="g", max_deliver=1) as consumer:
        for record in consumer.until_end():
            consumer.nack(record)
        consumer.commit()
        assert consumer.lag() == {"0": 0}
    with mq.consumer("jobs.dlq", mode="psb") as dead:
        (letter,) = dead.until_end()
    assert len(letter.value) == limit


def test_a_lease_that_runs_out_is_delivered_again(mq: pymq.Client) -> None:
    """If a lease expires, another consumer may get the record, and the late acknowledgement is
    refused.
    """
    mq.create_topic("jobs")
    fill(mq, 1, "jobs")
    with mq.consumer("jobs", group="g", ack_wait_s=0.05) as slow:
        (record,) = slow.poll(1)
        (again,) = slow.poll(1, timeout=5)
        assert again.offset == record.offset
        assert again.delivery_count == 2


def test_a_delay_is_kept(mq: pymq.Client) -> None:
    """A record that was returned with a delay is not delivered before the delay has passed."""
    mq.create_topic("jobs")
    fill(mq, 1, "jobs")
    with mq.consumer("jobs", group="g") as consumer:
        (record,) = consumer.poll(1)
        consumer.nack(record, delay=0.2)
        assert consumer.poll(1, timeout=0.05) == []
        assert len(consumer.poll(1, timeout=5)) == 1


@pytest.mark.parametrize("workers", [2, 4, 7])
def test_a_group_shares_a_topic(mq: pymq.Client, workers: int) -> None:
    """Every record is delivered once, with more partitions than consumers and vice versa."""
    fill(mq, 2_000)
    found: list[list[int]] = [[] for _ in range(workers)]
    consumers = [mq.consumer("t", group="g") for _ in range(workers)]
    for index, consumer in enumerate(consumers):
        records = consumer.poll(1, timeout=0)  # the consumer gets its new assignment here
        found[index] += numbers(records)
        consumer.ack(records)

    end = time.monotonic() + 60  # on a busy machine a consumer may get no records for long

    def work(index: int) -> None:
        while sum(map(len, found)) < 2_000 and time.monotonic() < end:
            records = consumers[index].poll(50, timeout=0.5)
            found[index] += numbers(records)
            consumers[index].ack(records)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for consumer in consumers:
        consumer.close()
    everything = Counter(number for part in found for number in part)
    assert sorted(everything) == list(range(2_000))
    assert set(everything.values()) == {1}
    assert all(found[index] for index in range(min(workers, 4)))


def test_partitions_go_over_when_a_consumer_leaves(mq: pymq.Client) -> None:
    """Both consumers are notified.

    The second consumer gets the records that the first had not settled.
    """
    fill(mq, 40)
    gained: list[tuple[str, ...]] = []
    with mq.consumer("t", group="g", on_assigned=gained.append) as stays:
        leaves = mq.consumer("t", group="g")
        stays.poll(1, timeout=0)
        unsettled = leaves.poll(40)
        assert unsettled
        leaves.close()
        seen = numbers(stays.until_end())
        assert set(numbers(unsettled)) <= set(seen)
        assert set(stays.assignment()) == {"0", "1", "2", "3"}
        assert gained[0]


def test_auto_ack_acknowledges_by_going_on(mq: pymq.Client) -> None:
    """Asking for the next record acknowledges the previous one, not the current one."""
    mq.create_topic("jobs")
    fill(mq, 5, "jobs")
    with mq.consumer("jobs", group="g", auto_ack=True) as consumer:
        iterator = iter(consumer)
        assert numbers([next(iterator), next(iterator), next(iterator)]) == [0, 1, 2]
        consumer.commit()
        assert consumer.committed() == {"0": 2}


def test_going_on_does_not_acknowledge_what_was_given_back(mq: pymq.Client) -> None:
    """With auto_ack a poll acknowledges the records of the last poll, except those that nack has
    returned.
    """
    mq.create_topic("jobs")
    fill(mq, 3, "jobs")
    with mq.consumer("jobs", group="g", auto_ack=True) as consumer:
        records = consumer.poll(3)
        consumer.nack(records[1])
        (again,) = consumer.poll(3, timeout=5)
        assert (again.value, again.delivery_count) == (b"1", 2)


def test_what_was_given_back_in_an_iteration_is_not_acknowledged_in_vain(mq: pymq.Client) -> None:
    mq.create_topic("jobs")
    fill(mq, 3, "jobs")
    with mq.consumer("jobs", group="g", auto_ack=True) as consumer:
        seen = []
        for record in consumer.until_end():
            seen.append((int(record.value), record.delivery_count))
            if seen[-1] == (1, 1):
                consumer.nack(record)
        assert seen == [(0, 1), (1, 1), (2, 1), (1, 2)]
        consumer.commit()
        assert consumer.status().unacknowledged_refused == 0


def test_push_gives_back_what_the_application_fails_on(mq: pymq.Client) -> None:
    """on_record is called for each record, and again for a record on which it has raised."""
    mq.create_topic("jobs")
    seen: list[tuple[int, int]] = []
    done, bound = threading.Event(), threading.Event()

    def on_record(record: pymq.Record) -> None:
        assert bound.wait(10)
        seen.append((int(record.value), record.delivery_count))
        if record.value == b"1" and record.delivery_count == 1:
            raise RuntimeError("not this time")
        consumer.ack(record)
        if len(seen) == 4:
            done.set()

    fill(mq, 3, "jobs")
    consumer = mq.consumer("jobs", group="g", delivery="push", on_record=on_record)
    bound.set()
    assert done.wait(10)
    consumer.close()
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1)]


def test_a_group_is_described_and_reset(mq: pymq.Client) -> None:
    """The description has members, assignment, offsets and lag.

    A group without members can be reset.
    """
    fill(mq, 12)
    with mq.consumer("t", group="g") as consumer:
        consumer.ack(list(consumer.until_end()))
        consumer.commit()
        state = mq.describe_group("g")
        assert sum(state.committed.values()) == 12
        assert sum(state.lag.values()) == 0
        assert len(state.members) == 1
        with pytest.raises(pymq.errors.InvalidRequest):
            mq.reset_group("g", "t")
    mq.reset_group("g", "t", "begin")
    with mq.consumer("t", group="g") as consumer:
        assert sorted(numbers(consumer.until_end())) == list(range(12))
    with pytest.raises(pymq.errors.UnknownGroup):
        mq.describe_group("nobody")


def test_a_group_is_deleted_with_its_offsets(mq: pymq.Client) -> None:
    fill(mq, 3)
    with mq.consumer("t", group="g") as consumer:
        for record in consumer.poll(3, timeout=10):
            consumer.ack(record)
        consumer.commit()
        with pytest.raises(pymq.errors.InvalidRequest):
            mq.delete_group("g")
    mq.delete_group("g")
    assert mq.groups() == []
    with pytest.raises(pymq.errors.UnknownGroup):
        mq.delete_group("g")


def test_batches_are_leased_and_acknowledged(mq: pymq.Client) -> None:
    """poll_batches returns columns in a group, and one call acknowledges a batch."""
    mq.create_topic("jobs")
    with mq.producer() as producer:
        producer.send_many("jobs", [b"%d" % n for n in range(5_000)]).wait()
    found: list[bytes] = []
    with mq.consumer("jobs", group="g") as consumer:
        while batches := consumer.poll_batches(timeout=0.2):
            for batch in batches:
                found += batch.values
                consumer.ack(batch)
        consumer.commit()
        assert consumer.committed() == {"0": 5_000}
    assert found == [b"%d" % n for n in range(5_000)]


def test_a_group_that_is_unsubscribed_consumes_no_more(mq: pymq.Client) -> None:
    """Polling, committing and iterating raise; a consumer that subscribes again resumes."""
    mq.create_topic("u")
    fill(mq, 20)
    with mq.consumer("t", group="g") as consumer, mq.consumer("u", group="g") as other:
        done = polled(consumer, 8)[:5]
        consumer.ack(done)
        consumer.commit()
        consumer.ack(polled(consumer, 1))
        assert mq.unsubscribe("g", "t") == ["t"]
        for _ in range(2):
            with pytest.raises(NotSubscribed) as caught:
                # The consumer may have fetched records until it learns that the group was
                # unsubscribed.
                polled(consumer, 100)
            assert caught.value.code == "NOT_SUBSCRIBED"
        for call in (consumer.commit, lambda: next(iter(consumer)), consumer.until_end().__next__):
            with pytest.raises(NotSubscribed):
                call()
        assert "not subscribed" in str(consumer.status().idle)
        fill(mq, 3, "u")
        assert len(polled(other, 3)) == 3
        state = mq.describe_group("g")
        assert [found.topic for found in state.consumers] == ["u"]
        assert sum(at for (topic, _), at in state.committed.items() if topic == "t") >= 0
    with pytest.raises(NotSubscribed):
        mq.unsubscribe("g", "t")
    with mq.consumer("t", group="g") as again:
        rest = list(again.until_end())
    assert not {(r.partition, r.offset) for r in done} & {(r.partition, r.offset) for r in rest}
    assert len(rest) >= 14
    assert sorted(mq.unsubscribe("g")) == ["t", "u"]
    assert mq.unsubscribe("g") == []


def test_what_cannot_be_unsubscribed_is_an_error_and_changes_nothing(mq: pymq.Client) -> None:
    with pytest.raises(UnknownGroup):
        mq.unsubscribe("g")
    with pytest.raises(NotSubscribed):
        mq.unsubscribe("g", "t")
    with mq.consumer("t", group="g") as consumer:
        with pytest.raises(UnknownTopic):
            mq.unsubscribe("g", ["t", "nowhere"])
        with pytest.raises(InvalidName):
            mq.unsubscribe("../g", "t")
        fill(mq, 1)
        assert len(polled(consumer, 1)) == 1
