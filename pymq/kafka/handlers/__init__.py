"""How the gate answers each API: turns requests of Kafka's clients into pymq's messages.

Each API has a handler: a generator that yields requests to pymq's nodes, gets their answers, and
returns the answer for the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.kafka.handlers import (
    authentication,
    configs,
    delete_records,
    epochs,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    produce,
    reconciled_groups,
    topics,
)
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps

Handler = Callable[[GateContext, Any, KafkaCall], Steps]
HANDLERS: dict[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    8: group_offsets.offset_commit,
    9: group_offsets.offset_fetch,
    10: metadata.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    17: authentication.handshake,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: delete_records.delete_records,
    22: produce.init_producer_id,
    23: epochs.offset_for_leader_epoch,
    32: configs.describe_configs,
    33: configs.alter_configs,
    36: authentication.authenticate,
    37: topics.create_partitions,
    42: groups.delete_groups,
    68: reconciled_groups.consumer_group_heartbeat,
    69: reconciled_groups.consumer_group_describe,
    44: configs.incremental_alter_configs,
    60: metadata.describe_cluster,
}
"""The offered APIs, by Kafka's keys."""
