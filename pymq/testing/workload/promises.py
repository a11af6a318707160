"""The acknowledged records that no fault may lose, by the settings of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.types import AckMode
from pymq.testing.faults.plan import Plan

if TYPE_CHECKING:
    from pymq.testing.workload.applications import Sent


class TopicPromises:
    """The promises of a plan's topics that hold in spite of all changes by its operations."""

    def __init__(self, plan: Plan) -> None:
        self._has_one_broker = plan.brokers == 1
        changed = {op[2] for op in plan.ops if op[1] == "set_state"}
        raft = {str(topic["name"]) for topic in plan.topics if topic["acks"] == "raft"}
        self.compacted = {
            str(topic["name"])
            for topic in plan.topics
            if topic["config"].get("cleanup_policy") == "compact"
        }
        self.raft_for_ever = raft - changed
        configs = [(str(topic["name"]), topic["config"]) for topic in plan.topics]
        configs += [(str(op[2]), op[3]) for op in plan.ops if op[1] == "alter"]
        shortened = {
            name for name, config in configs if config.keys() & {"retention_bytes", "retention_ms"}
        }
        # Retention may remove copies of delayed records before all groups have got them.
        shortened |= {op[4] for op in plan.ops if op[1] == "kafka" and op[3] == "delete"}
        shortened |= {op[2] for op in plan.ops if op[1] == "delete_native"}
        self.kept_for_ever = {str(topic["name"]) for topic in plan.topics} - shortened
        # Topics that refuse large records.
        self.limited = {name for name, config in configs if "max_record_bytes" in config}

    def keeps_all(self, topic: str) -> bool:
        """Whether neither a fault nor retention nor compaction removes an acknowledged record."""
        return topic in (self.raft_for_ever & self.kept_for_ever) - self.compacted

    def is_safe(self, sent: Sent) -> bool:
        """Whether the acknowledgement promised more than a copy on the leader."""
        if sent.topic in self.compacted:
            return False  # compaction removes the record once its key has a later record
        if self._has_one_broker or sent.acks is not None:
            return self._has_one_broker or sent.acks is AckMode.RAFT
        return sent.topic in self.raft_for_ever

    def keeps_copy(self, sent: Sent) -> bool:
        """Whether all groups get the copy of this delayed record, if it was acknowledged."""
        return self.is_safe(sent) and sent.topic in self.raft_for_ever & self.kept_for_ever
