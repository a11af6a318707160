"""Every error that pymq raises, one class per cause.

=============  =====================================================================================
``code``       stable, sent on the wire; programs may match it
``retriable``  whether the same call may succeed later without a change by the caller
the message    says what happened and what to do next. The first line of the class's docstring is
               the message of an error without one.
=============  =====================================================================================

If Python has a class for the kind of failure (``ValueError``, ``TimeoutError``, ``OSError``), the
error derives from it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

__all__ = [
    "AuthenticationFailed",
    "AuthorizationFailed",
    "BufferFull",
    "Closed",
    "ClusterAuthorizationFailed",
    "CommitFailed",
    "ConfigError",
    "CorruptBatch",
    "CorruptBlock",
    "CorruptMetadata",
    "DeliveryFailed",
    "DeliveryTimeout",
    "Disconnected",
    "DuplicateSequence",
    "FencedMember",
    "ForkedError",
    "GroupLimitReached",
    "InternalError",
    "InvalidName",
    "InvalidRequest",
    "MissingExtra",
    "NoBrokers",
    "NoResponders",
    "NotController",
    "NotEnoughBrokers",
    "NotEnoughReplicas",
    "NotLeader",
    "NotRegistered",
    "NotSubscribed",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionExists",
    "PartitionSealed",
    "PartitionUnset",
    "ProducerFenced",
    "ProducerLimitReached",
    "PymqError",
    "QuotaExceeded",
    "RecordTooLarge",
    "ReplicaNotAvailable",
    "RequestFailed",
    "RequestTimeout",
    "SchemaIncompatible",
    "StaleControllerEpoch",
    "StaleEpoch",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "TopicExists",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownTopic",
    "ValueNotDecoded",
    "ValueNotEncoded",
    "error_from_code",
]


class PymqError(Exception):
    """Base of all errors; catch this one to catch everything that pymq raises on purpose."""

    code: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details

    def __str__(self) -> str:
        return self.message or (type(self).__doc__ or self.code).splitlines()[0]

    def __reduce__(self) -> tuple[object, ...]:
        # Keeps keyword details when ``multiprocessing`` or Spark pickles the error.
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[PymqError], message: str, details: dict[str, object]) -> PymqError:
    return cls(message, **details)


# --- names, topics, partitions ------------------------------------------------------------------


class InvalidName(PymqError, ValueError):
    """A name must be 1 to 249 of ``[A-Za-z0-9._-]`` and not ``.`` or ``..`` alone."""

    code = "INVALID_NAME"


class UnknownTopic(PymqError, LookupError):
    """No such topic; create it with ``create_topic``."""

    code = "UNKNOWN_TOPIC"


class UnknownPartition(PymqError, LookupError):
    """The topic has no such partition."""

    code = "UNKNOWN_PARTITION"


class UnknownGroup(PymqError, LookupError):
    """No such consumer group."""

    code = "UNKNOWN_GROUP"


class TopicExists(PymqError):
    """A topic of this name exists already."""

    code = "TOPIC_EXISTS"


class PartitionExists(PymqError):
    """The topic has a partition of this name already."""

    code = "PARTITION_EXISTS"


class PartitionUnset(PymqError):
    """The partition has no ack mode yet; call ``set_partition_state`` first."""

    code = "PARTITION_UNSET"


class PartitionSealed(PymqError):
    """The block was sealed; the client finds the next block and retries."""

    code = "PARTITION_SEALED"
    retriable = True


# --- leadership, replicas, epochs ---------------------------------------------------------------


class NotLeader(PymqError):
    """This broker does not lead the partition; ask ``details["leader"]`` instead."""

    code = "NOT_LEADER"
    retriable = True

    @classmethod
    def of(cls, partition: object, leader: str | None) -> NotLeader:
        """Return the error of a partition with another *leader*, or with None."""
        who = f"is led by {leader}" if leader else "has no leader now"
        return cls(f"{partition} {who}", leader=leader)


class NotController(PymqError):
    """This zkserver is not the active one; ask another of the list."""

    code = "NOT_CONTROLLER"
    retriable = True


class NotRegistered(PymqError):
    """The zkserver does not know this incarnation of the broker; register again."""

    code = "NOT_REGISTERED"
    retriable = True


class NoBrokers(PymqError):
    """No broker is registered and alive."""

    code = "NO_BROKERS"
    retriable = True


class NotEnoughBrokers(PymqError):
    """There are fewer live brokers than requested replicas; nothing was changed."""

    code = "NOT_ENOUGH_BROKERS"


class NotEnoughReplicas(PymqError):
    """Fewer replicas are in sync than ``min_in_sync`` asks for; nothing was written."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class ReplicaNotAvailable(PymqError):
    """This broker does not hold that part of the partition; ``details`` names the brokers
    that do.
    """

    code = "REPLICA_NOT_AVAILABLE"
    retriable = True


class StaleEpoch(PymqError):
    """The request has an outdated leader epoch; refresh the metadata."""

    code = "STALE_EPOCH"
    retriable = True


class StaleControllerEpoch(PymqError):
    """The request comes from a controller that has been replaced."""

    code = "STALE_CONTROLLER_EPOCH"


# --- producing ----------------------------------------------------------------------------------


class OutOfOrderSequence(PymqError):
    """A batch of this producer is missing before this one, so it was not written."""

    code = "OUT_OF_ORDER_SEQUENCE"


class DuplicateSequence(PymqError):
    """The batch was written long ago; its offset is no longer remembered."""

    code = "DUPLICATE_SEQUENCE"


class ProducerFenced(PymqError):
    """A newer producer with the same id has taken over; this one must stop."""

    code = "PRODUCER_FENCED"


class RecordTooLarge(PymqError, ValueError):
    """The record is larger than the topic's ``max_record_bytes``."""

    code = "RECORD_TOO_LARGE"


class BufferFull(PymqError, TimeoutError):
    """The producer's buffer stayed full for ``delivery_timeout_s``; brokers are slow or away."""

    code = "BUFFER_FULL"
    retriable = True


class DeliveryTimeout(PymqError, TimeoutError):
    """No answer in time; the message says why, and whether the record may have been written.

    ``details["reason"]`` is the code of the last error, if it is known.
    """

    code = "DELIVERY_TIMEOUT"
    retriable = True

    @property
    def may_be_written(self) -> bool:
        """False if the record is certainly not written and will not be."""
        return self.details.get("may_be_written") is not False


class DeliveryFailed(PymqError):
    """Records failed, and the application has not looked at their deliveries.

    ``records`` holds the failed records, up to about the size of the producer's buffer.
    """

    code = "DELIVERY_FAILED"

    @property
    def records(self) -> list[object]:
        """The failed deliveries, each with its ``value``, ``key`` and ``exception()``."""
        found = self.details.get("records", [])
        return list(found) if isinstance(found, (list, tuple)) else []


# --- consuming ----------------------------------------------------------------------------------


class OffsetOutOfRange(PymqError, LookupError):
    """The offset is before the log's start or beyond its end; seek to a valid one."""

    code = "OFFSET_OUT_OF_RANGE"


class NotSubscribed(PymqError):
    """The group has no subscription to the topic, or no longer; a new consumer creates one."""

    code = "NOT_SUBSCRIBED"


class CommitFailed(PymqError):
    """The leases of some acknowledged records had run out: those records are delivered again.

    Handle records within ``ack_wait_s``, or raise it. ``details["count"]`` is the number of these
    records, and ``details["ranges"]`` their first ranges, as ``(partition, start, end)``.
    """

    code = "COMMIT_FAILED"


class FencedMember(PymqError):
    """The group continued without this consumer, which was silent for too long; open a new one."""

    code = "FENCED_MEMBER"


class GroupLimitReached(PymqError):
    """A limit is reached: members or offsets of a group, groups, or subscriptions of a topic."""

    code = "GROUP_LIMIT_REACHED"


class DelayLimitReached(PymqError):
    """A partition has reached its limit of delayed records; others are still accepted."""

    code = "DELAY_LIMIT_REACHED"


class ProducerLimitReached(PymqError):
    """The cluster has reached its limit of named producers; no new name is accepted."""

    code = "PRODUCER_LIMIT_REACHED"


# --- typed values, request and reply --------------------------------------------------------------


class ValueNotEncoded(PymqError, ValueError):
    """The value does not fit the type of its topic; it was not sent."""

    code = "VALUE_NOT_ENCODED"


class ValueNotDecoded(PymqError, ValueError):
    """The bytes of a record are not a value of its topic's type."""

    code = "VALUE_NOT_DECODED"


class SchemaIncompatible(PymqError, ValueError):
    """The schema is not compatible with earlier ones of the topic."""

    code = "SCHEMA_INCOMPATIBLE"


class RequestFailed(PymqError):
    """The responder failed to process the request."""

    code = "REQUEST_FAILED"


class NoResponders(PymqError, LookupError):
    """No responder serves requests of this name now."""

    code = "NO_RESPONDERS"
    retriable = True


# --- storage ------------------------------------------------------------------------------------


class StoreError(PymqError, OSError):
    """The store cannot be read or written; the message names the path and the cause."""

    code = "STORE_ERROR"


class CorruptBatch(PymqError, ValueError):
    """The bytes are not a valid record batch."""

    code = "CORRUPT_BATCH"


class CorruptBlock(StoreError):
    """A block file is damaged; ``details`` holds ``file``, ``position`` and ``offset``."""

    code = "CORRUPT_BLOCK"


class CorruptMetadata(StoreError):
    """A metadata record cannot be understood."""

    code = "CORRUPT_METADATA"


class StoreLocked(StoreError):
    """Another process has this folder open."""

    code = "STORE_LOCKED"


class StoreFull(StoreError):
    """The disk is full; free some space and open the folder again. Nothing acknowledged is lost."""

    code = "STORE_FULL"


# --- use ----------------------------------------------------------------------------------------


class ConfigError(PymqError, ValueError):
    """An option is unknown or its value is not allowed."""

    code = "CONFIG_ERROR"


class InvalidRequest(PymqError, ValueError):
    """The request cannot be carried out as it stands."""

    code = "INVALID_REQUEST"


class InvalidTimestamp(InvalidRequest):
    """A record's time is before 1970, or later than ``timestamp_after_max_ms`` allows."""

    code = "INVALID_TIMESTAMP"


class MissingExtra(PymqError, ImportError):
    """An optional package is missing; the message says which ``pip install`` brings it."""

    code = "MISSING_EXTRA"

    @classmethod
    def of(cls, missing: str, extra: str) -> Self:
        """Make the error that explains how to install the extra *extra* of pymq."""
        return cls(
            f"{missing}: pip install 'pymq-log[{extra}]', or in a clone pip install '.[{extra}]'"
        )


class Closed(PymqError):
    """The object was closed."""

    code = "CLOSED"


class ForkedError(PymqError, RuntimeError):
    """The object belongs to the parent process; open a new one in the child."""

    code = "FORKED"


class Disconnected(PymqError, ConnectionError):
    """No connection to the broker or zkserver."""

    code = "DISCONNECTED"
    retriable = True


class RequestTimeout(PymqError, TimeoutError):
    """The request was not answered in time."""

    code = "REQUEST_TIMEOUT"
    retriable = True


class AuthenticationFailed(PymqError, PermissionError):
    """The peer does not know the key."""

    code = "AUTHENTICATION_FAILED"


class AuthorizationFailed(PymqError, PermissionError):
    """The principal may not do this."""

    code = "AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(AuthorizationFailed):
    """Only brokers and zkservers may send this, and each only about itself."""

    code = "CLUSTER_AUTHORIZATION_FAILED"


class QuotaExceeded(PymqError):
    """The principal has used up its quota for this second; retry in a moment."""

    code = "QUOTA_EXCEEDED"
    retriable = True

    @property
    def retry_ms(self) -> int:
        """Milliseconds after which to retry, as the node said; at most 60 s."""
        found = self.details.get("retry_ms")
        return max(0, min(found, 60_000)) if type(found) is int else 0


def not_written(error: PymqError) -> PymqError:
    """Return *error* with the detail that the request has written no record, and will write
    none.
    """
    return error_from_code(error.code, error.message, {**error.details, "is_written": False})


def is_not_written(error: PymqError) -> bool:
    """Whether the broker said that the request wrote nothing of the batch.

    Brokers of versions without :func:`not_written` report this only by these classes.
    """
    known = isinstance(error, NotEnoughReplicas | QuotaExceeded)
    return known or error.details.get("is_written") is False


class InternalError(PymqError):
    """A rule of pymq's own was broken; please report it with the message."""

    code = "INTERNAL_ERROR"


def _codes(base: type[PymqError]) -> dict[str, type[PymqError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(_codes(child))
    return found


_BY_CODE: Mapping[str, type[PymqError]] = _codes(PymqError)


def error_from_code(
    code: str, message: str = "", details: Mapping[str, object] | None = None
) -> PymqError:
    """Return the error with *code*; an unknown code gives a plain :class:`PymqError`."""
    error = _BY_CODE.get(code, PymqError)(message)
    error.details.update(details or {})
    return error
