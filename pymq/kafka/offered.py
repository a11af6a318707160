"""The APIs that a gate offers, and their versions."""

from __future__ import annotations

from pymq.kafka import frames
from pymq.kafka.wire.messages import ApiVersionsResponseApiVersion

# Old clients require Produce from version 0 on, but the gate serves versions from 3 on, as Kafka 4
# does (KAFKA-18659). After version 0 of SaslHandshake, bytes would follow that are no requests.
_FIRST = {0: 0, 17: 1}


def offered(keys: set[int]) -> list[ApiVersionsResponseApiVersion]:
    """Return the APIs that are offered."""
    known = frames.apis()
    found = []
    for key in sorted(keys):
        first, last = known[key].versions
        found.append(ApiVersionsResponseApiVersion(key, _FIRST.get(key, first), last))
    return found
