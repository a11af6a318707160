"""The offline replicas that brokers have reported to the active zkserver.

The broker of an offline replica is alive, but the broker's disk has failed. If a replica stays
offline for *replace_ms*, the zkserver replaces it like a replica on a dead broker.
"""

from __future__ import annotations

from pymq.core.message import OfflineReplica, OfflineReplicas
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define


@define
class OfflineReplicaState:
    """One replica that is offline."""

    replica: OfflineReplica
    until: int  # the time when the replica is given up
    is_given_up: bool = False


@define
class BrokerReport:
    """The last report of one broker."""

    version: int
    replicas: dict[TopicPartition, OfflineReplicaState] = Factory(dict)


class OfflineState:
    """The offline replicas, by broker."""

    def __init__(self, replace_ms: int) -> None:
        self._replace_ms = replace_ms
        self._told: dict[str, BrokerReport] = {}
        self.deadline = NEVER

    def __len__(self) -> int:
        """Return the number of offline replicas."""
        return sum(len(told.replicas) for told in self._told.values())

    def clear(self) -> None:
        """Drop all reports, after a take-over."""
        self._told.clear()
        self.deadline = NEVER

    def forget(self, broker: str) -> None:
        """Drop the report of a broker that is dead or has restarted."""
        self._told.pop(broker, None)

    def told(self, m: OfflineReplicas, now: int) -> tuple[list[TopicPartition], bool]:
        """Handle a report.

        Returns the newly offline partitions, and whether any replica is back.
        """
        known = self._told.setdefault(m.broker, BrokerReport(0))
        if m.version <= known.version:
            return [], False
        before, known.version, known.replicas = known.replicas, m.version, {}
        new = []
        for replica in m.replicas:
            name = TopicPartition(replica.topic, replica.partition)
            trouble = before.get(name)
            if trouble is None or trouble.replica.topic_id != replica.topic_id:
                new.append(name)
                # A damaged block stays damaged, so replace it at once.
                until = now if replica.is_damaged else now + self._replace_ms
                trouble = OfflineReplicaState(replica, until)
                self.deadline = min(self.deadline, until)
            trouble.replica = replica
            known.replicas[name] = trouble
        return new, any(name not in known.replicas for name in before)

    def find(self, broker: str, name: TopicPartition) -> OfflineReplicaState | None:
        """Return the state of an offline replica, or None."""
        known = self._told.get(broker)
        return known.replicas.get(name) if known is not None else None

    def has(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker cannot serve the open block of a partition."""
        return self.find(broker, name) is not None

    def bars(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker must not get further blocks of a partition."""
        trouble = self.find(broker, name)
        return trouble is not None and not trouble.replica.is_damaged

    def why(self, broker: str, name: TopicPartition) -> str | None:
        """The reason why a replica is offline, as text for users."""
        trouble = self.find(broker, name)
        return trouble.replica.why if trouble is not None else None

    def is_given_up(self, broker: str, name: TopicPartition) -> bool:
        """Whether a replica must be replaced."""
        trouble = self.find(broker, name)
        return trouble is not None and trouble.is_given_up

    def given_up(self, now: int) -> list[TopicPartition]:
        """Return the partitions with newly given-up replicas."""
        if now < self.deadline:
            return []
        found, self.deadline = [], NEVER
        for told in self._told.values():
            for name, trouble in told.replicas.items():
                if trouble.until <= now and not trouble.is_given_up:
                    trouble.is_given_up = True
                    found.append(name)
                elif not trouble.is_given_up:
                    self.deadline = min(self.deadline, trouble.until)
        return found

    def to_replace(self) -> list[TopicPartition]:
        """The partitions with a replica that another broker must replace.

        Damaged replicas do not count, because the next block may have the same replicas: each check
        would roll the partition again until the broker has reported that it holds the new block.
        """
        return [
            name
            for told in self._told.values()
            for name, trouble in told.replicas.items()
            if trouble.is_given_up and not trouble.replica.is_damaged
        ]
