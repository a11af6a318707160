"""A simulated client of Kafka: connections, metadata, and the way to leaders and coordinators.

The client is small and does what Kafka's clients do: it asks any broker for metadata, sends each
request to the leader of its partition, refreshes the metadata when a broker refuses a request, and
waits between two attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as k
from pymq.kafka.wire.schema import schemas
from pymq.testing.cluster import Cluster
from pymq.testing.simulation.kafka.door import address_of
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.kafka.wire import Fail, KafkaWire, Then

BACKOFF_US = 100_000  # between two attempts
REQUEST_US = 10 * SECOND  # a broker's time to answer
METADATA_US = 5 * SECOND
# The versions of an older client (Kafka 2.8); a new client has the last ones.
OLD = {
    "Produce": 8,
    "Fetch": 11,
    "Metadata": 8,
    "ListOffsets": 5,
    "FindCoordinator": 3,
    "JoinGroup": 5,
    "SyncGroup": 3,
    "Heartbeat": 3,
    "LeaveGroup": 3,
    "OffsetCommit": 7,
    "OffsetFetch": 7,
    "DeleteRecords": 1,
    "InitProducerId": 3,
}
# Errors after which a client refreshes its metadata and tries again, as Kafka's client do.
RETRIABLE = frozenset(
    (
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_TOPIC_ID,
    )
)


@define
class KnownTopic:
    """A topic as the metadata have it."""

    name: str
    id: bytes
    leaders: dict[int, int] = Factory(dict)  # nodes, by the index of the partition


class SimKafkaClient:
    """One process that is a client of Kafka."""

    def __init__(
        self, cluster: Cluster, host: ClientHost, config: dict[str, Any], fail: Fail
    ) -> None:
        assert cluster.streams is not None
        self.cluster = cluster
        self.host = host
        self.name = host.name
        self.config = config
        self.fail = fail
        self.world = cluster.world
        self.rng = self.world.rng("kafka client", host.name, host.incarnation)
        self._loop = host.loop
        self._streams = cluster.streams
        self._wires: dict[str, KafkaWire] = {}
        self._nodes: dict[int, str] = {}
        self.topics: dict[str, KnownTopic] = {}
        self._wanted: dict[str, None] = {}
        self._is_loading = False
        self.when_known: list[Callable[[], None]] = []
        self.readers = 0  # how many were made
        self.calm_at = NEVER  # from when on each request must be answered in time

    @property
    def is_up(self) -> bool:
        """Whether the process that made this client still runs."""
        return self.host.loop is self._loop and self._loop is not None

    def version(self, name: str) -> int:
        """The version of an API that the client speaks."""
        last = schemas()[f"{name}Request"].versions[1]
        return OLD.get(name, last) if self.config.get("versions") == "old" else last

    def hurry(self, since: int) -> None:
        """Read at full speed, and demand an answer to each request from *since* on."""
        self.calm_at, self.config = since, {**self.config, "slow": 0}
        for wire in self._wires.values():
            wire.slow = 0

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do something after a while, if the process still runs then."""
        self.world.after(delay_us, lambda a, b: action() if self.is_up else None)

    def die(self) -> None:
        """Die, in the middle of everything."""
        self.host.die()
        for wire in self._wires.values():
            wire.abandon()
        self._streams.died(self.name)

    # --- requests -------------------------------------------------------------------------------

    def ask(
        self,
        address: str | None,
        name: str,
        body: object,
        then: Then,
        *,
        line: str = "",
        wait_us: int = REQUEST_US,
    ) -> None:
        """Send a request, and call *then* with the answer, or None if the connection breaks.

        Requests of another *line* use a connection of their own, such as those of a group's member.
        """
        if address is None:
            self.later(0, lambda: then(None))
            return
        wire = self._wires.get(address + line)
        if wire is None or wire.is_over:
            wire = self._wires[address + line] = KafkaWire(
                self.world,
                self._streams,
                self.name,
                address,
                self.fail,
                slow=int(self.config.get("slow", 0)),
            )

        def answered(answer: Any) -> None:
            if self.is_up:
                then(answer)

        wire.calm_at = self.calm_at
        wire.ask(name, self.version(name), body, answered, wait_us)

    def check_code(self, code: int, where: str) -> int:
        """Return an error code; the broker must not report a bug of its own."""
        if code == Code.UNKNOWN_SERVER_ERROR:
            self.fail("no-server-error", where)
        return code

    # --- metadata -------------------------------------------------------------------------------

    def leader(self, topic: str, index: int) -> str | None:
        """Return the address of a partition's leader, if the client knows one."""
        known = self.topics.get(topic)
        node = known.leaders.get(index, -1) if known is not None else -1
        return self._nodes.get(node)

    def topic_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic by its id."""
        return next((each.name for each in self.topics.values() if each.id == topic_id), None)

    def refresh(self, topics: Iterable[str] = ()) -> None:
        """Ask for the metadata of some topics, and of those that were asked for before."""
        self._wanted |= dict.fromkeys(topics)
        if not self._is_loading:
            self._is_loading = True
            self.later(self.rng.randrange(1, BACKOFF_US), self._load)

    def _load(self) -> None:
        address = self.rng.choice([*self._nodes.values(), *map(address_of, self.cluster.brokers)])
        wanted = [k.MetadataRequestMetadataRequestTopic(k.NO_ID, name) for name in self._wanted]
        body = k.MetadataRequest(wanted, False)
        self.ask(address, "Metadata", body, self._loaded, line="m", wait_us=METADATA_US)

    def _loaded(self, answer: k.MetadataResponse | None) -> None:
        self._is_loading = False
        if answer is None or not answer.brokers:
            self.later(BACKOFF_US, self.refresh)
            return
        self._nodes = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
        if len(self._nodes) != len(answer.brokers):
            self.fail("nodes-are-distinct", f"{answer.brokers}")
        for topic in answer.topics:
            self.check_code(topic.error_code, f"metadata of {topic.name}")
            if topic.error_code or topic.name is None:
                continue
            known = KnownTopic(topic.name, topic.topic_id)
            for each in topic.partitions:
                self.check_code(each.error_code, f"metadata of {topic.name}/{each.partition_index}")
                if not each.error_code:
                    known.leaders[each.partition_index] = each.leader_id
                else:
                    known.leaders[each.partition_index] = -1
            self.topics[topic.name] = known
        waiting, self.when_known = self.when_known, []
        for action in waiting:
            action()

    # --- coordinators ---------------------------------------------------------------------------

    def find_coordinator(self, group: str, then: Callable[[str | None], None]) -> None:
        """Find the address of a group's coordinator; None if there is none now."""

        def found(answer: k.FindCoordinatorResponse | None) -> None:
            if answer is None:
                then(None)
                return
            each: Any = answer.coordinators[0] if answer.coordinators else answer
            code = self.check_code(each.error_code, f"coordinator of {group}")
            then(f"{each.host}:{each.port}" if not code else None)

        body = k.FindCoordinatorRequest(group, 0, [group])
        self.ask(self.anybody(), "FindCoordinator", body, found, line="m")

    def anybody(self) -> str:
        """Return the address of any broker."""
        return self.rng.choice([*self._nodes.values()] or [*map(address_of, self.cluster.brokers)])
