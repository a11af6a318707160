"""Bugs of work queues: routes, priorities, requests, returns, redrives."""

from __future__ import annotations

from typing import Any

from pymq.client.admin import groups
from pymq.client.admin.owned_topic import OwnedTopic
from pymq.client.consumer.consumer import Consumer
from pymq.client.group import undelivered_records
from pymq.client.group.membership import Membership
from pymq.client.group.watches import WatermarkWatches
from pymq.client.producer import partition_queue
from pymq.client.producer.delivery import ColumnBuffer
from pymq.client.producer.producer_topic import Routing
from pymq.client.redrive.journal import JournalEntry
from pymq.client.redrive.redrive import Redrive
from pymq.client.rpc import requester, responder
from pymq.client.rpc.mailbox import REQUEST_ID, ReplyMailbox, Request, header
from pymq.client.rpc.responder import Responder
from pymq.core.batch.header import ROUTED
from pymq.core.batch.priority import PriorityRuns
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.block.log import BlockLog
from pymq.core.delay.row_buffer import RowBuffer
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.leases import Leases
from pymq.core.group.spans import AVAILABLE, Spans
from pymq.errors import UnknownGroup
from tests.testing.planted.bug import bug, plant

AREA = "work"
ROUTES = "tests/client/test_routes.py::"

bug(
    "route-without-its-bit",
    AREA,
    "a producer writes the route of a record, but its batch does not say that it has any",
    "own",
    "calm calm-3",
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
    "calm calm-3",
)


@plant("routed-group-gets-all", Membership, "is_named_by_route")
def is_never_named(is_named_by_route: Any, self: Membership) -> bool:
    return False


bug(
    "share-begins-anew",
    AREA,
    "the share of each batch is counted from its first record",
    "own",
    "calm calm-3",
)


@plant("share-begins-anew", Routing, "_spaced")
def begins_anew(spaced: Any, self: Routing, indexes: Any) -> list[int]:
    self._credit = 0
    found: list[int] = spaced(self, indexes)
    return found


bug(
    "route-drops-the-others",
    AREA,
    "a group that no route names takes records without a route for another group's",
    "own",
    "calm calm-3",
)


@plant("route-drops-the-others", undelivered_records, "for_group")
def drop_the_others(for_group: Any, view: RecordBatch, group: str, *, is_named: bool) -> Any:
    return for_group(view, group, is_named=is_named or bool(view.batch.header.attributes & ROUTED))


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


bug(
    "reply-of-another-request",
    AREA,
    "a client gives a reply to the request that waits longest, whatever its id",
    "own; AMQP's correlation-id exists for this",
    "calm calm-3",
)


@plant("reply-of-another-request", ReplyMailbox, "deliver")
def deliver_to_the_first(deliver: Any, self: ReplyMailbox, replies: Any) -> None:
    for reply in replies:
        if self._waiting:
            self._waiting.pop(next(iter(self._waiting))).take(reply)


bug(
    "reply-accepted-twice",
    AREA,
    "a request accepts a second reply; responders reply twice, as if each request came again",
    "own; at-least-once delivery repeats replies",
    "calm calm-3",
)


@plant("reply-accepted-twice", ReplyMailbox, "deliver")
def deliver_again(deliver: Any, self: ReplyMailbox, replies: Any) -> None:
    for reply in replies:
        pending = self._waiting.get(header(reply.headers, REQUEST_ID) or b"")
        if pending is not None:
            pending.take(reply)


@plant("reply-accepted-twice", Responder, "answer")
def answer_twice(answer: Any, self: Responder, consumer: Consumer, record: Record) -> None:
    answer(self, consumer, record)
    answer(self, consumer, record)


bug(
    "deadline-is-dropped",
    AREA,
    "a responder does not hear of the deadline of a request",
    "own; gRPC propagates deadlines for this reason",
    "calm calm-3",
)


@plant("deadline-is-dropped", responder, "request_of")
def without_deadline(request_of: Any, record: Record) -> Request:
    found: Request = request_of(record)
    return found._replace(deadline_ms=None)


bug(
    "nobody-is-waited-for",
    AREA,
    "a request without a responder waits for its whole timeout",
    "own; NATS has answered 'no responders' at once since 2.2",
    "calm calm-3",
)


@plant("nobody-is-waited-for", requester, "may_have_members")
def somebody(may_have_members: Any, questions: Any, group: str) -> bool:
    return True


bug(
    "new-coordinator-knows-nobody",
    AREA,
    "a coordinator that has just taken over says that a service has no responders",
    "own, found by a seed",
    test="tests/testing/test_run.py::test_what_failed_once[no-responders-says-a-new-coordinator]",
)


@plant("new-coordinator-knows-nobody", groups, "may_have_members")
@plant("new-coordinator-knows-nobody", requester, "may_have_members")
def knows_nobody(may_have_members: Any, questions: Any, group: str) -> bool:
    try:
        return bool(questions.group_state(group).members)
    except UnknownGroup:
        return False


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
    "leased-in-order",
    AREA,
    "a lease takes records in the order of their offsets, whatever their priority",
    "own",
    "calm calm-3",
)


@plant("leased-in-order", Leases, "acquire")
def in_order(acquire: Any, self: Leases, member: str, end: int, *args: Any) -> Any:
    self._has_levels = False
    return acquire(self, member, end, *args)


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


bug(
    "delay-of-a-return-ignored",
    AREA,
    "a record that a member has returned with a delay comes again at once",
    "own; NATS and SQS: a delay of a negative acknowledgement",
    "calm calm-3",
)


@plant("delay-of-a-return-ignored", Leases, "reject")
def reject_for_now(
    reject: Any, self: Leases, member: str, ranges: Any, due: int, error: str = ""
) -> None:
    reject(self, member, ranges, 0, error)


bug(
    "delays-of-returns-forgotten",
    AREA,
    "a coordinator that takes over delivers returned records at once",
    "own, before seeds of the simulator",
    "crash-3 crash network-3",
)


@plant("delays-of-returns-forgotten", Spans, "delays")
def no_delays(delays: Any, self: Spans, now: int) -> Any:
    return ()


bug(
    "returns-counted-once",
    AREA,
    "a redelivery after a return does not count, so that a backoff does not grow",
    "own; KIP-932, delivery count",
    "calm calm-3",
)


@plant("returns-counted-once", Leases, "reject")
def reject_uncounted(reject: Any, self: Leases, *arguments: Any) -> None:
    reject(self, *arguments)
    for span in self.spans:
        if span.state == AVAILABLE and span.count > 1:
            span.count -= 1


bug(
    "redriven-again",
    AREA,
    "a redrive sends the letters of a round again that a crash has cut off",
    "own",
    test="tests/client/redrive/test_redrive.py::"
    "test_each_letter_goes_back_once_wherever_the_process_dies",
)


@plant("redriven-again", Redrive, "_finish")
def forget_the_round(
    finish: Any, self: Redrive, partition: str, entry: JournalEntry, letters: dict[int, Record]
) -> int:
    if letters:
        return int(finish(self, partition, entry, letters))
    entry.round = None
    return 0


bug(
    "refused-round-stays",
    AREA,
    "a letter that its topic refuses holds up all later redrives",
    "own",
    test="tests/client/redrive/test_redrive.py::test_a_letter_that_is_refused_holds_up_no_other[memory]",
)


@plant("refused-round-stays", Redrive, "_give_up")
def never_give_up(give_up: Any, self: Redrive, *arguments: Any) -> None:
    return None


bug(
    "redrives-side-by-side",
    AREA,
    "a redrive takes its journal back from another one, and goes on with what it knew before",
    "own",
    test="tests/client/redrive/test_redrive.py::test_the_second_redrive_takes_over_from_the_first",
)


@plant("redrives-side-by-side", OwnedTopic, "append")
def take_the_journal_back(append: Any, self: OwnedTopic, key: bytes, item: bytes) -> bool:
    if append(self, key, item):
        return True
    self.claim(lambda: None)
    return bool(append(self, key, item))


bug(
    "journal-is-not-read",
    AREA,
    "a redrive does not know which letters earlier ones have sent back",
    "own",
    "calm-3 raft-network raft-crash",
    is_slow=True,
)


@plant("journal-is-not-read", JournalEntry, "has")
def has_none(has: Any, self: JournalEntry, offset: int) -> bool:
    return False


bug(
    "dry-run-sends",
    AREA,
    "a dry run sends the letters back that it counts",
    "own",
    "calm calm-3",
)


@plant("dry-run-sends", Redrive, "dry_run")
def run_for_real(dry_run: Any, self: Redrive) -> Any:
    return self.run()


bug(
    "last-round-is-forgotten",
    AREA,
    "a redrive ends with its last full round",
    "own",
    "calm-3 raft-network raft-crash",
    is_slow=True,
)


@plant("last-round-is-forgotten", Redrive, "_rounds")
def full_rounds(
    rounds: Any, self: Redrive, partition: str, entry: JournalEntry, *, needs_target: bool = True
) -> Any:
    found = list(rounds(self, partition, entry, needs_target=needs_target))
    yield from found[:-1]
