"""Kafka's side of a mirror: the clients of confluent-kafka.

This is the only module that imports confluent-kafka. librdkafka connects again by itself, and
fetches records in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pymq.core.values import value
from pymq.errors import (
    AuthorizationFailed,
    ConfigError,
    CorruptBatch,
    Disconnected,
    MissingExtra,
    OffsetOutOfRange,
    UnknownTopic,
)

if TYPE_CHECKING:
    from pymq.mirror.journal import Place

SCHEME = "kafka://"
REQUEST_S = 30.0
QUEUED_KBYTES = 32 << 10  # fetched records that wait in librdkafka
_OF_TOPIC = 1  # Kafka's DYNAMIC_TOPIC_CONFIG: an option that was set for the topic


@value
class KafkaTopic:
    """A topic of Kafka: its number of partitions and replicas, and its options as text."""

    name: str
    partitions: int
    replicas: int
    options: dict[str, str]
    own: frozenset[str] = frozenset()  # names of the options that were set for this topic


def servers_of(url: str) -> str:
    """Return ``bootstrap.servers`` of a URL ``kafka://HOST:PORT,HOST:PORT``.

    Raises:
        ConfigError: *url* is another one.
    """
    servers = url.removeprefix(SCHEME).rstrip("/")
    hosts = servers.split(",")
    if not url.startswith(SCHEME) or not all(
        host and port.isdigit() for host, _, port in (each.rpartition(":") for each in hosts)
    ):
        raise ConfigError(f"{url!r} is not kafka://HOST:PORT or kafka://HOST:PORT,HOST:PORT")
    return servers


def library() -> Any:
    """Return the module confluent_kafka.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise MissingExtra.of("confluent_kafka is missing", "mirror") from error
    return confluent_kafka


class KafkaAdmin:
    """Topics and groups of a Kafka."""

    def __init__(self, conf: Mapping[str, object]) -> None:
        self._kafka = library()
        self._admin = self._kafka.admin.AdminClient(dict(conf))

    def topics(self) -> dict[str, tuple[int, int]]:
        """Return partitions and replicas of each topic but Kafka's internal ones.

        Raises:
            Disconnected: no broker answers.
        """
        found = self._do(lambda: self._admin.list_topics(timeout=REQUEST_S)).topics
        return {
            name: (len(topic.partitions), max(len(p.replicas) for p in topic.partitions.values()))
            for name, topic in found.items()
            if topic.partitions and not name.startswith("__")
        }

    def describe(self, names: Iterable[str]) -> list[KafkaTopic]:
        """Return topics with their options."""
        sizes, admin = self.topics(), self._kafka.admin
        wanted = sorted(names)
        resources = [admin.ConfigResource(admin.ConfigResource.Type.TOPIC, n) for n in wanted]
        futures = self._admin.describe_configs(resources, request_timeout=REQUEST_S)
        found = []
        for resource, name in zip(resources, wanted, strict=True):
            entries = self._do(futures[resource].result).values()
            options = {e.name: e.value for e in entries if e.value is not None}
            own = frozenset(e.name for e in entries if int(e.source) == _OF_TOPIC)
            found.append(KafkaTopic(name, *sizes[name], options, own))
        return found

    def create(self, topic: KafkaTopic) -> None:
        """Create a topic, or add partitions to it."""
        admin, there = self._kafka.admin, self.topics().get(topic.name)
        if there is None:
            new = admin.NewTopic(
                topic.name, topic.partitions, topic.replicas, config=dict(topic.options)
            )
            self._do(self._admin.create_topics([new])[topic.name].result)
        elif there[0] < topic.partitions:
            more = admin.NewPartitions(topic.name, topic.partitions)
            self._do(self._admin.create_partitions([more])[topic.name].result)

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        found = self._do(self._admin.list_consumer_groups(request_timeout=REQUEST_S).result)
        return sorted(group.group_id for group in found.valid)

    def committed(self, group: str) -> dict[Place, int]:
        """Return the committed offsets of a group."""
        asked = self._kafka.ConsumerGroupTopicPartitions(group)
        future = self._admin.list_consumer_group_offsets([asked], request_timeout=REQUEST_S)[group]
        found = self._do(future.result).topic_partitions
        return {
            (each.topic, each.partition): each.offset
            for each in found
            if each.error is None and each.offset >= 0
        }

    def _do(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._kafka.KafkaException as error:
            raise_kafka(error)


class KafkaReader:
    """Reads partitions of a Kafka from given offsets on."""

    def __init__(self, conf: Mapping[str, object], name: str) -> None:
        self._kafka = library()
        self._trouble = ""
        self._consumer = self._kafka.Consumer(
            {
                "queued.max.messages.kbytes": QUEUED_KBYTES,
                **conf,
                "group.id": f"pymq-mirror-{name}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "check.crcs": True,
                "allow.auto.create.topics": False,
                "error_cb": self._note,
            }
        )

    def _note(self, error: Any) -> None:
        self._trouble = error.str()

    @property
    def trouble(self) -> str:
        """The last problem that librdkafka reported, while it lasts; empty if there is none."""
        return self._trouble

    def assign(self, place: Place, offset: int) -> None:
        """Read this partition, too, from an offset on; -1 is the beginning."""
        self._do(lambda: self._consumer.incremental_assign([self._at(place, offset)]))

    def seek(self, place: Place, offset: int) -> None:
        """Go on at another offset; -1 is the beginning."""
        self._do(lambda: self._consumer.incremental_unassign([self._at(place, offset)]))
        self._do(lambda: self._consumer.incremental_assign([self._at(place, offset)]))

    def _at(self, place: Place, offset: int) -> Any:
        start = self._kafka.OFFSET_BEGINNING if offset < 0 else offset
        return self._kafka.TopicPartition(*place, start)

    def bounds(self, place: Place, *, cached: bool = False) -> tuple[int, int]:
        """Return the first offset and the end of a partition; (-1, -1) if they are not known."""
        where = self._kafka.TopicPartition(*place)
        found = self._do(
            lambda: self._consumer.get_watermark_offsets(where, timeout=REQUEST_S, cached=cached)
        )
        low, high = found if found is not None else (-1, -1)
        return (low, high) if high >= 0 else (-1, -1)

    def take(self, most: int, timeout: float) -> list[Any]:
        """Return the next messages, some of which may be events: see :meth:`is_end`."""
        found: list[Any] = self._do(lambda: self._consumer.consume(most, timeout))
        if found:
            self._trouble = ""
        return found

    def is_end(self, message: Any) -> bool:
        """Return whether an event says that a partition has no more records now.

        Raises:
            OffsetOutOfRange: Kafka has removed records that were not read.
            CorruptBatch: a batch cannot be decoded.
            UnknownTopic, AuthorizationFailed: as their names say.
        """
        error, kafka = message.error(), self._kafka.KafkaError
        code, text = error.code(), error.str()
        if code == kafka._PARTITION_EOF:
            return True
        if message.topic() is None or may_pass(error):
            self._trouble = text
            return False
        where = f"{message.topic()}/{message.partition()}"
        if code == kafka._AUTO_OFFSET_RESET:
            raise OffsetOutOfRange(
                f"{where}: Kafka no longer has the records after the last one that was mirrored: "
                f"{text}; --on-error skip goes on with the first record that is left",
                place=(message.topic(), message.partition()),
            )
        if code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):
            raise UnknownTopic(f"{where}: Kafka has no such partition any more")
        if code == kafka.TOPIC_AUTHORIZATION_FAILED:
            raise AuthorizationFailed(f"{where}: Kafka does not allow reading it")
        raise CorruptBatch(f"{where} at offset {message.offset()}: {text}")

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()

    def _do(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._kafka.KafkaException as error:
            raise_kafka(error)


def may_pass(cause: Any) -> bool:
    """Return whether trying again may help against an error of confluent-kafka."""
    kafka = library().KafkaError
    return cause.retriable() or cause.code() in (
        kafka.NOT_COORDINATOR,
        kafka.COORDINATOR_NOT_AVAILABLE,
        kafka.COORDINATOR_LOAD_IN_PROGRESS,
        kafka.UNSTABLE_OFFSET_COMMIT,
        kafka._TRANSPORT,
        kafka._ALL_BROKERS_DOWN,
        kafka._TIMED_OUT,
        kafka._RESOLVE,
        kafka._WAIT_COORD,
    )


def raise_kafka(error: Any) -> NoReturn:
    """Raise the error of pymq for an exception of confluent-kafka."""
    kafka = library().KafkaError
    cause = error.args[0]
    code, text = cause.code(), cause.str()
    if code in (kafka.TOPIC_AUTHORIZATION_FAILED, kafka.GROUP_AUTHORIZATION_FAILED):
        raise AuthorizationFailed(f"Kafka: {text}") from error
    if code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):
        raise UnknownTopic(f"Kafka: {text}") from error
    if code in (kafka.INVALID_CONFIG, kafka._INVALID_ARG):
        raise ConfigError(f"Kafka: {text}") from error
    raise Disconnected(f"Kafka: {text} ({cause.name()})") from error


def properties_of(lines: Sequence[str]) -> dict[str, str]:
    """Read properties of librdkafka: ``name=value``, a line each; ``#`` begins a comment.

    Raises:
        ConfigError: a line has another form.
    """
    found = {}
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, item = text.partition("=")
        if not separator:
            raise ConfigError(f"{text!r} is not NAME=VALUE")
        found[name.strip()] = item.strip()
    return found
