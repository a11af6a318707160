"""The replicas that are offline because of a disk, as the active zkserver was told by brokers.

Their brokers are alive, so nothing else shows it. A replica that is offline leads nothing, is not
in sync and is given no new block. One that stays so for *replace_ms* is replaced, like a replica on
a broker that is dead.
"""

from __future__ import annotations

from pymq.core.message import OfflineReplica, OfflineReplicas
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define


@define
class OfflineReplicaState:
    """One replica that is offline."""

    replica: OfflineReplica
    until: int  # it is waited for, before another replica takes its place
    is_given_up: bool = False


@define
class BrokerReport:
    """What one broker told last."""

    version: int
    replicas: dict[TopicPartition, OfflineReplicaState] = Factory(dict)


class OfflineState:
    """The replicas that are offline, by broker."""

    def __init__(self, replace_ms: int) -> None:
        self._replace_ms = replace_ms
        self._told: dict[str, BrokerReport] = {}
        self.deadline = NEVER

    def __len__(self) -> int:
        """How many replicas are offline."""
        return sum(len(told.replicas) for told in self._told.values())

    def clear(self) -> None:
        """Nothing was told to this zkserver yet."""
        self._told.clear()
        self.deadline = NEVER

    def forget(self, broker: str) -> None:
        """A broker is dead, or has started anew."""
        self._told.pop(broker, None)

    def told(self, m: OfflineReplicas, now: int) -> tuple[list[TopicPartition], bool]:
        """Take in a report; returns what is offline since then, and whether anything healed."""
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
                # Damage does not pass: only another block helps.
                until = now if replica.is_damaged else now + self._replace_ms
                trouble = OfflineReplicaState(replica, until)
                self.deadline = min(self.deadline, until)
            trouble.replica = replica
            known.replicas[name] = trouble
        return new, any(name not in known.replicas for name in before)

    def find(self, broker: str, name: TopicPartition) -> OfflineReplicaState | None:
        """What is wrong with a replica, if something is."""
        known = self._told.get(broker)
        return known.replicas.get(name) if known is not None else None

    def has(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker cannot act on the open block of a partition."""
        return self.find(broker, name) is not None

    def bars(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker is to be given no other block of a partition."""
        trouble = self.find(broker, name)
        return trouble is not None and not trouble.replica.is_damaged

    def why(self, broker: str, name: TopicPartition) -> str | None:
        """What is wrong with a replica, for people."""
        trouble = self.find(broker, name)
        return trouble.replica.why if trouble is not None else None

    def is_given_up(self, broker: str, name: TopicPartition) -> bool:
        """Whether a replica is to be replaced."""
        trouble = self.find(broker, name)
        return trouble is not None and trouble.is_given_up

    def given_up(self, now: int) -> list[TopicPartition]:
        """The partitions whose replicas are to be replaced from now on."""
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
        """The partitions with a replica that another broker is to replace.

        Those with a damaged one are not among them: their next block may have the same replicas,
        so until the broker has said that it holds that one, each look would roll them once more.
        """
        return [
            name
            for told in self._told.values()
            for name, trouble in told.replicas.items()
            if trouble.is_given_up and not trouble.replica.is_damaged
        ]
