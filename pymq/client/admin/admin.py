"""What a client asks of a cluster as a whole: to make, change and describe what there is.

Nothing here holds records; whoever may reach a zkserver can ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pymq.client.admin.requests import Requests, raise_it
from pymq.client.base import Handle, check_timeout
from pymq.client.options import PARTITIONS_MAX, REPLICAS_MAX, check_flag, check_range, check_topic
from pymq.client.router import Router
from pymq.core import message as msg
from pymq.core.metadata.nodes import BrokerDescription, ClusterDescription, Loss, TopicDescription
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
    """Topics, groups and brokers, as a client sees and steers them."""

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
        acks: AckMode | int | str = "leader",
        *,
        exist_ok: bool = False,
        **config: Any,
    ) -> None:
        """Make a topic.

        Args:
            name: 1 to 249 of ``[A-Za-z0-9._-]``.
            partitions: how many, named ``"0"`` and so on, or their names.
            replicas: on how many brokers each partition is kept.
            acks: the partitions' ack mode: ``"leader"``, ``"raft"``, ``"none"`` or ``"unset"``.
            exist_ok: do nothing when there is a topic of this name.
            config: options of :class:`pymq.TopicConfig`, as ``retention_bytes=...``.

        Raises:
            InvalidName, TopicExists, ConfigError, NotEnoughBrokers: as they say.
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
        TopicConfig.of(config)
        mode = AckMode.of(acks)
        check_range("replicas", replicas, 1, REPLICAS_MAX)
        check_flag("exist_ok", exist_ok)
        made = self.questions.call(
            lambda r: msg.CreateTopic(r, name, names, replicas, mode, config, exist_ok)
        )
        # It may be ours: the first try was carried out, and its answer was lost.
        is_ours = made.is_repeated and isinstance(made.error, TopicExists)
        if not is_ours or not self._is_made(name, names, replicas, mode, config):
            raise_it(made.error)

    def _is_made(
        self,
        name: str,
        names: tuple[str, ...],
        replicas: int,
        acks: AckMode,
        config: dict[str, Any],
    ) -> bool:
        """Whether there is a topic of exactly this definition."""
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
        """Add a partition to a topic. Keys are hashed over one more from then on."""
        check_topic(topic)
        check_name(partition, "partition name")
        self.questions.ask(lambda r: msg.CreatePartition(r, topic, partition), done=PartitionExists)
        self.questions.topic_metadata(topic)  # Those who use the topic here hear of it at once.

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: there is none of that name.
        """
        check_topic(topic)
        self.questions.ask(lambda r: msg.DeleteTopic(r, topic), done=UnknownTopic)
        self.questions.forget(topic)

    def alter_topic(self, topic: str, **config: Any) -> None:
        """Change options of a topic.

        Raises:
            UnknownTopic, ConfigError: as they say.
        """
        check_topic(topic)
        if not config:
            raise ConfigError("nothing is to be changed: name an option, as retention_bytes=...")
        TopicConfig.of(config)
        self.questions.ask(lambda r: msg.AlterTopic(r, topic, config))

    def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: AckMode | int | str,
        replicas: int | None = None,
    ) -> bool:
        """Change how a partition is replicated, while it is used; returns whether it changed.

        Raises:
            UnknownTopic, UnknownPartition, ConfigError, NotEnoughBrokers: as they say, and then
                nothing is changed.
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
        """The names of all topics but pymq's own."""
        return list(self.questions.ask(msg.ListTopics))

    def describe_topic(self, topic: str) -> TopicDescription:
        """All about a topic: its options, partitions and blocks.

        Raises:
            UnknownTopic: there is none of that name.
        """
        check_topic(topic)
        return cast(TopicDescription, self.questions.ask(lambda r: msg.DescribeTopic(r, topic)))

    # --- groups ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of all consumer groups."""
        from pymq.client.admin import groups  # only now: a module for those who ask

        return groups.names(self.questions)

    def describe_group(self, group: str) -> GroupDescription:
        """A group's members, assignment, offsets and lag.

        Raises:
            UnknownGroup: there is none of that name.
        """
        from pymq.client.admin import groups  # only now: a module for those who ask

        if not isinstance(group, str):
            raise InvalidName(f"a group's name must be str, not {type(group).__name__}")
        return groups.describe(self.questions, group)

    def describe_leases(
        self, group: str, topic: str, partition: str | int, offset: int = 0, limit: int = 100
    ) -> LeasesDescription:
        """What a group does with the records of a partition, from *offset* on.

        At most *limit* runs of records that have the same fate; there are up to 1,000 in one
        answer.

        Raises:
            UnknownGroup, UnknownTopic, UnknownPartition: as they say.
        """
        check_range("offset", offset, 0, OFFSET_MAX)
        check_range("limit", limit, 1, 1_000)
        name = self.questions.partition_name(topic, partition)
        place = (check_name(group, "group name"), topic, name)
        from pymq.client.admin import groups  # only now: a module for those who ask

        return groups.describe_leases(self.questions, *place, offset, limit, self._wall_ms())

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[str, int]:
        """Of each partition the first offset whose record is not older than a time, or its end."""
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
        """Let a group without members begin anew at an offset of each partition of a topic.

        *offset* is one for all, ``"begin"``, ``"end"``, or a dictionary with those of some
        partitions. What lies outside of a partition becomes its begin or its end.

        Raises:
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # only now: a module for those who ask

        groups.reset(self.questions, check_name(group, "group name"), topic, offset)

    def delete_group(self, group: str) -> None:
        """Forget a group without members, with its offsets; returns when that is on disk.

        A consumer of that name makes a new group, which begins as its ``auto_offset_reset`` says.

        Raises:
            UnknownGroup: there is none of that name.
            InvalidRequest: the group has members; close them first.
        """
        from pymq.client.admin import groups  # only now: a module for those who ask

        groups.delete(self.questions, check_name(group, "group name"))

    def unsubscribe(self, group: str, topics: str | Iterable[str] | None = None) -> list[str]:
        """End a group's consumption of some topics, or of all that it consumes.

        Its consumers of them get nothing more: ``poll``, ``commit`` and iterating raise
        ``NotSubscribed``. The next consumer gets what they had not acknowledged. Offsets
        stay: a consumer that is opened later subscribes the group again and goes on from there.
        :meth:`delete_group` forgets them.

        Args:
            group: its name.
            topics: a topic, or several; None: all that the group has members or offsets in.

        Returns:
            The topics that the group was subscribed to, and is no more.

        Raises:
            UnknownGroup: there is none of that name (``topics=None``).
            UnknownTopic, InvalidName: as they say; nothing is changed.
            NotSubscribed: the group is subscribed to none of the topics that are named.
        """
        from pymq.client.admin import groups  # only now: a module for those who ask

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
        """Put a partition's next records onto other brokers; no data moves.

        With *move_sealed* the sealed blocks are copied there, too, afterwards and a few at a time:
        each copy that is not on one of these brokers moves to one of them that has none. The
        number of copies of a block stays what it is. ``cluster().moving_blocks`` shows progress.

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
        """Let a broker lead and take nothing more, and have what it holds copied to others.

        Args:
            broker: its name.
            wait: return when nothing is left on it, and it may be stopped for good.
            timeout: how long to wait, in seconds; None: as long as it takes.
            on_progress: called with the broker's description while waiting; its ``blocks`` are
                what is left, and ``kept_by`` says what keeps them.

        Returns:
            How many partitions have their open block on it.

        Raises:
            NotEnoughBrokers: the others are too few; nothing is changed.
            RequestTimeout: it is not empty in time; it goes on all the same.
        """
        check_name(broker, "broker name")
        check_timeout(timeout)
        count = int(self.questions.ask(lambda r: msg.Decommission(r, broker)))
        if wait:
            from pymq.client.admin import draining  # only now: a module for those who ask

            show = on_progress or (lambda found: None)
            draining.until_empty(self.questions, broker, timeout, show)
        return count

    def balance(self) -> int:
        """Let brokers lead as many partitions as each other, now; it happens by itself, too.

        One partition after the other gets another leader, among its replicas that are in sync.
        Returns how many are to; ``cluster()`` shows how many each broker leads.
        """
        return int(self.questions.ask(msg.BalanceLeaders))

    def recommission(self, broker: str) -> bool:
        """Take a decommission back: new blocks may go to the broker again; whether that is new."""
        check_name(broker, "broker name")
        return bool(self.questions.ask(lambda r: msg.Recommission(r, broker)))

    def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """Let a partition that nobody can lead go on with what is left of it.

        ``describe_topic`` tells why nobody leads it, and whom to wait for instead. What is missing
        of its open block may have been acknowledged, and is lost; the answer says from which offset
        on, and so does ``describe_topic`` from then on. New records get those offsets again. None
        if nothing is lost, because somebody leads it or soon will.
        """
        name = self.questions.partition_name(topic, partition)
        return cast(Loss | None, self.questions.ask(lambda r: msg.RecoverPartition(r, topic, name)))

    def cluster(self) -> ClusterDescription:
        """The controller and the brokers."""
        return cast(ClusterDescription, self.questions.ask(msg.DescribeCluster))
