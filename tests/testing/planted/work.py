"""Bugs of what work queues add: routes, requests and replies."""

from __future__ import annotations

from typing import Any

from pymq.client.consumer.consumer import Consumer
from pymq.client.group.membership import Membership
from pymq.client.producer.delivery import ColumnBuffer
from pymq.client.producer.producer_topic import Routing
from pymq.client.rpc.responder import Responder
from pymq.core.batch.header import ROUTED
from pymq.core.batch.record import Record
from tests.testing.planted.bug import bug, plant

AREA = "work"
ROUTES = "tests/client/test_routes.py::"

bug(
    "route-without-its-bit",
    AREA,
    "a producer writes the route of a record, but its batch does not say that it has any",
    "own",
    test=ROUTES + "test_a_share_goes_to_one_group[memory]",
)


@plant("route-without-its-bit", Routing, "stamp")
def without_its_bit(stamp: Any, self: Routing, columns: ColumnBuffer) -> ColumnBuffer:
    stamped: ColumnBuffer = stamp(self, columns)
    stamped.attributes &= ~ROUTED
    return stamped


bug(
    "routed-group-gets-all",
    AREA,
    "the group of a route gets the other records, too",
    "own",
    test=ROUTES + "test_records_that_match_go_to_one_group[memory-canary:header.region=eu]",
)


@plant("routed-group-gets-all", Membership, "is_named_by_route")
def is_never_named(is_named_by_route: Any, self: Membership) -> bool:
    return False


bug(
    "share-begins-anew",
    AREA,
    "the share of each batch is counted from its first record",
    "own",
    test=ROUTES + "test_a_route_changes_while_it_runs[memory]",
)


@plant("share-begins-anew", Routing, "_spaced")
def begins_anew(spaced: Any, self: Routing, indexes: Any) -> list[int]:
    self._credit = 0
    found: list[int] = spaced(self, indexes)
    return found


bug(
    "reply-before-the-work",
    AREA,
    "a request is acknowledged before its responder has answered it",
    "own",
    test="tests/client/rpc/test_request_reply.py::test_a_responder_that_dies_at_work_is_replaced",
)


@plant("reply-before-the-work", Responder, "answer")
def acknowledged_first(answer: Any, self: Responder, consumer: Consumer, record: Record) -> None:
    consumer.ack(record)
    consumer.commit()
    answer(self, consumer, record)
