"""Next steps for error codes whose messages do not name one."""

from __future__ import annotations

from pymq.errors import PymqError

_DOCTOR = "'pymq doctor' finds the reason"
_POLICY = "a rule of the cluster's policy.toml must allow it; see docs/security.md"

HINTS = {
    "REQUEST_TIMEOUT": _DOCTOR,
    "DELIVERY_TIMEOUT": _DOCTOR,
    "BUFFER_FULL": _DOCTOR,
    "DISCONNECTED": _DOCTOR,
    "NO_BROKERS": _DOCTOR,
    "NOT_ENOUGH_REPLICAS": "'pymq topic describe TOPIC' shows who is in sync",
    "NOT_ENOUGH_BROKERS": "'pymq cluster status' shows which brokers are alive",
    "AUTHENTICATION_FAILED": _DOCTOR,
    "AUTHORIZATION_FAILED": _POLICY,
    "CLUSTER_AUTHORIZATION_FAILED": _POLICY,
    "TOPIC_EXISTS": "'pymq topic describe TOPIC' shows it; --if-not-exists accepts it",
    "PARTITION_UNSET": "'pymq topic set-state TOPIC PARTITION leader' sets one",
    "OFFSET_OUT_OF_RANGE": "'pymq topic describe TOPIC' shows where each partition begins and ends",
    "CORRUPT_BLOCK": "'pymq verify DIR' says which blocks are damaged",
    "CORRUPT_METADATA": "'pymq verify DIR' says which files are damaged",
}


def hints(error: BaseException) -> list[str]:
    """Return the next steps for an error."""
    found = list(getattr(error, "__notes__", ()))
    if not found and isinstance(error, PymqError) and error.code in HINTS:
        found.append(HINTS[error.code])
    return found
