"""Every error of pymq has an error code of Kafka, so that a client knows whether to retry."""

from __future__ import annotations

import pytest

from pymq import errors
from pymq.errors import PymqError
from pymq.kafka import codes
from pymq.kafka.codes import Code, code_of, group_code, produce_code

# Errors that only pymq's own clients raise, and bugs, have the code UNKNOWN_SERVER_ERROR.
WITHOUT = set(
    """BUFFER_FULL CLOSED COMMIT_FAILED DELAY_LIMIT_REACHED DELIVERY_FAILED DELIVERY_TIMEOUT
    DISCONNECTED FENCED_MEMBER FORKED INTERNAL_ERROR NO_RESPONDERS NOT_REGISTERED NOT_SUBSCRIBED
    PRODUCER_LIMIT_REACHED REQUEST_FAILED SCHEMA_INCOMPATIBLE UNKNOWN
    VALUE_NOT_DECODED VALUE_NOT_ENCODED""".split()
)
ALL = {
    found.code
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, PymqError)
}


def test_every_error_has_a_code() -> None:
    assert set(codes._CODES) | WITHOUT == ALL
    assert set(codes._CODES) & WITHOUT == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, Code.NONE),
        (errors.NotLeader("x"), Code.NOT_LEADER_OR_FOLLOWER),
        (errors.InternalError("x"), Code.UNKNOWN_SERVER_ERROR),
    ],
)
def test_codes(error: PymqError | None, code: Code) -> None:
    assert code_of(error) is code


def test_an_error_means_other_things_to_producers_and_members() -> None:
    assert produce_code(errors.InvalidRequest("x")) is Code.INVALID_RECORD
    assert produce_code(errors.NotLeader("x")) is Code.NOT_LEADER_OR_FOLLOWER
    assert group_code(errors.NotLeader("x")) is Code.NOT_COORDINATOR
    assert group_code(errors.InvalidName("x")) is Code.INVALID_GROUP_ID
