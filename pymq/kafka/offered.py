"""The APIs that a gate offers, and their versions."""

from __future__ import annotations

from pymq.kafka import frames
from pymq.kafka.wire.messages import ApiVersionsResponseApiVersion

PRODUCE = 0


def offered(keys: set[int]) -> list[ApiVersionsResponseApiVersion]:
    """Return the APIs that are offered.

    The answer offers Produce from version 0 on, because old clients require it, but the gate serves
    versions from 3 on, as Kafka 4 does (KAFKA-18659).
    """
    known = frames.apis()
    found = []
    for key in sorted(keys):
        first, last = known[key].versions
        found.append(ApiVersionsResponseApiVersion(key, 0 if key == PRODUCE else first, last))
    return found
