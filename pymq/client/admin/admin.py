"""Administration: create, change and describe topics, groups and brokers.

The requests go to the zkserver that is the controller.
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
            partitions: how many, named ``"0"`` and so on, or their names.
            replicas: on how many brokers each partition is kept.
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
        """Whether a topic of exactly this definition exists."""
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
        """Add a partition to a topic. From then on keys are hashed over one partition more."""
        check_topic(topic)
        check_name(partition, "partition name")
        self.questions.ask(lambda r: msg.CreatePartition(r, topic, partition), done=PartitionExists)
        # Producers and consumers of this client learn of it at once.
        self.questions.topic_metadata(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: there is none of that name.
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
            raise ConfigError("nothing is to be changed: name an option, as retention_bytes=...")
        chosen = dict(config)
        TopicConfig.of(chosen)
        self.questions.ask(lambda r: msg.AlterTopic(r, topic, chosen))
        if self.questions.has_seen(topic):
            self.questions.topic_metadata(topic)  # This client's own handles follow at once.

    def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: Acks,
        replicas: int | None = None,
    ) -> bool:
        """Change a partition's ack mode while it is in use; returns whether it changed.

        Raises:
            UnknownTopic, UnknownPartition, ConfigError, NotEnoughBrokers: as their names say;
                nothing is changed then.
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
        """The names of all topics, without pymq's internal ones."""
        return list(self.questions.ask(msg.ListTopics))

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic: its options, partitions and blocks.

        Raises:
            UnknownTopic: there is none of that name.
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
            UnknownGroup: there is none of that name.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        if not isinstance(group, str):
            raise InvalidName(f"a group's name must be str, not {type(group).__name__}")
        return groups.describe(self.questions, group)

    def describe_leases(
        self, group: str, topic: str, partition: str | int, offset: int = 0, limit: int = 100
    ) -> LeasesDescription:
        """Describe what a group has done with the records of a partition, from *offset* on.

        Returns at most *limit* runs of records in the same state; one answer has up to 1,000.

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
        """For each partition, the offset of the first record not older than a time, or the end."""
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

        *offset* is one for all partitions, ``"begin"``, ``"end"``, or a dictionary with offsets of
        some partitions. An offset outside of a partition becomes its begin or end.

        Raises:
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        groups.reset(self.questions, check_name(group, "group name"), topic, offset)

    def delete_group(self, group: str) -> None:
        """Delete a group without members and its offsets; returns when that is durable.

        A later consumer of that name creates a new group, which begins at its
        ``auto_offset_reset``.

        Raises:
            UnknownGroup: there is none of that name.
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # imported on demand: few programs need it

        groups.delete(self.questions, check_name(group, "group name"))

    def unsubscribe(self, group: str, topics: str | Iterable[str] | None = None) -> list[str]:
        """End a group's consumption of some topics, or of all that it consumes.

        The group's consumers of these topics get no more records: ``poll``, ``commit`` and
        iterating raise ``NotSubscribed``. Offsets stay: a consumer that is opened later subscribes
        the group again and continues from there, with the records that were not acknowledged.
        :meth:`delete_group` removes the offsets.

        Args:
            group: its name.
            topics: a topic, or several; None: all that the group has members or offsets in.

        Returns:
            The topics that the group was unsubscribed from.

        Raises:
            UnknownGroup: there is none of that name (``topics=None``).
            UnknownTopic, InvalidName: as their names say; nothing is changed.
            NotSubscribed: the group is subscribed to none of the topics that are named.
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

        With *move_sealed* the sealed blocks follow afterwards, a few at a time: each copy that is
        on none of these brokers moves to one of them that has none. The number of copies stays the
        same. ``cluster().moving_blocks`` shows the progress.

        Returns whether anything changed, once the new block is open.
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
            broker: its name.
            wait: return when nothing is left on it; then it may be stopped for good.
            timeout: how long to wait, in seconds; None: as long as it takes.
            on_progress: called with the broker's description while waiting: ``blocks`` is how
                many are left, and ``kept_by`` says why.

        Returns:
            How many partitions have their open block on it.

        Raises:
            NotEnoughBrokers: too few other brokers; nothing is changed.
            RequestTimeout: the broker is not empty in time; the decommission goes on.
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
        """Balance leaders over the brokers now; the controller also does it periodically.

        One partition after the other gets a new leader among its in-sync replicas. Returns how many
        will; ``cluster()`` shows how many partitions each broker leads.
        """
        return int(self.questions.ask(msg.BalanceLeaders))

    def recommission(self, broker: str) -> bool:
        """Cancel a decommission: the broker may lead and gets new blocks again.

        Returns False if the broker was not being decommissioned.
        """
        check_name(broker, "broker name")
        return bool(self.questions.ask(lambda r: msg.Recommission(r, broker)))

    def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """Elect a leader for a partition that can have none, from the records that are left.

        ``describe_topic`` says why the partition has no leader, and which brokers would bring its
        records back. Records that are missing from its open block may have been acknowledged; they
        are lost. The result and later ``describe_topic`` name the first lost offset, and new
        records reuse these offsets. Returns None if nothing is lost, because the partition has a
        leader or will get one soon.
        """
        name = self.questions.partition_name(topic, partition)
        return cast(Loss | None, self.questions.ask(lambda r: msg.RecoverPartition(r, topic, name)))

    def cluster(self) -> ClusterDescription:
        """Describe the controller and the brokers."""
        return cast(ClusterDescription, self.questions.ask(msg.DescribeCluster))
