"""Hints for options of Spark's Kafka source and sink that this source does not have."""

from __future__ import annotations

_CLIENT = "settings of Kafka's client have no effect here: leave it out"
_SECURITY = (
    "leave it out; the url names keys and principal: "
    "'zmq+tcp://host:port?curve_dir=FOLDER&principal=NAME'"
)
_TIMES = "leave it out; 'requestTimeoutMs' limits requests with all their retries"
_HINTS = {
    "kafka.bootstrap.servers": "name the cluster in 'url': 'zmq+tcp://host:port'",
    "kafka.group.id": "leave it out: offsets are in the checkpoint. 'group' publishes progress",
    "groupidprefix": "leave it out: offsets are in the checkpoint. 'group' publishes progress",
    "kafka.enable.auto.commit": "leave it out: offsets are in the checkpoint",
    "kafka.auto.offset.reset": "use 'startingOffsets'",
    "kafka.max.poll.records": "use 'maxOffsetsPerTrigger' or 'maxRecordsPerPartition'",
    "kafka.fetch.max.bytes": "use 'fetchMaxBytes'",
    "kafka.max.partition.fetch.bytes": "use 'fetchMaxBytes'",
    "kafka.request.timeout.ms": "use 'requestTimeoutMs'",
    "kafka.acks": "leave it out: each partition has its ack mode",
    "kafka.isolation.level": "leave it out: there are no transactions to wait for",
    "kafkaconsumer.polltimeoutms": _TIMES,
    "fetchoffset.numretries": _TIMES,
    "fetchoffset.retryintervalms": _TIMES,
}


def hint(name: str) -> str | None:
    """Return what to do with an option of Kafka's source; None for other names.

    *name* is in lower case.
    """
    if name in _HINTS:
        return _HINTS[name]
    if name.startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")):
        return _SECURITY
    return _CLIENT if name.startswith("kafka.") else None
