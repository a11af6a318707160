"""The APIs that a gate offers, with their handlers, their versions, and the features.

A feature says which rules the cluster follows, beside the versions of the APIs. Kafka's clients for
groups of KIP-848 and for share groups look for theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.kafka import frames
from pymq.kafka.codes import Code
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
from pymq.kafka.handlers.share import acknowledge, describe, heartbeat, offsets
from pymq.kafka.handlers.share import fetch as share_fetch
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps
from pymq.kafka.wire.messages import (
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    ApiVersionsResponseFinalizedFeatureKey,
    ApiVersionsResponseSupportedFeatureKey,
)

# Old clients require Produce from version 0 on, but the gate serves versions from 3 on, as Kafka 4
# does (KAFKA-18659). After version 0 of SaslHandshake, bytes would follow that are no requests.
_FIRST = {0: 0, 17: 1}

FEATURES = {"group.version": 1, "share.version": 1}
"""The features, each with its highest version, which is in force."""
MIN_ZERO_FROM = 4  # the version of ApiVersions whose clients accept that a feature may be off

Handler = Callable[[GateContext, Any, KafkaCall], Steps]
API_VERSIONS = 18
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
    76: heartbeat.share_group_heartbeat,
    77: describe.share_group_describe,
    78: share_fetch.share_fetch,
    79: acknowledge.share_acknowledge,
    90: offsets.describe_share_group_offsets,
    91: offsets.alter_share_group_offsets,
    92: offsets.delete_share_group_offsets,
    44: configs.incremental_alter_configs,
    60: metadata.describe_cluster,
}
"""The offered APIs, by Kafka's keys."""


def api_versions(version: int) -> tuple[ApiVersionsResponse, int]:
    """Return the answer to ApiVersions of a *version*, and the version of the answer.

    The answer to an unknown version is of version 0, and says which versions there are.
    """
    first, last = frames.apis()[API_VERSIONS].versions
    if not first <= version <= last:
        answer = ApiVersionsResponse(int(Code.UNSUPPORTED_VERSION))
        answer.api_keys = [ApiVersionsResponseApiVersion(API_VERSIONS, first, last)]
        return answer, 0
    answer = ApiVersionsResponse()
    answer.api_keys = offered({*HANDLERS, API_VERSIONS})
    answer.supported_features = supported(version)
    answer.finalized_features = finalized()
    answer.finalized_features_epoch = 1
    return answer, version


def offered(keys: set[int]) -> list[ApiVersionsResponseApiVersion]:
    """Return the APIs that are offered."""
    known = frames.apis()
    found = []
    for key in sorted(keys):
        first, last = known[key].versions
        found.append(ApiVersionsResponseApiVersion(key, _FIRST.get(key, first), last))
    return found


def supported(version: int) -> list[ApiVersionsResponseSupportedFeatureKey]:
    """Return the features that the broker supports, for a *version* of ApiVersions.

    Older clients fail on a feature whose lowest version is 0 (KAFKA-17011).
    """
    if version < MIN_ZERO_FROM:
        return []
    return [
        ApiVersionsResponseSupportedFeatureKey(name, 0, last) for name, last in FEATURES.items()
    ]


def finalized() -> list[ApiVersionsResponseFinalizedFeatureKey]:
    """Return the features that are in force."""
    return [
        ApiVersionsResponseFinalizedFeatureKey(name, last, last) for name, last in FEATURES.items()
    ]
