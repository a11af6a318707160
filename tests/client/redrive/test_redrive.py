"""Dead letters are sent back exactly once, even after crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

import pymq
from pymq import aio
from pymq.client.admin import owned_topic
from pymq.client.admin.appends import append
from pymq.client.redrive import redrive as module
from pymq.client.redrive.journal import JournalEntry
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import (
    ConfigError,
    CorruptMetadata,
    InvalidName,
    ProducerFenced,
    RecordTooLarge,
    UnknownTopic,
)
from pymq.testing import Cluster
from tests.client.helpers import produce

LETTERS = "t.dlq"
LARGE = 5_000


def bury(mq: pymq.Client, numbers: range, partitions: int = 2, source: str = "t") -> None:
    """Make letters of a topic; the key decides the partition of a letter, as for the records."""
    mq.create_topic(source, partitions, exist_ok=True)
    mq.create_topic(LETTERS, partitions, exist_ok=True)
    with mq.producer() as producer:
        for number in numbers:
            partition = str(number % partitions)
            headers = [
                ("mine", b"%d" % number),
                ("pymq.topic", source.encode()),
                ("pymq.partition", partition.encode()),
                ("pymq.offset", b"7"),
                ("pymq.deliveries", b"5"),
                ("pymq.error", b"no price" if number % 3 else b"no stock"),
            ]
            item, key = b"%d" % number, b"k%d" % number
            producer.send(LETTERS, item, key=key, partition=partition, headers=headers)


def sent_back(mq: pymq.Client, topic: str = "t") -> list[pymq.Record]:
    with mq.consumer(topic, mode="reader") as consumer:
        return list(consumer.until_end())


def numbers(records: list[pymq.Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


# --- what goes back -----------------------------------------------------------------------------


def test_letters_go_back_to_where_they_came_from(mq: pymq.Client) -> None:
    bury(mq, range(10))
    assert mq.redrive(LETTERS) == pymq.Redriven(10, 0)
    found = sent_back(mq)
    assert numbers(found) == list(range(10))
    for record in found:
        number = int(record.value)
        assert record.partition == str(number % 2)
        assert record.key == b"k%d" % number
        assert record.headers == (("mine", b"%d" % number), ("pymq.redriven", b"1"))
    of_each = [[int(r.value) for r in found if r.partition == name] for name in "01"]
    assert of_each == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]  # offsets in the order of the letters


def test_so_many_go_back_at_a_time(mq: pymq.Client) -> None:
    bury(mq, range(10))
    assert mq.redrive(LETTERS, limit=4, dry_run=True) == pymq.Redriven(4, 0)
    counts = list[int]()
    while not counts or counts[-1]:
        counts.append(mq.redrive(LETTERS, limit=4).count)
    assert counts == [4, 4, 2, 0]
    found = sent_back(mq)
    of_each = [[int(r.value) for r in found if r.partition == name] for name in "01"]
    assert of_each == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    bury(mq, range(10, 16))
    # Of the letters 10, 12 and 14 the redrive reads only the first; 12 is the first that it may
    # send.
    chosen = mq.redrive(LETTERS, where=lambda letter: letter.value != b"10", limit=1)
    assert chosen == pymq.Redriven(1, 1)
    assert numbers(sent_back(mq)) == [*range(10), 12]
    with pytest.raises(ConfigError, match="limit=0"):
        mq.redrive(LETTERS, limit=0)


def test_each_goes_back_once(mq: pymq.Client) -> None:
    bury(mq, range(4))
    assert mq.redrive(LETTERS).count == 4
    assert mq.redrive(LETTERS) == pymq.Redriven(0, 0)
    bury(mq, range(4, 6))
    assert mq.redrive(LETTERS).count == 2
    assert numbers(sent_back(mq)) == list(range(6))


def test_a_dry_run_counts_and_changes_nothing(mq: pymq.Client) -> None:
    bury(mq, range(5))
    before = mq.topics()
    assert mq.redrive(LETTERS, dry_run=True) == pymq.Redriven(5, 0)
    assert mq.redrive(LETTERS, where=lambda letter: False, dry_run=True) == pymq.Redriven(0, 5)
    assert mq.topics() == before
    assert sent_back(mq) == []


def test_some_are_chosen_and_the_others_stay(mq: pymq.Client) -> None:
    bury(mq, range(12))

    def lacks_stock(letter: pymq.Record) -> bool:
        return dict(letter.headers)["pymq.error"] == b"no stock"

    assert mq.redrive(LETTERS, where=lacks_stock) == pymq.Redriven(4, 8)
    assert numbers(sent_back(mq)) == [0, 3, 6, 9]
    assert numbers(list(mq.dead_letters(LETTERS))) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert mq.redrive(LETTERS) == pymq.Redriven(8, 0)
    assert list(mq.dead_letters(LETTERS)) == []


def test_to_another_topic_by_key(mq: pymq.Client) -> None:
    bury(mq, range(20))
    mq.create_topic("later", 3)
    assert mq.redrive(LETTERS, to="later").count == 20
    assert numbers(sent_back(mq, "later")) == list(range(20))
    with mq.producer() as producer:  # An ordinary record with the same key is beside the letter.
        for record in sent_back(mq, "later"):
            again = producer.send("later", b"", key=record.key).result(30)
            assert again.partition == record.partition


def test_letters_of_several_topics_and_of_none(mq: pymq.Client) -> None:
    bury(mq, range(4))
    bury(mq, range(4, 8), source="u")
    bury(mq, range(8, 9), source="deleted")
    mq.delete_topic("deleted")
    produce(mq, LETTERS, [9])  # a letter without headers about its origin
    assert mq.redrive(LETTERS) == pymq.Redriven(8, 2)
    assert numbers(sent_back(mq)) == [0, 1, 2, 3]
    assert numbers(sent_back(mq, "u")) == [4, 5, 6, 7]


def test_a_record_that_dies_again_says_how_often_it_was_sent_back(mq: pymq.Client) -> None:
    mq.create_topic("t")
    produce(mq, "t", [1])
    for times in (1, 2):
        with mq.consumer("t", group="g", max_deliver=1) as consumer:
            while not (records := consumer.poll(timeout=5)):
                pass
            consumer.nack(records, error=f"time {times}")
            while mq.describe_group("g").lag["t", "0"]:
                assert consumer.poll(timeout=0.05) == []
                consumer.commit()
        assert mq.redrive(LETTERS).count == 1
    found = sent_back(mq)
    assert [dict(record.headers).get("pymq.redriven") for record in found] == [None, b"1", b"2"]


def test_what_is_purged_stays(mq: pymq.Client) -> None:
    bury(mq, range(6))
    assert mq.purge_dead_letters(LETTERS, where=lambda letter: letter.partition == "0") == 3
    assert mq.redrive(LETTERS) == pymq.Redriven(3, 0)
    assert numbers(sent_back(mq)) == [1, 3, 5]
    assert mq.purge_dead_letters(LETTERS) == 0


def test_a_topic_that_is_made_anew_has_new_letters(mq: pymq.Client) -> None:
    bury(mq, range(4))
    mq.redrive(LETTERS)
    mq.delete_topic(LETTERS)
    bury(mq, range(10, 13))
    assert mq.redrive(LETTERS).count == 3
    assert numbers(sent_back(mq)) == [0, 1, 2, 3, 10, 11, 12]


def test_more_than_a_round(mq: pymq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND", 7)
    bury(mq, range(50))
    assert mq.redrive(LETTERS).count == 50
    assert numbers(sent_back(mq)) == list(range(50))


def test_coroutines_redrive_too() -> None:
    async def main() -> tuple[pymq.Redriven, int, int]:
        async with aio.open("memory:") as mq:
            await mq.create_topic("t")
            await mq.create_topic(LETTERS)
            async with mq.producer() as producer:
                for name in (b"t", b"t", b"t"):
                    await producer.send(LETTERS, b"x", headers=[("pymq.topic", name)])
            before = len(await mq.dead_letters(LETTERS))
            purged = await mq.purge_dead_letters(LETTERS, lambda letter: letter.offset == 1)
            return await mq.redrive(LETTERS), before, purged

    assert asyncio.run(main()) == (pymq.Redriven(2, 0), 3, 1)


# --- errors -------------------------------------------------------------------------------------


def test_wrong_calls(mq: pymq.Client) -> None:
    bury(mq, range(2))
    with pytest.raises(UnknownTopic, match="nowhere"):
        mq.redrive("nowhere.dlq")
    with pytest.raises(UnknownTopic, match="nowhere"):
        mq.redrive(LETTERS, to="nowhere")
    with pytest.raises(ConfigError, match="where="):
        mq.redrive(LETTERS, where="error")  # type: ignore[arg-type] # on purpose
    with pytest.raises(ConfigError, match="rate="):
        mq.redrive(LETTERS, rate=0)
    with pytest.raises(ConfigError, match="dry_run="):
        mq.redrive(LETTERS, dry_run="yes")  # type: ignore[arg-type] # on purpose
    assert mq.redrive(LETTERS).count == 2


def test_a_letter_that_is_too_large_goes_back_once_the_limit_is_raised(mq: pymq.Client) -> None:
    mq.create_topic("t", max_record_bytes=1_000)
    mq.create_topic(LETTERS)
    with mq.producer() as producer:
        producer.send(LETTERS, bytes(5_000), headers=[("pymq.topic", b"t")]).result(30)
    with pytest.raises(RecordTooLarge, match="raise the topic's max_record_bytes"):
        mq.redrive(LETTERS)
    mq.alter_topic("t", max_record_bytes=10_000)
    assert mq.redrive(LETTERS).count == 1
    assert len(sent_back(mq)) == 1


def small(letter: pymq.Record) -> bool:
    return len(letter.value) < 1_000


def bury_a_large_one(mq: pymq.Client) -> None:
    """Bury letters of three partitions; the one of partition 1 is too large for its topic."""
    mq.create_topic("t", 3, max_record_bytes=1_000)
    mq.create_topic(LETTERS)
    with mq.producer() as producer:
        for number in range(9):
            partition, item = (
                (b"1", bytes(LARGE)) if number == 4 else (b"02"[number % 2 :][:1], b"")
            )
            headers = [("pymq.topic", b"t"), ("pymq.partition", partition)]
            producer.send(LETTERS, item or b"%d" % number, headers=headers).result(30)


def test_a_letter_that_is_refused_holds_up_no_other(mq: pymq.Client) -> None:
    """Each redrive of a list with the letter fails; other redrives, and a purge, do their work."""
    bury_a_large_one(mq)
    for _ in range(2):
        with pytest.raises(RecordTooLarge):
            mq.redrive(LETTERS)
    mq.redrive(LETTERS, where=small)
    assert numbers(sent_back(mq)) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [len(letter.value) for letter in mq.dead_letters(LETTERS)] == [LARGE]
    with pytest.raises(RecordTooLarge):
        mq.redrive(LETTERS)
    assert mq.purge_dead_letters(LETTERS) == 1
    assert mq.redrive(LETTERS) == pymq.Redriven(0, 0)


def test_a_refused_round_of_a_process_that_has_died_is_chosen_anew(mq: pymq.Client) -> None:
    """The journal says that the letters are being sent, but their topic will never accept them."""
    bury_a_large_one(mq)
    deaths = 0
    for number in range(1, 20):
        with dies_at(number, is_sent=False):
            try:
                mq.redrive(LETTERS)
            except RecordTooLarge:
                pass
            except Dead:
                deaths += 1
    assert deaths > 3
    mq.redrive(LETTERS, where=small)
    assert numbers(sent_back(mq)) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert mq.purge_dead_letters(LETTERS) == 1


@pytest.mark.parametrize("to", [LETTERS, "__consumer_offsets", "no name"])
def test_letters_do_not_go_where_they_could_not_stay(mq: pymq.Client, to: str) -> None:
    bury(mq, range(2))
    for dry_run in (True, False):
        with pytest.raises((ConfigError, InvalidName), match=to):
            mq.redrive(LETTERS, to=to, dry_run=dry_run)
    with mq.producer() as producer:
        producer.send(LETTERS, b"x", headers=[("pymq.topic", to.encode())]).result(30)
    assert mq.redrive(LETTERS) == pymq.Redriven(2, 1)


@pytest.mark.parametrize("data", [b"", b"x", b"\x82\x01\x02", b"\x83\x02\x61x\x80"])
def test_a_journal_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        JournalEntry.decode(data, "x")


# --- crashes ------------------------------------------------------------------------------------


class Dead(BaseException):
    """The process dies here."""


def patch_append(patch: pytest.MonkeyPatch, append: Callable[..., Any]) -> None:
    """Let a redrive use another function to append letters and records of its journal."""
    for each in (module, owned_topic):
        patch.setattr(each, "append", append)


@contextmanager
def dies_at(number: int, *, is_sent: bool) -> Iterator[Counter[str]]:
    """Let a redrive die before or after its *number*-th append; counts its appends by topic."""
    counts = Counter[str]()

    def dying(questions: Any, topic: Any, *rest: Any, **options: Any) -> Any:
        counts[topic.topic] += 1
        if counts.total() == number and not is_sent:
            raise Dead
        found = append(questions, topic, *rest, **options)
        if counts.total() == number:
            raise Dead
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch_append(patch, dying)
        yield counts


@pytest.mark.parametrize("is_sent", [False, True])
def test_each_letter_goes_back_once_wherever_the_process_dies(is_sent: bool) -> None:
    """The first append claims the journal.

    Then the redrive writes a round to the journal, sends it, and writes the next round.
    """
    deaths = 0
    for number in range(1, 100):
        with pymq.open("memory:") as mq, pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROUND", 3)
            bury(mq, range(11))
            with dies_at(number, is_sent=is_sent):
                try:
                    mq.redrive(LETTERS)
                except Dead:
                    deaths += 1
            again = mq.redrive(LETTERS)
            assert numbers(sent_back(mq)) == list(range(11)), number
            assert again.skipped == 0
            if deaths < number:
                break
    assert deaths > 10


def test_it_may_die_again_and_again() -> None:
    with pymq.open("memory:") as mq, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROUND", 2)
        bury(mq, range(10))
        for number in (4, 2, 3, 5, 3, 3, 2, 4):
            with dies_at(number, is_sent=bool(number % 2)), pytest.raises(Dead):
                mq.redrive(LETTERS)
        mq.redrive(LETTERS)
        assert numbers(sent_back(mq)) == list(range(10))


def test_half_a_round_is_there() -> None:
    """The process dies when one partition has got its letters and another partition has not."""

    def half(
        questions: Any,
        topic: TopicMetadata,
        batches: Mapping[str, EncodedBatch],
        timeout_s: float,
        *,
        sync: bool = False,
    ) -> dict[str, int]:
        if topic.topic != "later":
            return append(questions, topic, batches, timeout_s, sync=sync)
        first = min(batches)
        append(questions, topic, {first: batches[first]}, timeout_s, sync=sync)
        raise Dead

    with pymq.open("memory:") as mq:
        bury(mq, range(20), partitions=1)
        mq.create_topic("later", 3)
        with pytest.MonkeyPatch.context() as patch:
            patch_append(patch, half)
            with pytest.raises(Dead):
                mq.redrive(LETTERS, to="later")
        assert 0 < len(sent_back(mq, "later")) < 20
        mq.redrive(LETTERS, to="later")
        assert numbers(sent_back(mq, "later")) == list(range(20))


@pytest.mark.parametrize("held", range(1, 8))
def test_the_second_redrive_takes_over_from_the_first(held: int) -> None:
    """The first redrive is delayed before it sends a round.

    The second redrive sends that round, and the first one must not send it again.
    """
    count = 0

    def held_up(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == held:
            mq.redrive(LETTERS)
        return append(*arguments, **options)

    with pymq.open("memory:") as mq, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROUND", 3)
        patch_append(patch, held_up)
        bury(mq, range(11))
        with pytest.raises(ProducerFenced, match="another redrive"):
            mq.redrive(LETTERS)
        assert numbers(sent_back(mq)) == list(range(11))


def test_a_batch_of_the_first_that_arrives_late_is_sent_once() -> None:
    """The batch arrives after the second redrive has asked for the sequence, and before it sends
    the rest.
    """
    late = list[Callable[[], object]]()

    def held_up(questions: Any, topic: TopicMetadata, *rest: Any, **options: Any) -> Any:
        if topic.topic == "t" and not late:
            late.append(lambda: append(questions, topic, *rest, **options))
            raise Dead
        if topic.topic == "t" and len(late) == 1:
            late[0]()
            late.append(lambda: None)
        return append(questions, topic, *rest, **options)

    with pymq.open("memory:") as mq, pytest.MonkeyPatch.context() as patch:
        bury(mq, range(11), partitions=1)
        patch_append(patch, held_up)
        with pytest.raises(Dead):
            mq.redrive(LETTERS)
        mq.redrive(LETTERS)
        assert len(late) == 2
        assert numbers(sent_back(mq)) == list(range(11))


@pytest.mark.parametrize("seed", range(4))
def test_leaders_die_meanwhile(seed: int) -> None:
    """In virtual time, on three brokers: the letters come from a topic whose records are on a
    majority.
    """
    count, dead = 0, list[str]()

    def shaken(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3 + seed:
            leader = mq.describe_topic("t").partitions[0].leader
            assert leader is not None
            cluster.crash(leader)
            dead.append(leader)
        if count == 6 + seed:
            cluster.restart(dead[0])
        return append(*arguments, **options)

    with Cluster(brokers=3, seed=seed) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROUND", 4)
        patch_append(patch, shaken)
        mq = cluster.client()
        mq.create_topic("t", 2, 3, "raft")
        mq.create_topic(LETTERS, 2, 3, "raft")
        bury(mq, range(20))
        assert mq.redrive(LETTERS).count == 20
        assert numbers(sent_back(mq)) == list(range(20))
        assert dead
        cluster.check()
