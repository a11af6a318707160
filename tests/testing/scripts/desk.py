"""The common base of the scripts for crash tests, which use a :class:`Desk`.

A script acts as an application or an administrator while a node may die at any point: it repeats
unanswered requests, and starts again where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq import Client, Consumer, Delivery, Producer, Record
from pymq.errors import FencedMember, NotEnoughBrokers, PymqError
from pymq.testing import Cluster
from pymq.testing.crashpoints import Scenario
from tests.simulator.whole import PROBE, check_whole

SCENARIOS: dict[str, Scenario] = {}
PATIENCE_S = 20.0
Place = tuple[str, str, int]  # topic, partition, offset


class Desk:
    """A client that records the records it has sent, and the acknowledgements it got."""

    def __init__(self, cluster: Cluster, may_lose: bool) -> None:
        self.cluster = cluster
        # whether answered records may be lost if a broker dies, as with ack mode 1
        self.may_lose = may_lose
        self.mq: Client = cluster.client()
        # deliveries by topic and partition, in the order of sending
        self.sent: dict[tuple[str, str], list[Delivery]] = {}
        self.acked: dict[Place, bytes] = {}
        self.groups: dict[tuple[str, str], set[Place]] = {}  # records that each group has processed
        self.forgotten: set[str] = set()  # topics that were deleted
        self._producer: Producer | None = None

    # --- sending ----------------------------------------------------------------------------------

    def topic(self, name: str = "t", replicas: int = 3, acks: str = "raft", **more: Any) -> None:
        """Make a topic."""
        more = {"replicas": replicas, "acks": acks, "exist_ok": True, **more}
        self.insist(self.mq.create_topic, name, **more)

    def producer(self, **options: Any) -> Producer:
        """Use another producer from now on, after all records of the last one have been
        answered.
        """
        self.settle()
        self._producer = self.mq.producer(delivery_timeout_s=PATIENCE_S, **options)
        return self._producer

    def send(
        self,
        count: int = 1,
        topic: str = "t",
        partition: str = "0",
        *,
        size: int = 0,
        keys: int = 0,
    ) -> None:
        """Send records without waiting; the values of a partition are numbered."""
        producer = self._producer or self.producer(linger_ms=0)
        sent = self.sent.setdefault((topic, partition), [])
        for _ in range(count):
            value = b"%d " % len(sent) + bytes(size)
            key = b"%d" % (len(sent) % keys) if keys else None
            sent.append(producer.send(topic, value, key=key, partition=partition))

    def settle(self) -> None:
        """Wait for all answers, and record their promises."""
        if self._producer is not None:
            self._producer.flush(PATIENCE_S)
        for (topic, partition), sent in self.sent.items():
            for delivery in sent:
                offset = delivery.result(PATIENCE_S).offset
                if offset >= 0:
                    self.acked[topic, partition, offset] = delivery.value

    # --- administrating ---------------------------------------------------------------------------

    def insist(self, ask: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Repeat a request until it is answered and can be carried out."""
        for _ in range(20):
            try:
                ask(*arguments, **options)
            except NotEnoughBrokers:
                self.cluster.run(0.5)  # the brokers restart within this time
            except PymqError as error:
                if not error.retriable:
                    raise
                self.cluster.run(0.5)
            else:
                return
        raise AssertionError(f"{ask.__name__}{arguments} was not done")

    def leader(self, topic: str = "t", partition: str = "0") -> str:
        """The present leader of a partition, or the last known leader."""
        for _ in range(40):
            for p in self.mq.describe_topic(topic).partitions:
                if p.name == partition and p.leader is not None:
                    return p.leader
            self.cluster.run(0.5)
        raise AssertionError(f"nobody leads {topic}/{partition}")

    def followers(self, topic: str = "t", partition: str = "0") -> list[str]:
        """The replicas of the open block except its leader."""
        leader = self.leader(topic, partition)
        for p in self.mq.describe_topic(topic).partitions:
            if p.name == partition:
                return [name for name in p.replicas if name != leader]
        raise AssertionError(f"there is no {topic}/{partition}")

    # --- consuming --------------------------------------------------------------------------------

    def work(
        self,
        group: str = "g",
        topic: str = "t",
        handle: Callable[[Consumer, Record], bool] | None = None,
        **options: Any,
    ) -> None:
        """Process a topic as a member of a group; if an answer is missing, join again."""
        done = self.groups.setdefault((group, topic), set())
        for _ in range(12):
            seen: list[Place] = []
            try:
                with self.mq.consumer(topic, group=group, **options) as consumer:
                    for record in consumer.until_end():
                        if handle is None or handle(consumer, record):
                            consumer.ack(record)
                            seen.append((topic, record.partition, record.offset))
                    consumer.commit(timeout=PATIENCE_S)
                    return
            except PymqError as error:
                if not error.retriable and not isinstance(error, FencedMember):
                    raise
                self.cluster.run(0.2)
            finally:
                done.update(seen)
        raise AssertionError(f"group {group} has not got to the end of {topic}")

    def read(self, topic: str) -> dict[Place, bytes]:
        """Everything that is in a topic."""
        found = {}
        with self.mq.consumer(topic, mode="psb") as consumer:
            for record in consumer.until_end():
                found[topic, record.partition, record.offset] = record.value
        return {place: value for place, value in found.items() if value != PROBE}

    # --- at last ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that all promised records are there, once and in order, and no record that was not
        sent.
        """
        for group, topic in list(self.groups):
            self.work(group, topic)
        check_whole(self.cluster)
        topics = {topic for topic, _ in self.sent} - self.forgotten
        found = {
            place: value for topic in sorted(topics) for place, value in self.read(topic).items()
        }
        self._check_kept(found)
        self._check_order(found)
        for (group, topic), done in self.groups.items():
            missing = {place for place in found if place[0] == topic} - done
            assert not missing, f"group {group} has never got {sorted(missing)}"

    def _check_kept(self, found: dict[Place, bytes]) -> None:
        has_died = any(host.incarnation > 1 for host in self.cluster.brokers.values())
        may_lose = self.may_lose and has_died
        starts: dict[tuple[str, str], int] = {}
        for topic, partition, offset in found:
            starts[topic, partition] = min(starts.get((topic, partition), offset), offset)
        for place, value in self.acked.items():
            name = place[:2]
            if place[0] in self.forgotten or place[2] < starts.get(name, 0) or may_lose:
                continue
            if place not in found and self._is_compacted(place[0]):
                continue
            assert found.get(place) == value, (
                f"{place}: {value!r} was promised: {found.get(place)!r}"
            )

    def _is_compacted(self, topic: str) -> bool:
        return self.mq.describe_topic(topic).config.cleanup_policy == "compact"

    def _check_order(self, found: dict[Place, bytes]) -> None:
        for (topic, partition), sent in self.sent.items():
            if topic in self.forgotten:
                continue
            numbers = {delivery.value: number for number, delivery in enumerate(sent)}
            places = sorted(place for place in found if place[:2] == (topic, partition))
            unknown = [found[place] for place in places if found[place] not in numbers]
            assert not unknown, f"nobody has sent {unknown}"
            order = [numbers[found[place]] for place in places]
            assert order == sorted(set(order)), f"{topic}/{partition} has {order}"


Work = Callable[[Desk], None]


def scenario(*, may_lose: bool = False, **options: Any) -> Callable[[Work], Work]:
    """Turn a function into a scenario, with three brokers and a zkserver unless *options*
    differ.
    """

    def register(work: Work) -> Work:
        def script(cluster: Cluster) -> None:
            desk = cluster.notes["desk"] = Desk(cluster, may_lose)
            work(desk)
            desk.settle()

        def then(cluster: Cluster) -> None:
            desk: Desk = cluster.notes["desk"]
            desk.check()

        name = work.__name__
        assert name not in SCENARIOS
        SCENARIOS[name] = Scenario(name, script, then, options)
        return work

    return register
