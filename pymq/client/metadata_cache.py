"""A client's cache of topic metadata and partition leaders."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import PymqError
from pymq.hash.partitioner import key_partition

Pair = tuple[str, str]  # topic and partition


class MetadataCache:
    """The metadata of one client.

    The router refreshes the cache; all handles of the client read it.

    A broker that refuses a request may know the new leader before the zkserver does. The cache then
    uses the leader that the broker has named, and also keeps the zkserver's leader in case the hint
    is wrong.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetadata] = {}
        self.gone: dict[str, PymqError] = {}  # deleted topics
        self.leaders: dict[Pair, PartitionLeader] = {}
        # the zkserver's leaders of partitions for which the cache uses a broker's hint
        self._hinted: dict[Pair, PartitionLeader] = {}
        self._listeners: dict[str, Callable[[], None]] = {}

    # --- lookups --------------------------------------------------------------------------------

    def find(self, topic: str, partition: str) -> str | None:
        """Return a partition's leader, if known."""
        found = self.leaders.get((topic, partition))
        return found.leader if found is not None else None

    def replicas(self, topic: str, partition: str) -> tuple[str, ...]:
        """The brokers that can serve reads by the last metadata, the most complete first."""
        found = self.leaders.get((topic, partition))
        return found.replicas if found is not None else ()

    def racks(self, topic: str) -> dict[str, str | None]:
        """The racks of the brokers that hold a topic, by their names."""
        known = self.topics.get(topic)
        return {b.name: b.rack for b in known.brokers} if known is not None else {}

    def led_by(self, broker: str) -> set[str]:
        """The topics with a partition that *broker* leads."""
        return {topic for (topic, _), found in self.leaders.items() if found.leader == broker}

    def coordinator_of(self, group: str) -> Pair | None:
        """The offsets partition of a group, as (topic, partition), if the topic is known."""
        known = self.topics.get(OFFSETS_TOPIC)
        if known is None:
            return None
        index = key_partition(group.encode(), len(known.partitions))
        return OFFSETS_TOPIC, known.partitions[index].partition

    # --- changes --------------------------------------------------------------------------------

    def learn(self, found: TopicMetadata) -> None:
        """Store a topic's metadata from a zkserver."""
        self.gone.pop(found.topic, None)
        before = self.topics.get(found.topic)
        if before == found:
            return
        if before is not None and before.topic_id != found.topic_id:
            self.forget(found.topic)
        self.topics[found.topic] = found
        for partition in found.partitions:
            key = (found.topic, partition.partition)
            known = self.leaders.get(key)
            if known is not None and known.epoch > partition.epoch:
                continue  # The answer is late, or is from a zkserver that is no longer active.
            if self._hinted.get(key) == partition:
                continue  # The zkserver does not know the newer leader yet.
            self._hinted.pop(key, None)
            self.leaders[key] = partition
        self.announce()

    def forget(self, topic: str) -> None:
        """Note that a topic was deleted; leader epochs of a new topic of that name start again."""
        known = self.topics.pop(topic, None)
        for partition in known.partitions if known is not None else ():
            self.leaders.pop((topic, partition.partition), None)
            self._hinted.pop((topic, partition.partition), None)

    def hint(self, key: Pair, leader: str) -> None:
        """Use *leader*, which a broker has named, as leader of a partition in the cache."""
        known = self.leaders[key]
        self._hinted.setdefault(key, known)
        self.leaders[key] = attrs.evolve(known, leader=leader, endpoint=self._endpoint(leader))

    def drop_hint(self, key: Pair) -> None:
        """Use the leader that the zkserver has named again."""
        base = self._hinted.pop(key, None)
        if base is not None:
            self.leaders[key] = base

    def _endpoint(self, broker: str) -> str | None:
        for known in self.topics.values():
            for found in known.partitions:
                if found.leader == broker:
                    return found.endpoint
        return None

    # --- listeners ------------------------------------------------------------------------------

    def listen(self, name: str, callback: Callable[[], None]) -> None:
        """Call *callback* whenever metadata has changed, until :meth:`ignore`."""
        self._listeners[name] = callback

    def ignore(self, name: str) -> None:
        """Stop calling *callback*; see :meth:`listen`."""
        self._listeners.pop(name, None)

    def announce(self) -> None:
        """Call all listeners, because metadata has changed or a broker is unreachable."""
        for callback in list(self._listeners.values()):
            callback()
