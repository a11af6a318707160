"""Consumers of a group: each record is leased to one of them, until it is acknowledged."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.client.option_types import ConsumerMode
from pymq.core.message import Settle
from pymq.errors import Closed, CommitFailed, ConfigError, InvalidRequest, UnknownTopic
from tests.client.helpers import places, polled, produce, values, wait_until


@pytest.fixture
def t(mq: pymq.Client) -> pymq.Client:
    """A queue with a topic ``t``, whose only partition holds the records 0 to 9."""
    mq.create_topic("t")
    produce(mq, "t", range(10))
    return mq


# --- acknowledging ------------------------------------------------------------------------------


def test_records_come_in_order_with_all_they_have(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"v", key=b"k", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=7)
        producer.send("t", b"", key=b"")
    with mq.consumer("t") as consumer:
        first, second = polled(consumer, 2)
    assert first == ("t", "0", 0, 7, b"k", b"v", (("h", b"1"), ("h", b"2")), 1)
    assert (second.key, second.value, second.offset) == (b"", b"", 1)
    assert hash(first) != hash(second)


@pytest.mark.parametrize("how", ["one by one", "list", "batch", "backwards"])
def test_what_is_acknowledged_is_done(t: pymq.Client, how: str) -> None:
    with t.consumer("t", group="g") as consumer:
        if how == "batch":
            views = consumer.poll_batches()
            assert [offset for view in views for offset in view.offsets] == list(range(10))
            for view in views:
                consumer.ack(view)
        else:
            records = polled(consumer, 10)
            if how == "list":
                consumer.ack(records)
            for record in reversed(records) if how == "backwards" else records:
                consumer.ack(record)
        consumer.commit()
        assert consumer.committed() == {"0": 10}
        assert consumer.lag() == {"0": 0}
        assert consumer.status().unacknowledged_refused == 0
    with t.consumer("t", group="g") as consumer:
        assert consumer.poll(timeout=0) == []


def test_a_list_may_have_gaps_and_partitions_and_batches(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for number in range(20):
        produce(mq, "t", [number], partition=number % 2)  # each record is a separate batch
    with mq.consumer("t", group="g") as consumer:
        views = consumer.poll_batches()
        while sum(map(len, views)) < 20:
            views += consumer.poll_batches()
        records = [record for view in views for record in view.records()]
        by_place = {(record.partition, record.offset): record for record in records}
        consumer.ack([])
        consumer.ack(by_place["01"[n % 2], n] for n in (0, 1, 2, 3, 4, 9))
        consumer.ack([by_place["0", 3], by_place["0", 1], by_place["1", 0], by_place["1", 2]])
        consumer.ack([view for view in views if view.base_offset == 5] + [by_place["0", 7]])
        consumer.commit()
        assert consumer.committed() == {"0": 6, "1": 4}
        assert consumer.status().unacknowledged_refused == 0
    with mq.consumer("t", group="g") as consumer:
        rest = polled(consumer, 7)
        assert sorted(places(rest)) == [("0", 6), ("0", 8), ("0", 9)] + [
            ("1", offset) for offset in (4, 6, 7, 8)
        ]


def test_the_offset_moves_after_processing_and_never_before(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        records = polled(consumer, 10)
        assert consumer.committed() == {"0": 0}
        consumer.ack([records[1], records[2]])
        consumer.commit()
        assert consumer.committed() == {"0": 0}  # the first record is still being processed
        consumer.ack(records[0])
        consumer.commit()
        assert consumer.committed() == {"0": 3}
        assert consumer.lag() == {"0": 7}
        assert consumer.position("0") == 3


def test_auto_ack_of_a_poll_happens_at_the_next_one(t: pymq.Client) -> None:
    with t.consumer("t", group="g", auto_ack=True) as consumer:
        polled(consumer, 4)
        consumer.commit()
        assert consumer.committed() == {"0": 0}
        assert len(polled(consumer, 6)) == 6
        consumer.commit()
        assert consumer.committed() == {"0": 4}
    assert t.describe_group("g").committed == {("t", "0"): 10}


def test_auto_ack_of_an_iteration_follows_it(t: pymq.Client) -> None:
    with t.consumer("t", group="g", auto_ack=True) as consumer:
        for record in consumer:
            consumer.commit()
            assert consumer.committed() == {"0": record.offset}
            if record.offset == 9:
                break
    assert t.describe_group("g").committed == {("t", "0"): 10}


def test_auto_ack_spares_a_record_that_was_given_back(t: pymq.Client) -> None:
    seen: list[int] = []
    with t.consumer("t", group="g", auto_ack=True) as consumer:
        for record in consumer.until_end():
            seen.append(record.offset)
            if record.offset == 3 and record.delivery_count == 1:
                consumer.nack(record)
    assert sorted(seen) == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9]
    assert t.describe_group("g").committed == {("t", "0"): 10}


def test_auto_ack_does_not_count_what_an_exception_interrupted(t: pymq.Client) -> None:

    def iterate() -> None:
        with t.consumer("t", group="g", auto_ack=True) as consumer:
            for record in consumer:
                if record.offset == 5:
                    raise ArithmeticError

    def poll() -> None:
        with t.consumer("t", group="g", auto_ack=True) as consumer:
            assert values(polled(consumer, 5)) == [5, 6, 7, 8, 9]
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        iterate()
    assert t.describe_group("g").committed == {("t", "0"): 5}
    with pytest.raises(ArithmeticError):
        poll()
    assert t.describe_group("g").committed == {("t", "0"): 5}


def test_auto_ack_of_an_iteration_that_ends_with_polls(t: pymq.Client) -> None:
    with t.consumer("t", group="g", auto_ack=True) as consumer:
        records = iter(consumer)
        for _ in range(10):
            next(records)
        assert consumer.poll(timeout=0) == []
        consumer.commit()
        assert consumer.committed() == {"0": 10}


def test_auto_ack_of_an_iteration_that_goes_on_with_polls(t: pymq.Client) -> None:
    with t.consumer("t", group="g", auto_ack=True) as consumer:
        assert next(iter(consumer)).offset == 0
        assert values(polled(consumer, 9)) == list(range(1, 10))
    assert t.describe_group("g").committed == {("t", "0"): 10}


def test_only_records_can_be_acknowledged(t: pymq.Client) -> None:
    with t.consumer("t") as consumer:
        with pytest.raises(TypeError):
            consumer.ack([1])  # type: ignore[list-item] # on purpose
        with pytest.raises(TypeError):
            consumer.nack([1])  # type: ignore[list-item] # on purpose
        with pytest.raises(ConfigError):
            consumer.nack([], delay=-1)


def test_committed_offsets_survive_reopening(tmp_path: Path) -> None:
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        produce(mq, "t", range(10))
        with mq.consumer("t", group="g") as consumer:
            records = polled(consumer, 10)
            consumer.ack([*records[:4], records[6]])
    with pymq.open(tmp_path) as mq:
        assert mq.groups() == ["g"]
        assert mq.describe_group("g").committed == {("t", "0"): 4}
        with mq.consumer("t", group="g") as consumer:
            # Acknowledgements above the committed offset are kept, too.
            assert values(polled(consumer, 5)) == [4, 5, 7, 8, 9]


# --- redelivery ---------------------------------------------------------------------------------


def test_a_record_that_was_given_back_comes_again(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        records = polled(consumer, 10)
        consumer.ack(records[1:])
        consumer.nack(records[0])
        (again,) = polled(consumer, 1)
        assert (again.offset, again.delivery_count) == (0, 2)
        consumer.ack(again)
        consumer.commit()
        assert consumer.committed() == {"0": 10}


def test_what_is_leased_in_pieces_comes_in_order(mq: pymq.Client) -> None:
    """Several leases of a partition are fetched at a time, and a lease ends where a block ends."""
    mq.create_topic("t", block_bytes=4096)
    with mq.producer(linger_ms=0) as producer:
        # on a busy machine an election may take an offset between them
        offsets = [producer.send("t", bytes(1000)).result(5).offset for _ in range(20)]
    with mq.consumer("t", group="g") as consumer:
        consumer.ack(polled(consumer, 10)[6])
    with mq.consumer("t", group="g") as consumer:
        again = polled(consumer, 19)
        assert [record.offset for record in again] == [*offsets[:6], *offsets[7:]]


def test_a_list_that_was_given_back_comes_again_as_one(mq: pymq.Client) -> None:
    """The cost of returning records depends on the number of runs of offsets, not of records."""
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"%d" % number for number in range(500)]).wait()
    with mq.consumer("t", group="g") as consumer:
        consumer.nack(polled(consumer, 500))
        consumer.commit()
        # the number of records per poll depends on how long earlier ones took
        again = polled(consumer, 500)
        assert [(r.offset, r.delivery_count) for r in again] == [(n, 2) for n in range(500)]


def test_a_delay_is_waited_for(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        records = polled(consumer, 10)
        consumer.ack(records[2:])
        consumer.nack(records[0], delay=600)
        consumer.nack(records[1], delay=0.05)
        again = polled(consumer, 1)
        assert [(record.offset, record.delivery_count) for record in again] == [(1, 2)]
        consumer.ack(again)
        assert consumer.poll(timeout=0.1) == []
        idle = consumer.status().idle
        assert idle is not None
        assert "1 is to be delivered again later" in idle


def test_what_is_not_acknowledged_in_time_comes_again(t: pymq.Client) -> None:
    with t.consumer("t", group="g", ack_wait_s=0.05) as consumer:
        first = polled(consumer, 10)
        wait_until(lambda: t.describe_group("g").in_flight["t", "0"] == 0)
    with t.consumer("t", group="g") as consumer:
        again = polled(consumer, 10)
        assert places(again) == places(first)
        assert {record.delivery_count for record in again} == {2}
        consumer.ack(again)
        consumer.commit()
        assert consumer.committed() == {"0": 10}


def test_an_iteration_keeps_the_leases_of_what_it_has_not_shown_yet(t: pymq.Client) -> None:
    """While records are buffered the consumer does not count as abandoned, even if a single record
    takes long.
    """
    with t.consumer("t", group="g", ack_wait_s=600) as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        worker = consumer._worker
        assert worker is not None
        with t.driver as loop:
            worker.tick(loop.clock() + 300_000)  # half of the time has passed
            ready = worker.ready(loop.clock())
        assert ready is not None
        found = [m.renewals for _, m in ready.send if isinstance(m, Settle) and m.renewals]
        assert found == [tuple(("0", (offset, offset + 1)) for offset in range(3, 10))]


def test_a_late_acknowledgement_is_counted_and_changes_nothing(t: pymq.Client) -> None:
    with t.consumer("t", group="g", ack_wait_s=0.1) as consumer:
        records = polled(consumer, 10)
        wait_until(lambda: t.describe_group("g").in_flight["t", "0"] == 0)
        consumer.ack(records)
        with pytest.raises(CommitFailed, match="10 acknowledged records were not committed"):
            consumer.commit()
        assert consumer.committed() == {"0": 0}
        assert consumer.status().unacknowledged_refused == 10
        assert {record.delivery_count for record in polled(consumer, 10)} == {2}


def test_what_was_delivered_too_often_goes_to_the_dead_letters(t: pymq.Client) -> None:
    with t.consumer("t", group="g", max_deliver=3, ack_wait_s=60) as consumer:
        for count in (1, 2, 3):
            records = polled(consumer, 10 if count == 1 else 1)
            assert {record.delivery_count for record in records} == {count}
            consumer.nack(records[0])
            consumer.ack(records[1:])
        while "t.dlq" not in t.topics():
            assert consumer.poll(timeout=0.05) == []  # the call of poll renews the time
        consumer.commit()
        assert consumer.committed() == {"0": 10}
    with t.consumer("t.dlq", mode="psb") as letters:
        (letter,) = letters.until_end()
    assert letter.value == b"0"
    assert dict(letter.headers) == {
        "pymq.topic": b"t",
        "pymq.partition": b"0",
        "pymq.offset": b"0",
        "pymq.timestamp": str(records[0].timestamp_ms).encode(),
        "pymq.group": b"g",
        "pymq.delivery_count": b"3",
        "pymq.deliveries": b"3",
        "pymq.error": b"delivered 3 times, and not acknowledged",
    }


def test_dead_letters_are_moved_though_there_is_always_more_to_read(mq: pymq.Client) -> None:
    """If the buffer is full, dead letters must still be moved before their lease expires."""
    mq.create_topic("t")
    produce(mq, "t", range(10))
    with mq.consumer("t", group="g", max_deliver=1, dead_letter="letters") as consumer:
        bad = polled(consumer, 1)
        consumer.nack(bad)
        for _ in range(20):
            consumer.ack(consumer.poll(1, 0.05))
            produce(mq, "t", range(3))
            if "letters" in mq.topics():
                break
        with mq.consumer("letters", mode="psb") as letters:
            assert values(letters.until_end()) == [0]


def test_without_a_limit_nothing_dies(t: pymq.Client) -> None:
    with t.consumer("t", group="g", max_deliver=0) as consumer:
        counts = []
        for _ in range(8):
            records = polled(consumer, 10)
            counts.append(records[0].delivery_count)
            consumer.nack(records)
    assert counts == list(range(1, 9))
    assert t.topics() == ["t"]


def test_a_consumer_that_closes_gives_back_what_it_has(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        records = iter(consumer)
        # nine more records are in the buffer, and were never shown
        assert next(records).offset == 0
    with t.consumer("t", group="g") as consumer:
        again = polled(consumer, 10)
    assert [record.delivery_count for record in again] == [2] + [1] * 9


def test_an_abandoned_consumer_does_not_keep_its_partitions(t: pymq.Client) -> None:
    """If a consumer is dropped without close, its group goes on as if it had been closed."""
    consumer = t.consumer("t", group="g")
    assert len(polled(consumer, 10)) == 10
    consumer.ack([])
    del consumer
    gc.collect()
    with t.consumer("t", group="g") as other:
        assert values(polled(other, 10)) == list(range(10))
        assert len(t.describe_group("g").members) == 1


# --- iterating ----------------------------------------------------------------------------------


def test_until_end_ends_and_leaves_what_came_later(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        seen = []
        for record in consumer.until_end():
            if record.offset == 0:
                produce(t, "t", range(10, 15))
            seen.append(record)
            consumer.ack(record)
        assert values(seen) == list(range(10))
        later = list(consumer.until_end())
        assert values(later) == list(range(10, 15))
        assert {record.delivery_count for record in later} == {1}


def test_until_end_with_auto_ack_loses_nothing_that_came_later(mq: pymq.Client) -> None:
    """Records that the iteration has not shown must not be acknowledged."""
    mq.create_topic("t")
    produce(mq, "t", range(600))
    seen = []
    with mq.consumer("t", group="g", auto_ack=True) as consumer:
        for record in consumer.until_end():
            seen.append(record.offset)
            if record.offset == 0:
                produce(mq, "t", range(600, 700))
    with mq.consumer("t", group="g", auto_ack=True) as consumer:
        seen += [record.offset for record in consumer.until_end()]
    assert seen == list(range(700))


def test_until_end_of_nothing(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=3)
    for reset in ("begin", "end"):
        with mq.consumer("t", group=reset, auto_offset_reset=reset) as consumer:
            assert list(consumer.until_end()) == []


def test_until_end_is_about_all_that_others_have_not_taken(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for partition in ("0", "1"):
        produce(mq, "t", range(5), partition=partition)
    with mq.consumer("t", group="g") as one, mq.consumer("t", group="g") as two:
        first, second = list(one.until_end()), list(two.until_end())
        assert sorted(places(first + second)) == [(p, i) for p in "01" for i in range(5)]
        assert second == []


def test_until_end_is_only_about_what_is_assigned(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for partition in ("0", "1"):
        produce(mq, "t", range(5), partition=partition)
    with (
        mq.consumer("t", group="g", ordered=True) as one,
        mq.consumer("t", group="g", ordered=True) as two,
    ):
        first, second = list(one.until_end()), list(two.until_end())
        assert sorted(places(first + second)) == [(p, i) for p in "01" for i in range(5)]
        assert {len(first), len(second)} == {5}


def test_until_end_may_be_left_early(t: pymq.Client) -> None:
    with t.consumer("t", group="g") as consumer:
        for record in consumer.until_end():
            consumer.ack(record)
            if record.offset == 3:
                break
        assert values(polled(consumer, 6)) == [4, 5, 6, 7, 8, 9]


def test_an_iteration_ends_when_another_thread_closes_the_consumer(t: pymq.Client) -> None:
    consumer = t.consumer("t", group="g")
    seen: list[int] = []

    def consume() -> None:
        for record in consumer:
            seen.append(record.offset)  # noqa: PERF401 # seen as it comes

    thread = threading.Thread(target=consume)
    thread.start()
    wait_until(lambda: len(seen) == 10)
    consumer.close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("what", ["consumer", "client"])
@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_a_poll_that_waits_ends_with_the_consumer(mode: ConsumerMode, what: str) -> None:
    mq = pymq.open("memory:")
    mq.create_topic("t")
    consumer = mq.consumer("t", mode=mode)
    caught: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(timeout=30)
        except Closed as error:
            caught.append(error)

    threads = [threading.Thread(target=poll) for _ in range(1)]
    for thread in threads:
        thread.start()
    wait_until(lambda: consumer._intake._arrival is not None)
    (consumer if what == "consumer" else mq).close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(caught) == 1
    mq.close()


def test_closing_twice_is_allowed_and_using_it_afterwards_is_not(t: pymq.Client) -> None:
    consumer = t.consumer("t", group="g")
    (record,) = consumer.poll(1)
    consumer.close()
    consumer.close()
    with pytest.raises(Closed):
        consumer.ack(record)
    for use in (consumer.poll, consumer.poll_batches, consumer.committed, consumer.pause):
        with pytest.raises(Closed):
            use()
    assert consumer.status().idle == "it was closed"


# --- beginning ----------------------------------------------------------------------------------


def test_a_new_group_begins_where_it_was_told_to(t: pymq.Client) -> None:
    """With "end" the group begins at the end that the log had when the consumer was created."""
    with (
        t.consumer("t", group="old") as old,
        t.consumer("t", group="new", auto_offset_reset="end") as new,
    ):
        produce(t, "t", range(10, 13))
        assert values(polled(new, 3)) == [10, 11, 12]
        assert values(polled(old, 13)) == list(range(13))


def test_reset_end_is_where_the_group_stays_until_it_has_offsets(t: pymq.Client) -> None:
    with t.consumer("t", group="g", auto_offset_reset="end") as consumer:
        assert consumer.committed() == {"0": 10}
        assert consumer.lag() == {"0": 0}


def test_without_a_group_all_consumers_share_the_topics_own(t: pymq.Client) -> None:
    with t.consumer("t") as consumer:
        assert consumer.group == "ptp"
        consumer.ack(polled(consumer, 10))
    with t.consumer("t") as consumer:
        assert consumer.poll(timeout=0) == []


def test_a_consumer_needs_a_topic(mq: pymq.Client) -> None:
    with pytest.raises(UnknownTopic, match="create_topic"):
        mq.consumer("none")
    assert mq.groups() == []


def test_a_group_cannot_seek(t: pymq.Client) -> None:
    with t.consumer("t") as consumer, pytest.raises(InvalidRequest, match="reset"):
        consumer.seek("0", 0)


# --- steering -----------------------------------------------------------------------------------


def test_a_paused_partition_gives_nothing_until_it_is_resumed(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for partition in ("0", "1"):
        produce(mq, "t", range(20), partition=partition)
    with mq.consumer("t", group="g") as consumer:
        consumer.pause("0")
        records = polled(consumer, 20)
        assert {record.partition for record in records} == {"1"}
        # The consumer does not get new records of a paused partition.
        produce(mq, "t", [20], partition="0")
        assert consumer.poll(timeout=0.05) == []
        assert mq.describe_group("g").in_flight["t", "1"] == 20
        consumer.resume("0")
        again = polled(consumer, 21)
        assert places(again) == [("0", offset) for offset in range(21)]
        assert {record.delivery_count for record in again} == {1}


def test_pausing_takes_back_what_is_on_its_way(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for partition in ("0", "1"):
        produce(mq, "t", range(20), partition=partition)
    with mq.consumer("t", group="g") as consumer:
        iteration = iter(consumer)
        first = next(iteration)
        consumer.pause(first.partition)
        others = [next(iteration) for _ in range(20)]
        assert {record.partition for record in others} == {"0", "1"} - {first.partition}
        consumer.resume()
        rest = [next(iteration) for _ in range(19)]
        assert places(rest) == [(first.partition, offset) for offset in range(1, 20)]
        assert {record.delivery_count for record in rest} == {1}


def test_status_says_why_it_is_idle(mq: pymq.Client) -> None:
    mq.create_topic("t")
    consumer = mq.consumer("t", group="g")
    assert consumer.status().idle == "it has reached the end of all its partitions"
    produce(mq, "t", range(3))
    wait_until(lambda: consumer.status().idle is None)
    status = consumer.status()
    assert (status.topic, status.mode, status.group, status.assigned) == ("t", "ptp", "g", ("0",))
    assert (status.positions, status.end_offsets) == ({"0": 0}, {"0": 3})
    consumer.pause()
    assert consumer.status().idle == "all its partitions are paused"
    consumer.resume()
    records = polled(consumer, 3)
    idle = consumer.status().idle
    assert idle == "3 records are leased and not acknowledged, 0 are to be delivered again later"
    consumer.ack(records)
    consumer.commit()
    assert consumer.status().idle == "it has reached the end of all its partitions"
    mq.delete_topic("t")
    with pytest.raises(UnknownTopic):
        polled(consumer, 1)
    consumer.close()
    assert consumer.status().idle == "it was closed"


def test_status_of_a_consumer_that_waits_for_another_one(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    for partition in ("0", "1"):
        produce(mq, "t", range(3), partition=partition)
    with mq.consumer("t", group="g", ordered=True) as one:
        records = polled(one, 6)
        produce(mq, "t", range(3, 6), partition=0)
        produce(mq, "t", range(3, 6), partition=1)
        with mq.consumer("t", group="g", ordered=True) as two:
            (moved,) = two.assignment()
            assert two.poll(timeout=0) == []
            assert two.status().idle == f"other consumers still work on records of {moved}"
            one.ack(records)
            assert values(polled(two, 3)) == [3, 4, 5]
            two.poll(timeout=0)
            assert "3 records are leased" in str(two.status().idle)


# --- pushing ------------------------------------------------------------------------------------


def test_pushed_records_are_acknowledged_when_handled(t: pymq.Client) -> None:
    seen: list[int] = []

    def handle(record: pymq.Record) -> None:
        seen.append(record.offset)

    consumer = t.consumer("t", group="g", delivery="push", on_record=handle, auto_ack=True)
    wait_until(lambda: t.describe_group("g").committed == {("t", "0"): 10})
    consumer.close()
    assert seen == list(range(10))


def test_a_handler_that_fails_gets_the_record_again_and_then_it_dies(
    t: pymq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """With and without auto_ack: if a handler fails on a record, the record is not acknowledged."""
    seen: list[tuple[int, int]] = []

    def handle(record: pymq.Record) -> None:
        seen.append((record.offset, record.delivery_count))
        if record.offset == 4:
            raise ValueError("four")

    with caplog.at_level(logging.ERROR, "pymq"):
        consumer = t.consumer(
            "t", group="g", delivery="push", on_record=handle, auto_ack=True, max_deliver=3
        )
        wait_until(lambda: t.describe_group("g").committed == {("t", "0"): 10})
        consumer.close()
    assert [count for offset, count in seen if offset == 4] == [1, 2, 3]
    assert sorted(set(seen) - {(4, 2), (4, 3)}) == [(offset, 1) for offset in range(10)]
    assert len([r for r in caplog.records if r.exc_info and "four" in str(r.exc_info[1])]) == 3
    with t.consumer("t.dlq", mode="psb") as letters:
        assert values(letters.until_end()) == [4]


def test_a_push_consumer_can_be_closed_by_its_own_handler(t: pymq.Client) -> None:
    closed = threading.Event()
    made: list[pymq.Consumer] = []

    def handle(record: pymq.Record) -> None:
        wait_until(lambda: made)
        made[0].close()
        closed.set()

    made.append(t.consumer("t", group="g", delivery="push", on_record=handle, credit=5))
    assert closed.wait(5)
    # The consumer got five records and showed one; the other four were never delivered.
    with t.consumer("t", group="g") as consumer:
        counts = [record.delivery_count for record in polled(consumer, 10)]
    assert counts == [2] + [1] * 9


def test_credit_bounds_what_is_on_its_way(t: pymq.Client) -> None:
    gate, entered = threading.Event(), threading.Event()

    def handle(record: pymq.Record) -> None:
        entered.set()
        gate.wait(10)

    with t.consumer("t", group="g", delivery="push", on_record=handle, credit=3, auto_ack=True):
        assert entered.wait(5)
        assert t.describe_group("g").in_flight == {("t", "0"): 3}
        gate.set()
        wait_until(lambda: t.describe_group("g").committed == {("t", "0"): 10})


# --- the topic changes --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_a_topic_that_is_deleted_ends_consuming(t: pymq.Client, mode: ConsumerMode) -> None:
    with t.consumer("t", mode=mode) as consumer:
        consumer.poll()
        t.delete_topic("t")
        with pytest.raises(UnknownTopic):
            polled(consumer, 1)


@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_a_poll_that_waits_hears_that_the_topic_is_gone(mode: ConsumerMode) -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        caught: list[BaseException] = []

        def poll() -> None:
            try:
                consumer.poll(timeout=20)
            except UnknownTopic as error:
                caught.append(error)

        consumer = mq.consumer("t", mode=mode)
        thread = threading.Thread(target=poll)
        thread.start()
        wait_until(lambda: consumer._intake._arrival is not None)
        mq.delete_topic("t")
        thread.join(5)
        assert len(caught) == 1


@pytest.mark.parametrize("reset", ["begin", "end"])
@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_a_new_partition_is_consumed_from_its_first_record(
    mq: pymq.Client, mode: ConsumerMode, reset: str
) -> None:
    mq.create_topic("t")
    where: dict[str, Any] = {"offset": reset} if mode == "psb" else {"auto_offset_reset": reset}
    with mq.consumer("t", mode=mode, **where) as consumer:
        produce(mq, "t", range(3))
        assert values(polled(consumer, 3)) == [0, 1, 2]
        mq.create_partition("t", "new")
        produce(mq, "t", range(3, 6), partition="new")
        assert values(polled(consumer, 3)) == [3, 4, 5]
        assert consumer.assignment() == ("0", "new")


def test_partitions_are_added_while_producing_and_consuming_with_keys(mq: pymq.Client) -> None:
    """No record is lost; over all partitions the records of a key keep the producer's order."""
    mq.create_topic("t", partitions=2)
    total, keys = 600, [b"%d" % key for key in range(20)]
    with mq.consumer("t", group="g") as consumer:
        seen: list[pymq.Record] = []
        for begin in range(0, total, 200):
            if begin:
                mq.create_partition("t", f"extra-{begin}")
            with mq.producer(linger_ms=1) as producer:
                for number in range(begin, begin + 200):
                    producer.send("t", b"%d" % number, key=keys[number % len(keys)])
                    if number % 50 == 0:
                        seen += consumer.poll(timeout=0)
        while len(seen) < total:
            seen += polled(consumer, 1)
        consumer.ack(seen)
        consumer.commit()
        assert sorted(values(seen)) == list(range(total))
        assert {record.partition for record in seen} == {"0", "1", "extra-200", "extra-400"}
        assert sum(consumer.lag().values()) == 0


def test_a_group_skips_what_retention_took(mq: pymq.Client) -> None:
    """Removed records are skipped even if they are leased, because they cannot be processed."""
    mq.create_topic("t", block_bytes=4096)
    produce(mq, "t", [b"x" * 1000] * 8)
    with mq.consumer("t", group="g", ack_wait_s=60) as consumer:
        first = polled(consumer, 1)
        with mq.producer(linger_ms=0) as producer:
            for _ in range(20):
                producer.send("t", b"y" * 1000).result(5)
        mq.alter_topic("t", retention_bytes=5000)
        wait_until(lambda: consumer.begin_offsets()["0"] > 8)
        start = consumer.begin_offsets()["0"]
        rest = polled(consumer, 28 - start)
        assert [record.offset for record in rest] == list(range(start, 28))
        consumer.ack(first + rest)
        consumer.commit()
        assert consumer.lag() == {"0": 0}


def test_who_waits_for_ever_may_say_so_by_infinity(mq: pymq.Client) -> None:
    mq.create_topic("forever")
    with mq.consumer("forever", group="g") as consumer, mq.producer() as producer:
        sender = threading.Timer(0.05, producer.send, ("forever", b"x"))
        sender.start()
        assert [record.value for record in consumer.poll(timeout=float("inf"))] == [b"x"]
        sender.join()
        assert producer.send("forever", b"y").result(timeout=float("inf")).offset == 1
        producer.flush(timeout=float("inf"))
