"""Bugs of what work queues add: routes, priorities, requests and replies."""

from __future__ import annotations

from typing import Any

from pymq.client.consumer.consumer import Consumer
from pymq.client.group.membership import Membership
from pymq.client.group.watches import WatermarkWatches
from pymq.client.producer import partition_queue
from pymq.client.producer.delivery import ColumnBuffer
from pymq.client.producer.producer_topic import Routing
from pymq.client.rpc.responder import Responder
from pymq.core.batch.header import ROUTED
from pymq.core.batch.priority import PriorityRuns
from pymq.core.batch.record import Record
from pymq.core.block.log import BlockLog
from pymq.core.delay.row_buffer import RowBuffer
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.leases import Leases
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


PRIORITIES = "tests/client/test_priorities.py::"

bug(
    "one-batch-of-all-priorities",
    AREA,
    "a producer closes records of all priorities into one batch, with that of its first record",
    "own",
    test=PRIORITIES + "test_urgent_records_come_first[memory-50]",
)


@plant("one-batch-of-all-priorities", partition_queue, "by_priority")
def all_in_one(by_priority: Any, run: list[Any], *, in_order: bool) -> list[tuple[int, list[Any]]]:
    groups: list[tuple[int, list[Any]]] = by_priority(run, in_order=True)
    return [(groups[0][0], run)]


bug(
    "passed-over-without-priority",
    AREA,
    "records that a more urgent one has overtaken lose their own priority",
    "own",
    test=PRIORITIES + "test_many_records_at_random[memory]",
)


@plant("passed-over-without-priority", Leases, "_pass_over")
def passed_over_as_one(pass_over: Any, self: Leases, until: int) -> None:
    self.priorities.forget(until)
    pass_over(self, until)


bug(
    "next-coordinator-untold",
    AREA,
    "members do not tell another coordinator the priorities that they know",
    "own",
    test=PRIORITIES + "test_priorities_survive_a_crash[coordinator-1]",
)


@plant("next-coordinator-untold", WatermarkWatches, "untold")
def stays_told(untold: Any, self: WatermarkWatches) -> None:
    pass


bug(
    "own-partitions-first",
    AREA,
    "a member gets all records of its own partitions before urgent ones of others",
    "own",
    test=PRIORITIES + "test_an_idle_member_gets_urgent_records_of_other_partitions",
)


@plant("own-partitions-first", ConsumerGroup, "_levels")
def one_level(levels: Any, self: ConsumerGroup, consumed: Any, now: int) -> list[int]:
    return [0]


bug(
    "copies-of-all-priorities",
    AREA,
    "the leader appends due records of several priorities as one batch",
    "own",
    test=PRIORITIES + "test_delayed_records_keep_their_priority",
)


@plant("copies-of-all-priorities", RowBuffer, "take_most_urgent")
def all_rows(take: Any, self: RowBuffer) -> tuple[list[Any], list[int], list[int]]:
    return *self.take(), []


bug(
    "priorities-not-recovered",
    AREA,
    "a broker that recovers a block forgets the priorities in it",
    "own",
    test=PRIORITIES + "test_priorities_after_a_restart",
)


@plant("priorities-not-recovered", BlockLog, "restore")
def forgets_priorities(restore: Any, self: BlockLog, found: Any, before: Any) -> bool:
    is_done: bool = restore(self, found, before)
    self.priorities = PriorityRuns()
    return is_done
