"""Idle consumers of a group get records that other members have not begun, unless keys order the
records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

import pymq
from pymq.client.group.lease_requests import AHEAD_MS, FIRST, LeasePace

WORKERS = 4
TASKS = 100
TASK_S = 0.01


def work(mq: pymq.Client, topic: str, how: str, **options: object) -> Counter[int]:
    """Let four consumers work through a topic; returns how many records each has done."""
    done: Counter[int] = Counter()
    is_over = threading.Event()
    ready = threading.Barrier(WORKERS)

    def one(name: int) -> None:
        with mq.consumer(topic, group="g", **options) as consumer:  # type: ignore[arg-type] # of tests
            ready.wait(30)
            while not is_over.is_set():
                found = consumer.poll(timeout=0.05) if how == "poll" else consumer.until_end()
                for record in found:
                    time.sleep(TASK_S)
                    consumer.ack(record)
                    done[name] += 1
                if sum(done.values()) >= TASKS:
                    is_over.set()

    threads = [threading.Thread(target=one, args=(name,)) for name in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return done


@pytest.mark.parametrize("how", ["poll", "until_end"])
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_burst_in_one_partition_is_shared(mq: pymq.Client, partitions: int, how: str) -> None:
    mq.create_topic("t", partitions=partitions)
    with mq.producer() as producer:
        producer.send_many("t", [b"%d" % i for i in range(TASKS)], partition="0").wait()
    done = work(mq, "t", how)
    assert sum(done.values()) == TASKS, "each record once"
    # The first consumer got FIRST of the records before its speed was known.
    assert min(done[name] for name in range(WORKERS)) >= (TASKS - FIRST) // WORKERS // 2


@pytest.mark.parametrize(("ordered", "keys"), [(None, True), (True, False)])
def test_records_with_an_order_are_with_one_consumer_at_a_time(
    mq: pymq.Client, ordered: bool | None, keys: bool
) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        values = [b"%d" % i for i in range(TASKS)]
        producer.send_many("t", values, [b"k"] * TASKS if keys else None).wait()
    with (
        mq.consumer("t", group="g", ordered=ordered) as one,
        mq.consumer("t", group="g", ordered=ordered) as two,
    ):
        first = one.poll(timeout=30)
        assert [record.offset for record in first] == list(range(len(first)))
        assert two.poll(timeout=0.2) == []
        one.ack(first)
        assert two.poll(timeout=30)[0].offset == len(first)


def test_keys_do_not_matter_if_so_told(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"x"] * TASKS, [b"k"] * TASKS).wait()
    with (
        mq.consumer("t", group="g", ordered=False, prefetch=1) as one,
        mq.consumer("t", group="g", ordered=False, prefetch=1) as two,
    ):
        seen = [consumer.poll(timeout=30)[0].offset for consumer in (one, two, one, two)]
        assert sorted(seen) == [0, 1, 2, 3]


def test_a_consumer_gets_no_more_at_a_time_than_it_prefetches(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"x"] * 10).wait()
    with mq.consumer("t", group="g", prefetch=3) as consumer:
        assert [len(consumer.poll(timeout=30)) for _ in range(4)] == [3, 3, 3, 1]


def test_a_consumer_that_takes_one_record_at_a_time_leases_as_many_as_it_prefetches(
    mq: pymq.Client,
) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"x"] * 10).wait()
    with mq.consumer("t", group="g", prefetch=3) as consumer:
        assert [record.offset for record in consumer.poll(1, timeout=30)] == [0]
        assert mq.describe_group("g").delivered == {("t", "0"): 3}
        assert [record.offset for record in consumer.poll(1, timeout=30)] == [1]
        assert mq.describe_group("g").delivered == {("t", "0"): 3}
        consumer.commit()
    with mq.consumer("t", group="g", prefetch=1) as consumer:
        again = [consumer.poll(1, timeout=30)[0] for _ in range(3)]
    # The third record was leased to the first consumer, which never returned it.
    assert [(record.offset, record.delivery_count) for record in again] == [(0, 2), (1, 2), (2, 1)]


def test_a_paused_consumer_takes_nothing_of_others(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"x"] * 10).wait()
    with mq.consumer("t", group="g", prefetch=1) as one, mq.consumer("t", group="g") as two:
        two.pause("0")
        assert one.poll(timeout=30)
        assert two.poll(timeout=0.2) == []
        two.resume("0")
        assert two.poll(timeout=30)


@pytest.mark.parametrize(
    "options",
    [
        {"ordered": "yes"},
        {"ordered": 1},
        {"prefetch": 0},
        {"prefetch": 1.5},
        {"session_timeout_s": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(
    mq: pymq.Client, options: dict[str, object]
) -> None:
    mq.create_topic("t")
    with pytest.raises(pymq.errors.ConfigError, match=next(iter(options))):
        mq.consumer("t", group="g", **options)  # type: ignore[arg-type] # on purpose


# --- pace ---------------------------------------------------------------------------------------


def paced(takes_ms: Callable[[int], float], polls: int = 20, pace: LeasePace | None = None) -> int:
    """Return how many records an application of a given speed gets at a time, after some time."""
    pace = pace or LeasePace()
    for _ in range(polls):
        records = pace.limit(500)
        pace.took(records, takes_ms(records))
    return pace.limit(500)


@pytest.mark.parametrize("each_ms", [0.001, 0.1, 1, 5, 20, 1_000])
def test_a_member_leases_what_its_application_does_in_a_moment(each_ms: float) -> None:
    assert paced(lambda records: records * each_ms) == max(1, min(500, round(AHEAD_MS / each_ms)))


def test_an_application_that_asks_by_a_timer_is_not_slow() -> None:
    assert paced(lambda records: 1_000) == 500


def test_an_application_that_becomes_slow_gets_few_at_once() -> None:
    pace = LeasePace()
    assert paced(lambda records: records * 0.01, pace=pace) == 500
    assert paced(lambda records: records * 50, polls=1, pace=pace) == 1


def test_what_comes_while_its_consumer_is_at_work_goes_to_another(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    with (
        mq.consumer("t", group="g", prefetch=1) as one,
        mq.consumer("t", group="g", prefetch=1) as two,
        mq.producer() as producer,
    ):
        while len(one.assignment()) != 1 or len(two.assignment()) != 1:
            assert one.poll(timeout=0.01) + two.poll(timeout=0.01) == []
        (own,) = one.assignment()
        producer.send("t", b"long", partition=own).result(30)
        assert [r.value for r in one.poll(timeout=30)] == [b"long"]
        begun = time.monotonic()
        for value in (b"1", b"2", b"3", b"4", b"5"):
            producer.send("t", value, partition=own).result(30)
            found = two.poll(timeout=30)
            assert [r.value for r in found] == [value], "the first one is not done yet"
            two.ack(found)
        # The first member's heartbeats would report the end too, but only every 3 s.
        assert time.monotonic() - begun < 6
