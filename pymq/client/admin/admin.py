"""Administration: create, change and describe topics, groups and brokers.

The requests go to the active zkserver, the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from pymq.client.admin.requests import Requests, raise_it
from pymq.client.base import Handle, check_timeout
from pymq.client.option_types import Acks, TopicOptions
from pymq.client.options import PARTITIONS_MAX, REPLICAS_MAX, check_flag, check_range, check_topic
from pymq.client.router import Router
from pymq.core import message as msg
from pymq.core.metadata.descriptions import BrokerDescription, ClusterDescription, TopicDescription
from pymq.core.metadata.nodes import Loss
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import INTERNAL_PREFIX, AckMode, check_name
from pymq.errors import (
    ConfigError,
    InvalidName,
    InvalidRequest,
    PartitionExists,
    TopicExists,
    UnknownTopic,
)

if TYPE_CHECKING:
    from pymq.client.admin.groups import GroupDescription, LeasesDescription

OFFSET_MAX = (1 << 62) - 1


class Admin(Handle):
    """The administrative methods of a client."""

    def __init__(self, questions: Requests, router: Router, wall_ms: Callable[[], int]) -> None:
        self.questions = questions
        self._router = router
        self._wall_ms = wall_ms

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | Iterable[str] = 1,
        replicas: int = 1,
        acks: Acks = "leader",
        *,
        exist_ok: bool = False,
        **config: Unpack[TopicOptions],
    ) -> None:
        """Create a topic.

        Args:
            name: 1 to 249 of ``[A-Za-z0-9._-]``.
            partitions: the number of partitions, named ``"0"`` and so on, or a list of names.
            replicas: the number of brokers that store each partition.
            acks: the partitions' ack mode: ``"leader"``, ``"raft"``, ``"none"`` or ``"unset"``.
            exist_ok: do nothing if a topic of this name exists.
            config: options of :class:`pymq.TopicConfig`, as ``retention_bytes=...``.

        Raises:
            InvalidName, TopicExists, ConfigError, NotEnoughBrokers: as their names say.
        """
        check_name(name, "topic name")
        if name.startswith(INTERNAL_PREFIX):
            raise InvalidName(f"topic name {name!r}: names with {INTERNAL_PREFIX!r} are pymq's own")
        if isinstance(partitions, int) and not isinstance(partitions, bool):
            check_range("partitions", partitions, 1, PARTITIONS_MAX)
            names = tuple(str(index) for index in range(partitions))
        elif isinstance(partitions, Iterable) and not isinstance(partitions, (str, bytes)):
            names = tuple(check_name(part, "partition name") for part in partitions)
        else:
            raise ConfigError(f"partitions={partitions!r} must be a number or a list of names")
        chosen = dict(config)
        TopicConfig.of(chosen)
        mode = AckMode.of(acks)
        check_range("replicas", replicas, 1, REPLICAS_MAX)
        check_flag("exist_ok", exist_ok)
        made = self.questions.call(
            lambda r: msg.CreateTopic(r, name, names, replicas, mode, chosen, exist_ok)
        )
        # The topic may have been created by this client: the first try succeeded, and its answer
        # was lost.
        is_ours = made.is_repeated and isinstance(made.error, TopicExists)
        if not is_ours or not self._is_made(name, names, replicas, mode, chosen):
            raise_it(made.error)

    def _is_made(
        self,
        name: str,
        names: tuple[str, ...],
        replicas: int,
        acks: AckMode,
        config: dict[str, Any],
    ) -> bool:
        """Whether a topic with exactly this definition exists."""
        try:
            found = self.describe_topic(name)
        except UnknownTopic:
            return False
        if found.config != TopicConfig.of(config):
            return False
        return tuple(p.name for p in found.partitions) == names and all(
            p.acks is acks and len(p.replicas) == (0 if acks is AckMode.UNSET else replicas)
            for p in found.partitions
        )

    def create_partition(self, topic: str, partition: str) -> None:
        """Add a partition to a topic. From then on producers hash keys over all partitions."""
        check_topic(topic)
        check_name(partition, "partition name")
        self.questions.ask(lambda r: msg.CreatePartition(r, topic, partition), done=PartitionExists)
        # Producers and consumers of this client learn of the partition at once.
        self.questions.topic_metadata(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        check_topic(topic)
        self.questions.ask(lambda r: msg.DeleteTopic(r, topic), done=UnknownTopic)
        self.questions.forget(topic)

    def alter_topic(self, topic: str, **config: Unpack[TopicOptions]) -> None:
        """Change options of a topic.

        Raises:
            UnknownTopic, ConfigError: as their names say.
        """
        check_topic(topic)
        if not config:
            raise ConfigError(
                "alter_topic() needs an option to change, such as retention_bytes=..."
            )
        chosen = dict(config)
        TopicConfig.of(chosen)
        self.questions.ask(lambda r: msg.AlterTopic(r, topic, chosen))
        if self.questions.has_seen(topic):
            # Producers and consumers of this client adopt the options at once.
            self.questions.topic_metadata(topic)

    def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: Acks,
        replicas: int | None = None,
    ) -> bool:
        """Change the ack mode of a partition in use; returns whether the mode changed.

        Raises:
            UnknownTopic, UnknownPartition, ConfigError, NotEnoughBrokers: as their names say;
                nothing has changed.
        """
        mode = AckMode.of(acks)
        if replicas is not None:
            check_range("replicas", replicas, 1, REPLICAS_MAX)
        name = self.questions.partition_name(topic, partition)
        changed = self.questions.ask(
            lambda r: msg.SetPartitionState(r, topic, name, mode, replicas)
        )
        self.questions.forget(topic)
        return bool(changed)

    def topics(self) -> list[str]:
        """The names of all topics, except pymq's internal topics."""
        return list(self.questions.ask(msg.ListTopics))

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic: its options, partitions and blocks.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        check_topic(topic)
        return cast(TopicDescription, self.questions.ask(lambda r: msg.DescribeTopic(r, topic)))

    # --- groups ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of all consumer groups."""
        from pymq.client.admin import groups  # imported on demand: few programs need it

        return groups.names(self.questions)

    def describe_group(self, group: str) -> GroupDescription:
        """Describe a group: its members, assignment, offsets and lag.

        Raises:
            UnknownGroup: there is no group of that name.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        if not isinstance(group, str):
            raise InvalidName(f"a group's name must be str, not {type(group).__name__}")
        return groups.describe(self.questions, group)

    def describe_leases(
        self, group: str, topic: str, partition: str | int, offset: int = 0, limit: int = 100
    ) -> LeasesDescription:
        """Describe a group's state of the records of a partition, from *offset* on.

        A result is a run of consecutive records in the same state. Returns at most *limit* results,
        and at most 1,000.

        Raises:
            UnknownGroup, UnknownTopic, UnknownPartition: as their names say.
        """
        check_range("offset", offset, 0, OFFSET_MAX)
        check_range("limit", limit, 1, 1_000)
        name = self.questions.partition_name(topic, partition)
        place = (check_name(group, "group name"), topic, name)
        from pymq.client.admin import groups  # imported on demand: few programs need it

        return groups.describe_leases(self.questions, *place, offset, limit, self._wall_ms())

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[str, int]:
        """Return, for each partition, the offset of the first record not older than a time, or the
        end.
        """
        check_range("timestamp_ms", timestamp_ms, 0, OFFSET_MAX)
        partitions = [p.partition for p in self.questions.topic_metadata(topic).partitions]
        found = self.questions.ask_leaders(
            topic,
            partitions,
            lambda r, name: msg.FindOffset(r, topic, name, timestamp_ms),
            any_replica=True,
        )
        return {
            name: answer.offset
            for name, answer in found.items()
            if isinstance(answer, msg.OffsetFound)
        }

    def reset_group(
        self, group: str, topic: str, offset: int | str | Mapping[str, int | str] = "begin"
    ) -> None:
        """Set the offsets of a group without members in the partitions of a topic.

        *offset* is an offset for all partitions, ``"begin"``, ``"end"``, or a dictionary with
        offsets by partition. An offset outside of a partition is replaced by the partition's begin
        or end.

        Raises:
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        groups.reset(self.questions, check_name(group, "group name"), topic, offset)

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets; returns when the deletion is durable.

        A later consumer of that group creates the group again, which then begins at
        ``auto_offset_reset``.

        Raises:
            UnknownGroup: there is no group of that name.
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        groups.delete(self.questions, check_name(group, "group name"))

    def unsubscribe(self, group: str, topics: str | Iterable[str] | None = None) -> list[str]:
        """Unsubscribe a group from some topics, or from all topics that it consumes.

        The group's consumers of these topics get no more records: ``poll``, ``commit`` and
        iterating raise ``NotSubscribed``. The group keeps its offsets: a consumer that is opened
        later subscribes the group again and continues with the records that were not acknowledged.
        :meth:`delete_group` removes the offsets.

        Args:
            group: the name of the group.
            topics: a topic or several topics; None: all topics in which the group has members or
                offsets.

        Returns:
            The topics that the group was unsubscribed from.

        Raises:
            UnknownGroup: there is no group of that name (only with ``topics=None``).
            UnknownTopic, InvalidName: as their names say; nothing has changed.
            NotSubscribed: the group is not subscribed to any of *topics*.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        return groups.unsubscribe(self.questions, check_name(group, "group name"), topics)

    # --- cluster --------------------------------------------------------------------------------

    def reassign(
        self,
        topic: str,
        partition: str | int,
        replicas: Sequence[str],
        *,
        move_sealed: bool = False,
    ) -> bool:
        """Place a partition's next block on other brokers; no data moves.

        With *move_sealed* the sealed blocks follow afterwards, a few at a time: each copy on
        another broker moves to one of *replicas* that has no copy yet. The number of copies stays
        the same. ``cluster().moving_blocks`` shows the progress.

        Returns, when the new block is open, whether anything has changed.
        """
        if isinstance(replicas, str) or not isinstance(replicas, Iterable):
            raise ConfigError(f"replicas={replicas!r} must be a list of brokers' names")
        brokers = tuple(check_name(broker, "broker name") for broker in replicas)
        if len(set(brokers)) < len(brokers):
            raise InvalidRequest(f"replicas={brokers!r} names a broker twice")
        name = self.questions.partition_name(topic, partition)
        return bool(
            self.questions.ask(
                lambda r: msg.Reassign(r, topic, name, brokers, move_sealed=move_sealed)
            )
        )

    def decommission(
        self,
        broker: str,
        *,
        wait: bool = False,
        timeout: float | None = None,
        on_progress: Callable[[BrokerDescription], object] | None = None,
    ) -> int:
        """Move all leadership, new blocks and sealed blocks away from a broker.

        Args:
            broker: the name of the broker.
            wait: return only when the broker holds no more blocks; then it may be stopped for good.
            timeout: the longest wait in seconds; None: no limit.
            on_progress: called with the broker's description during the wait: ``blocks`` is the
                number of remaining blocks, and ``kept_by`` has the reasons.

        Returns:
            The number of partitions whose open block is on the broker.

        Raises:
            NotEnoughBrokers: there are too few other brokers; nothing has changed.
            RequestTimeout: the broker is not empty after *timeout*; the decommission continues.
        """
        check_name(broker, "broker name")
        check_timeout(timeout)
        count = int(self.questions.ask(lambda r: msg.Decommission(r, broker)))
        if wait:
            from pymq.client.admin import draining  # imported on demand: few programs need it

            show = on_progress or (lambda found: None)
            draining.until_empty(self.questions, broker, timeout, show)
        return count

    def balance(self) -> int:
        """Balance leaders over the brokers now; the controller also does this periodically.

        One partition after the other gets a new leader among its in-sync replicas. Returns the
        number of partitions that will get a new leader; ``cluster()`` shows how many partitions
        each broker leads.
        """
        return int(self.questions.ask(msg.BalanceLeaders))

    def recommission(self, broker: str) -> bool:
        """Cancel a decommission: the broker may lead and get new blocks again.

        Returns False if no decommission of the broker was in progress.
        """
        check_name(broker, "broker name")
        return bool(self.questions.ask(lambda r: msg.Recommission(r, broker)))

    def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """Elect a leader for a partition that cannot elect one, even if records are lost.

        ``describe_topic`` says why the partition has no leader, and which brokers have its records.
        Acknowledged records on these brokers may be lost. The result, and later ``describe_topic``,
        name the first lost offset; new records reuse the lost offsets. Returns None if nothing is
        lost, because the partition has a leader or will soon get one.
        """
        name = self.questions.partition_name(topic, partition)
        return cast(Loss | None, self.questions.ask(lambda r: msg.RecoverPartition(r, topic, name)))

    def cluster(self) -> ClusterDescription:
        """Describe the controller and the brokers."""
        return cast(ClusterDescription, self.questions.ask(msg.DescribeCluster))
