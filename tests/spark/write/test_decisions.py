"""The decisions of a sink, simulated: after any failure at any point the topic has each row
once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import pytest

import pymq
from pymq.client.admin.requests import Requests
from pymq.client.router import Call
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Copied, Copy, Fetch, Message, Produce
from pymq.errors import InvalidRequest, ProducerFenced, RecordTooLarge
from pymq.hash.partitioner import key_partition
from pymq.spark.write.decisions import PARTITIONS, TOPIC, DecisionLedger, task_name
from pymq.spark.write.staging import PREFIX, Stage, StagedPiece
from pymq.testing import Cluster
from pymq.testing.simulation.process import Process

TIMEOUT_S = 10.0
Rows = list[tuple[str, list[bytes]]]
T = TypeVar("T")


class Died(BaseException):
    """The driver was killed."""


class Mortal(Requests):
    """A driver that dies after a given number of requests; the last one may have arrived or not."""

    def __init__(self, like: Requests, lives: int, *, is_heard: bool) -> None:
        super().__init__(like._name, like._router, like._driver)
        self.left = lives
        self._is_heard = is_heard

    def ask_leaders(
        self,
        topic: str,
        partitions: Iterable[str],
        make: Callable[[int, str], Message],
        timeout: float = TIMEOUT_S,
        *,
        any_replica: bool = False,
    ) -> dict[str, Message]:
        """Count a request."""
        ask = partial(super().ask_leaders, topic, partitions, make, timeout)
        return self._ask(partial(ask, any_replica=any_replica))

    def begin(
        self, topic: str, partition: str, make: Callable[[int], Message], *more: Any
    ) -> Call | None:
        """Count a request; those before it may be unanswered."""
        return self._ask(partial(super().begin, topic, partition, make, *more))

    def end(self, call: Call, *more: Any) -> Message | None:
        """Count an answer; the driver dies before later ones."""
        return self._ask(partial(super().end, call, *more))

    def _ask(self, question: Callable[[], T]) -> T:
        self.left -= 1
        if self.left == 0 and not self._is_heard:
            raise Died
        answer = question()
        if self.left == 0:
            raise Died
        return answer


class Alone(Mortal):
    """Brokers of an older version, which cannot copy batches."""

    def begin(
        self, topic: str, partition: str, make: Callable[[int], Message], *more: Any
    ) -> Call | None:
        return None if isinstance(make(0), Copy) else super().begin(topic, partition, make, *more)


class Deaf(Alone):
    """Loses one answer, after all later requests have been done."""

    def __init__(self, like: Requests, misses: int) -> None:
        super().__init__(like, -1, is_heard=True)
        self._appends: list[Call] = []
        self._misses = misses  # lost answers to appends

    def begin(
        self, topic: str, partition: str, make: Callable[[int], Message], *more: Any
    ) -> Call | None:
        call = super().begin(topic, partition, make, *more)
        if call is not None and isinstance(call.message, Produce):
            self._appends.append(call)
        return call

    def end(self, call: Call, *more: Any) -> Message | None:
        if call not in self._appends or self._appends.index(call) != self._misses:
            return super().end(call, *more)
        for each in self._appends[self._misses :]:
            assert self._driver.wait(each, TIMEOUT_S)
        return None


def stage(mq: pymq.Client, name: str, rows: Rows) -> tuple[StagedPiece, ...]:
    """Stage rows for partitions of topic ``t``, one batch each."""
    staged = Stage(mq, name, TIMEOUT_S)
    for partition, values in rows:
        staged.put(("t", partition), EncodedBatch.encode(values, timestamp_ms=5))
    staged.flush()
    return tuple(staged.pieces)


def rows(count: int, tag: str) -> Rows:
    """Return six batches for two partitions, of distinct rows."""
    return [
        (str(number % 2), [b"%s-%d-%d" % (tag.encode(), number, row) for row in range(count)])
        for number in range(6)
    ]


def expected(*batches: Rows) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {"0": [], "1": []}
    for batch in batches:
        for partition, values in batch:
            found[partition] += values
    return found


def written(mq: pymq.Client) -> dict[str, list[bytes]]:
    with mq.consumer("t", mode="psb") as consumer:
        found: dict[str, list[bytes]] = {"0": [], "1": []}
        for record in consumer.until_end():
            found[record.partition].append(record.value)
    return found


def stages(mq: pymq.Client) -> list[str]:
    return [name for name in mq.topics() if name.startswith(PREFIX) and "decisions" not in name]


def test_batches_are_written_once_and_in_order() -> None:
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        ledger = DecisionLedger(mq, "s", TIMEOUT_S)
        first, second = rows(3, "a"), rows(2, "b")
        assert ledger.commit(0, "pymq-spark.s.0", stage(mq, "pymq-spark.s.0", first))
        assert not ledger.commit(0, "pymq-spark.s.0", stage(mq, "pymq-spark.s.0", first))
        assert ledger.commit(4, "pymq-spark.s.4", stage(mq, "pymq-spark.s.4", second))
        with pytest.raises(InvalidRequest, match="checkpoint was copied or set back"):
            ledger.commit(3, "pymq-spark.s.3", stage(mq, "pymq-spark.s.3", first))
        assert written(mq) == expected(first, second)
        assert stages(mq) == []


def test_processes_of_one_run_decide_in_turn() -> None:
    """Spark commits in any idle process of its driver; processes of one run must not fence each
    other.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        siblings = [DecisionLedger(cluster.client(), "s", TIMEOUT_S, run="run-1") for _ in range(3)]
        batches = [rows(2, f"batch-{number}") for number in range(6)]
        for number, batch in enumerate(batches):
            name = f"pymq-spark.s.{number}"
            assert siblings[number % 3].commit(number, name, stage(mq, name, batch))
        assert written(mq) == expected(*batches)
        name = "pymq-spark.s.5"
        # every process knows the decision
        assert not siblings[0].commit(5, name, stage(mq, name, batches[5]))


def test_another_run_fences_the_one_before() -> None:
    """Of two drivers on one checkpoint, the later one continues and fences the earlier one."""
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        first = DecisionLedger(mq, "s", TIMEOUT_S, run="run-1")
        second = DecisionLedger(cluster.client(), "s", TIMEOUT_S, run="run-2")
        zero, one = "pymq-spark.s.0", "pymq-spark.s.1"
        assert second.commit(0, zero, stage(mq, zero, rows(2, "a")))
        with pytest.raises(ProducerFenced):
            first.commit(1, one, stage(mq, one, rows(2, "b")))
        first.enter("run-3")  # the restarted driver knows the decisions made meanwhile
        assert not first.commit(0, zero, stage(mq, zero, rows(2, "a")))
        assert first.commit(1, one, stage(mq, one, rows(2, "b")))
        assert written(mq) == expected(rows(2, "a"), rows(2, "b"))


def test_what_is_staged_is_not_to_be_seen() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2)
        stage(mq, "pymq-spark.s.0", rows(3, "a"))
        assert written(mq) == {"0": [], "1": []}


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize(("kind", "least"), [(Mortal, 12), (Alone, 20)])
def test_a_driver_may_die_at_any_question(kind: type[Mortal], least: int, is_heard: bool) -> None:
    """The next driver gets the same batch, staged again in another order, and then the next
    batch.
    """
    lives, has_died = 0, True
    while has_died:
        lives += 1
        has_died = False
        with Cluster(brokers=1, seed=lives) as cluster:
            mq = cluster.client()
            mq.create_topic("t", partitions=2)
            first, again, second = rows(3, "a"), rows(3, "a")[::-1], rows(2, "b")
            pieces = stage(mq, "pymq-spark.s.7", first)
            mq.questions = kind(mq.questions, lives, is_heard=is_heard)
            try:
                DecisionLedger(mq, "s", TIMEOUT_S).commit(7, "pymq-spark.s.7", pieces)
            except Died:
                has_died = True
            heir = cluster.client()
            ledger = DecisionLedger(heir, "s", TIMEOUT_S)
            ledger.commit(7, "pymq-spark.s.7", stage(heir, "pymq-spark.s.7", again))
            ledger.commit(8, "pymq-spark.s.8", stage(heir, "pymq-spark.s.8", second))
            assert written(heir) in (expected(first, second), expected(again, second)), lives
            assert stages(heir) == []
    assert lives > least


@pytest.mark.parametrize("misses", range(8))
def test_an_answer_may_be_lost_of_a_batch_before_many(misses: int) -> None:
    """A partition remembers the offsets of five batches; for older batches the sink reads the
    sequence.
    """
    with Cluster(brokers=1, seed=misses) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=4)
        mine = [(str(max(0, number - 12)), [b"%d" % number]) for number in range(16)]
        pieces = stage(mq, "pymq-spark.s.0", mine)
        mq.questions = Deaf(mq.questions, misses)
        assert DecisionLedger(mq, "s", TIMEOUT_S).commit(0, "pymq-spark.s.0", pieces)
        with mq.consumer("t", mode="psb") as consumer:
            found = [(record.partition, record.value) for record in consumer.until_end()]
        assert sorted(found) == sorted((place, each[0]) for place, each in mine)
        assert [each for place, each in found if place == "0"] == [b"%d" % n for n in range(13)]


class Lossy(Requests):
    """Requests copies from brokers; one answer comes too late."""

    def __init__(self, like: Requests, misses: int) -> None:
        super().__init__(like._name, like._router, like._driver)
        self.copied: list[bool] = []  # whether the answers to the requests arrived
        self._misses = misses

    def end(self, call: Call, *more: Any) -> Message | None:
        answer = super().end(call, *more)
        if isinstance(call.message, Copy):
            self.copied.append(isinstance(answer, Copied) and len(self.copied) != self._misses)
            return answer if self.copied[-1] else None
        return answer


@pytest.mark.parametrize("misses", range(3))
def test_an_answer_of_a_broker_that_copies_may_be_lost(misses: int) -> None:
    """If the answer to a copy is lost, the copy exists once, and the sink does not ask that broker
    again.
    """
    with Cluster(brokers=1, seed=misses) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=1)
        mine = [("0", [b"%d" % number]) for number in range(70)]
        pieces = stage(mq, "pymq-spark.s.0", mine)
        questions = mq.questions = Lossy(mq.questions, misses)
        assert DecisionLedger(mq, "s", TIMEOUT_S).commit(0, "pymq-spark.s.0", pieces)
        assert questions.copied == [*[True] * misses, False]
        with mq.consumer("t", mode="psb") as consumer:
            assert [each.value for each in consumer.until_end()] == [b"%d" % n for n in range(70)]


@pytest.mark.parametrize("brokers", [1, 3])
def test_nothing_that_is_copied_goes_through_the_driver(brokers: int) -> None:
    """Batches are staged at the broker that leads their partition, and that broker copies them."""
    with Cluster(brokers=brokers, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=6, replicas=brokers, acks="raft")
        mine = [(str(number % 6), [b"%d" % number]) for number in range(24)]
        pieces = stage(mq, "pymq-spark.s.0", mine)
        questions = mq.questions = Lossy(mq.questions, -1)
        moved: list[str] = []  # the topics of batches that this process sends or fetches

        def note(process: Process, peer: str, source: str, message: Message) -> None:
            assert isinstance(message, Produce | Fetch)
            moved.append(message.topic)

        for kind in (Produce, Fetch):
            cluster.clients["client-0"].on_send.setdefault(kind, []).append(note)
        assert DecisionLedger(mq, "s", TIMEOUT_S).commit(0, "pymq-spark.s.0", pieces)
        assert questions.copied == [True] * 6
        assert set(moved) == {TOPIC}  # only the decision goes through the driver
        with mq.consumer("t", mode="psb") as consumer:
            found = sorted((each.partition, each.value) for each in consumer.until_end())
        assert found == sorted((place, values[0]) for place, values in mine)


def test_of_two_drivers_one_writes() -> None:
    """The former driver makes no further decision; the new one completes the earlier decisions."""
    with Cluster(brokers=3, seed=3) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        old = DecisionLedger(mq, "s", TIMEOUT_S)
        pieces = stage(mq, "pymq-spark.s.0", rows(3, "a"))
        old.refresh()
        decision = old.decide(0, "pymq-spark.s.0", pieces)
        new = DecisionLedger(other, "s", TIMEOUT_S)
        replayed = stage(other, "pymq-spark.s.0", rows(3, "a"))
        assert not new.commit(0, "pymq-spark.s.0", replayed)
        with pytest.raises(ProducerFenced):
            old.finish(decision)
        more = stage(mq, "pymq-spark.s.1", rows(3, "b"))
        with pytest.raises(ProducerFenced):
            old.commit(1, "pymq-spark.s.1", more)
        assert written(other) == expected(rows(3, "a"))


def test_a_job_is_not_written_in_another_number_of_tasks() -> None:
    """If the number of rows or the known number of tasks differs, the sink writes nothing."""
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2)

        def commit(task: int, count: int, tasks: int) -> bool:
            sink = task_name("j", task)
            name = f"{PREFIX}{sink}.0"
            pieces = stage(mq, name, rows(count, sink))
            return DecisionLedger(mq, sink, TIMEOUT_S, job="j").commit(0, name, pieces, tasks)

        assert commit(0, 3, 2)
        assert commit(1, 3, 2)
        assert not commit(0, 3, 2)
        with pytest.raises(InvalidRequest, match="has written 18 records, and is now given 12"):
            commit(1, 2, 0)
        with pytest.raises(InvalidRequest, match="was run in 2 tasks, and is now run in 3"):
            commit(2, 2, 3)
        assert commit(2, 2, 0)  # The number of tasks is unknown.
        wanted = [rows(3, "j.task0"), rows(3, "j.task1"), rows(2, "j.task2")]
        assert written(mq) == expected(*wanted)
        assert stages(mq) == []
        # Another job, whose name has the same beginning and whose decisions are in the same topic.
        numbers = (f"j.task{number}" for number in range(1000))
        alike = next(job for job in numbers if place(job) == place("j"))
        sink = task_name(alike, 0)
        pieces = stage(mq, f"{PREFIX}{sink}.0", rows(1, sink))
        assert DecisionLedger(mq, sink, TIMEOUT_S, job=alike).commit(
            0, f"{PREFIX}{sink}.0", pieces, 9
        )
        assert not commit(1, 3, 2)
        assert commit(3, 1, 2)


def place(job: str) -> int:
    return key_partition(job.encode(), PARTITIONS)


@pytest.mark.parametrize("seed", range(6))
def test_leaders_may_die_meanwhile(seed: int) -> None:
    """Staging, deciding and copying work while the leaders are killed."""
    rng = random.Random(seed)
    with Cluster(brokers=4, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        ledger, done = DecisionLedger(mq, "s", 60.0), []
        broker = f"broker-{rng.randrange(4)}"
        for number in range(4):
            cluster.crash(broker, disk="none", at_boundary=rng.randrange(200))
            done.append(rows(2, f"n{number}"))
            name = f"pymq-spark.s.{number}"
            staged = Stage(mq, name, 60.0)
            for partition, values in done[-1]:
                staged.put(("t", partition), EncodedBatch.encode(values, timestamp_ms=5))
            staged.flush()
            ledger.commit(number, name, tuple(staged.pieces))
            cluster.run(seconds=2)
            _restart(cluster, broker)
        cluster.run(seconds=10)
        assert written(mq) == expected(*done)


def _restart(cluster: Cluster, broker: str) -> None:
    if not cluster.brokers[broker].is_up:
        cluster.restart(broker)


@pytest.mark.parametrize("kind", [Requests, Alone])
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_record_that_became_too_large_is_named_with_what_to_do(
    kind: type[Requests], is_decided: bool
) -> None:
    """If the limit is lowered after a batch was staged, the job fails at once; with a higher limit
    the batch is written.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft", max_record_bytes=4_000)
        mine = [("0", [b"a"]), ("1", [b"b"]), ("0", [bytes(3_000)]), ("0", [b"c"]), ("1", [b"d"])]
        name = "pymq-spark.s.0"
        pieces = stage(mq, name, mine)
        if kind is Alone:
            mq.questions = Alone(mq.questions, -1, is_heard=True)
        ledger = DecisionLedger(mq, "s", TIMEOUT_S, run="run-1")
        if is_decided:
            ledger.refresh()
            ledger.decide(0, name, pieces)
        mq.alter_topic("t", max_record_bytes=1_000)
        cluster.run(seconds=1)
        heir = DecisionLedger(mq, "s", TIMEOUT_S, run="run-2")
        begun = cluster.now
        for _ in range(2):
            with pytest.raises(RecordTooLarge) as met:
                heir.commit(0, name, pieces)
            assert "t/0" in str(met.value)
            assert "max_record_bytes is 1000" in str(met.value)
            advice = re.search(r"alter_topic\('t', max_record_bytes=(\d+)\)", str(met.value))
            assert advice is not None
            enough = int(advice[1])
        assert cluster.now - begun < TIMEOUT_S / 2
        mq.alter_topic("t", max_record_bytes=enough)
        cluster.run(seconds=1)
        assert not heir.commit(0, name, pieces)
        assert written(mq) == expected(mine)
        later = "pymq-spark.s.1"
        assert heir.commit(1, later, stage(mq, later, [("0", [b"e"])]))
        assert written(mq) == expected(mine, [("0", [b"e"])])
