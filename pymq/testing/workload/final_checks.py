"""Reads all records at the end of a run and compares them with the answers to the applications."""

from __future__ import annotations

from pymq.errors import (
    DeliveryTimeout,
    InvalidRequest,
    InvalidTimestamp,
    OutOfOrderSequence,
    PartitionUnset,
    PymqError,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
)
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.applications import Application, Sent, WorkloadHistory
from pymq.testing.workload.convergence import Convergence
from pymq.testing.workload.liveness import Liveness
from pymq.testing.workload.promises import TopicPromises
from pymq.testing.workload.service import Service
from pymq.testing.workload.survivor import BOUND_S, committed_on, draw_survivor, let_others_die

# Errors that prove that no broker has written the record.
DEFINITE = (InvalidRequest, PartitionUnset, RecordTooLarge, UnknownPartition, UnknownTopic)


def is_definite(error: PymqError | None) -> bool:
    """Whether *error* proves that no broker has written the record."""
    if isinstance(error, DeliveryTimeout):
        return not error.may_be_written
    # The network may deliver a second copy of the request after the clock of the broker was
    # corrected.
    return isinstance(error, DEFINITE) and not isinstance(error, InvalidTimestamp)


class FinalChecks:
    """Checks acknowledged and failed sends against the records that exist at the end."""

    def __init__(
        self,
        cluster: Cluster,
        watch: StoreWatch,
        plan: Plan,
        history: WorkloadHistory,
        service: Service,
        liveness: Liveness,
        convergence: Convergence,
        promises: TopicPromises,
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._plan = plan
        self._history = history
        self._service = service
        self._liveness = liveness
        self._convergence = convergence
        self._promises = promises

    def check_reads(self) -> tuple[dict[tuple[str, str, int], int], dict[tuple[str, str], int]]:
        """Read every record once more and compare them with the answers to the applications.

        Returns the number in each record by its place, and where each partition begins.
        """
        host = self._cluster.add_client("auditor")
        host.start()
        auditor = Application(
            self._cluster, host, self._history, {}, self._watch.fail, self._service
        )
        for topic in self._plan.topics:
            auditor.read(str(topic["name"]))
        self._liveness.until(
            lambda: len(auditor.readers) == len(self._plan.topics), "auditor-reads"
        )
        self._liveness.until(
            lambda: all(self._convergence.is_at_end(reading) for reading in auditor.readers),
            "auditor-reads",
        )
        self._cluster.world.run(self._cluster.world.now + SECOND)
        seen: dict[int, tuple[str, str, int]] = {}
        starts: dict[tuple[str, str], int] = {}
        for reading in auditor.readers:
            for (partition, offset), number in reading.seen.items():
                place = (reading.topic, partition, offset)
                if number < 0 or self._is_elsewhere(place, number):
                    continue
                if number in seen and self._is_numbered(place, seen[number]):
                    self._watch.fail(
                        "written-once", f"{number} is in {seen[number]} and in {place}"
                    )
                seen[number] = place
            for name, cursor in reading.reader.cursors.items():
                starts[reading.topic, name] = cursor.log_start
        values = {
            (reading.topic, partition, offset): number
            for reading in auditor.readers
            for (partition, offset), number in reading.seen.items()
        }
        for sent in self._history.sent:
            self._check_sent(sent, seen, values, starts)
        return values, starts

    def check_survivor(self, left: str | None) -> None:
        """Crash all brokers but one, whose committed records must be readable within a bound.

        The broker *left* has a failed disk and is not chosen as the survivor.
        """
        survivor = draw_survivor(self._plan.seed, list(self._cluster.brokers), left)
        if survivor is None:
            return
        wanted = committed_on(self._cluster, self._plan, survivor)
        let_others_die(self._cluster, survivor)
        host = self._cluster.add_client("mourner")
        host.start()
        reader = Application(
            self._cluster, host, self._history, {}, self._watch.fail, self._service
        )
        topics = list(dict.fromkeys(topic for topic, _ in wanted))
        for topic in topics:
            reader.read(topic)

        def is_read() -> bool:
            at = {
                (reading.topic, name): cursor.position
                for reading in reader.readers
                for name, cursor in reading.reader.cursors.items()
            }
            return all(at.get(place, -1) >= end for place, end in wanted.items())

        def progress() -> int:
            # A fetch may return only one record; that is slow but correct.
            return sum(c.position for r in reader.readers for c in r.reader.cursors.values())

        self._liveness.until(is_read, "readable-without-leader", BOUND_S, progress)

    def _is_elsewhere(self, place: tuple[str, str, int], number: int) -> bool:
        """Whether a record came from another topic: a dead letter that was sent back."""
        sent = self._history.sent[number]
        return (sent.topic, sent.partition) != place[:2]

    def _is_numbered(self, *places: tuple[str, str, int]) -> bool:
        """Whether the batches at *places* carry sequence numbers, which show a duplicate."""
        for topic, partition, offset in places:
            history = self._watch.history_of(topic, partition)
            batch = history.batch_at(offset) if history is not None else None
            if batch is None or batch.producer_id < 0:
                return False
        return True

    def _check_sent(
        self,
        sent: Sent,
        seen: dict[int, tuple[str, str, int]],
        values: dict[tuple[str, str, int], int],
        starts: dict[tuple[str, str], int],
    ) -> None:
        name = (sent.topic, sent.partition)
        history = self._watch.history_of(*name)
        if name not in starts:
            return  # the partition is newer than the auditor's metadata
        if sent.is_acked and sent.offset >= starts[name]:
            if not self._promises.is_safe(sent):
                return
            place = (*name, sent.offset)
            if values.get(place) != sent.number and (history is None or not history.losses):
                self._watch.fail(
                    "acked-is-kept",
                    f"{sent.number} was acknowledged at {place}, where {values.get(place)} is now",
                )
        elif isinstance(sent.error, OutOfOrderSequence) and not (history and history.losses):
            self._watch.fail("sequences-are-kept", f"{sent.number} failed: {sent.error}")
        elif is_definite(sent.error) and sent.number in seen:
            self._watch.fail("failed-is-absent", f"{sent.number} failed: {sent.error}")
