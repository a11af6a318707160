"""Bugs of groups: leases, acknowledgements, offsets."""

from __future__ import annotations

from typing import Any

from pymq.client.group.lease_requests import LeasePace, LeaseRequests
from pymq.client.group.undelivered_records import UndeliveredRecords
from pymq.client.producer.producer_topic import ProducerTopic
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.offset_ranges import EVERYTHING
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.group_offsets import GroupOffsets
from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.coordinator import ReconciledCoordinator
from pymq.core.group.kafka.reconciled.group import ReconciledGroup
from pymq.core.group.kafka.reconciled.member import ReconcilingMember
from pymq.core.group.leases import Leases
from pymq.core.group.membership import MembershipManager
from pymq.core.group.offset_log import OffsetLog
from pymq.core.group.spans import AVAILABLE, DONE, LEASED, Spans
from pymq.core.types import NEVER
from tests.testing.planted.bug import bug, plant

AREA = "groups"

bug("leased-twice", AREA, "a lease is for everybody who asks", "G3; KIP-932", "calm-3 calm")


@plant("leased-twice", Leases, "acquire")
def acquire_again(acquire: Any, self: Leases, *arguments: Any, **named: Any) -> Any:
    for span in self.spans:
        if span.state == LEASED:
            span.state, span.due = AVAILABLE, 0
    return acquire(self, *arguments, **named)


bug(
    "acks-lost",
    AREA,
    "an acknowledgement is confirmed and not counted",
    "G4",
    "calm calm-3",
)


@plant("acks-lost", Leases, "acknowledge")
def acknowledge_nothing(acknowledge: Any, self: Leases, *arguments: Any) -> int:
    return 0


bug(
    "zombie-acks",
    AREA,
    "whoever acknowledges a record, it is done, though another holds it by now",
    "KAFKA-2555, brod #649 (B19)",
    test="tests/core/group/test_coordinator.py::test_only_the_holder_can_settle",
)


@plant("zombie-acks", Leases, "acknowledge")
def acknowledge_anybody(acknowledge: Any, self: Leases, member: str, ranges: Any) -> int:
    refused = 0
    for start, end in ranges:
        for span in list(self.spans):
            if span.state == LEASED and span.start < end and start < span.end:
                part = (max(start, span.start), min(end, span.end))
                refused += int(acknowledge(self, span.owner, [part]))
        refused += int(acknowledge(self, member, [(start, end)])) * 0
    return refused


bug(
    "commit-past-unacked",
    AREA,
    "the group's offset goes past records that nobody has acknowledged",
    "G4; auto-commit of what was polled (KAFKA-3849)",
    "calm calm-3",
)


@plant("commit-past-unacked", Leases, "_advance")
def advance_past(advance: Any, self: Leases) -> None:
    done = [span.end for span in self.spans if span.state == DONE]
    if done:
        self.spans.begin_at(max(done))
        self.committed = max(done)
    advance(self)


bug(
    "offsets-not-loaded",
    AREA,
    "whoever takes a group over does not read its offsets",
    "KAFKA-8896; G5",
    "crash-3 crash swarm-3",
)


@plant("offsets-not-loaded", OffsetLog, "_replay")
def replay_nothing(replay: Any, self: OffsetLog, batch: Any, now: int) -> None:
    return None


bug(
    "oldest-offset-loaded",
    AREA,
    "of several offsets of a group the first counts, not the last",
    "G5, compaction order",
    "crash-3 crash swarm-3",
)


@plant("oldest-offset-loaded", OffsetLog, "_replay")
def replay_first(replay: Any, self: OffsetLog, batch: Any, now: int) -> None:
    known = {name: dict(group.offsets.leases) for name, group in self._groups.items()}
    replay(self, batch, now)
    for name, found in known.items():
        if name in self._groups:
            self._groups[name].offsets.leases.update(found)


bug(
    "load-stops-early",
    AREA,
    "a take-over of groups reads only the first part of the offsets",
    "KAFKA-5600",
    "crash-3 crash swarm-3",
)


@plant("load-stops-early", OffsetLog, "loaded")
def loaded_first(loaded: Any, self: OffsetLog, m: Any, now: int) -> Any:
    if m.error is None and m.data and not self.is_loaded:
        first = next(iter(split(m.data)))
        self._replay(first.verify(), now)
        self.is_loaded = True
        return True
    return loaded(self, m, now)


bug(
    "offsets-not-written",
    AREA,
    "an acknowledgement is confirmed before it is written anywhere",
    "Kafka before 0.9: offsets.commit.required.acks=0",
    "crash-3 crash swarm-3",
)


@plant("offsets-not-written", OffsetLog, "flush")
def flush_nothing(flush: Any, self: OffsetLog, now: int) -> None:
    self._changed = {}
    flush(self, now)


bug(
    "commit-syncs-nothing",
    AREA,
    "commit() is answered when what was acknowledged is written, and not synced",
    "Kafka: offsets.commit.required.acks, and log.flush.interval of the offsets' topic",
    test="tests/testing/test_directed.py"
    "::test_what_a_commit_has_answered_survives_a_power_cut_of_all_brokers",
)


@plant("commit-syncs-nothing", OffsetLog, "answer")
def answer_unsynced(
    answer: Any, self: OffsetLog, source: str, settled: Any, *, durable: bool
) -> None:
    answer(self, source, settled, durable=False)


bug(
    "settled-early",
    AREA,
    "an acknowledgement is confirmed while its write is under way, and the write may fail",
    "etcd #14370, for offsets",
    test="tests/core/group/test_coordinator.py::test_a_settlement_is_answered_once_it_is_durable",
)


@plant("settled-early", OffsetLog, "flush")
def flush_and_answer(flush: Any, self: OffsetLog, now: int) -> None:
    for source, answer in self._unanswered:
        self._host.reply(source, answer, now)
    self._unanswered = []
    if self._changed:
        flush(self, now)


bug(
    "served-before-revoked",
    AREA,
    "a partition goes to its new owner while the former one is at work on it",
    "G7 (revoke before assign); KAFKA-12984",
    "calm-3 network-3",
)


@plant("served-before-revoked", Leases, "held_by_others")
def held_by_nobody(held: Any, self: Leases, *arguments: Any) -> bool:
    return False


bug(
    "leases-run-for-ever",
    AREA,
    "a lease that has run out is not given to anybody else",
    "G4; SQS visibility timeouts",
    "calm calm-3",
)


@plant("leases-run-for-ever", Leases, "expire")
def expire_nothing(expire: Any, self: Leases, now: int) -> int:
    return 0


@plant("leases-run-for-ever", Leases, "release")
def release_nothing(release: Any, self: Leases, member: str, now: int) -> None:
    return None


bug(
    "lease-expires-early",
    AREA,
    "leases run out in half their time",
    "CURATOR-460: timers that do not agree",
    "calm-3 calm",
)


@plant("lease-expires-early", Leases, "expire")
def expire_early(expire: Any, self: Leases, now: int) -> Any:
    for span in self.spans:
        if span.state == LEASED:
            span.due -= 100
    return expire(self, now)


bug(
    "members-never-gone",
    AREA,
    "a member that is silent keeps what it has for ever",
    "G7; kafka-flow #854",
    "crash crash-3 network",
)


@plant("members-never-gone", MembershipManager, "remove")
def remove_nobody(
    remove: Any, self: MembershipManager, group: ConsumerGroup, member: Any, now: int
) -> None:
    member.gone_at = 1 << 62


bug(
    "nack-acknowledges",
    AREA,
    "what was given back is taken for done",
    "G4",
    "network calm",
)


@plant("nack-acknowledges", Leases, "reject")
def reject_as_done(
    reject: Any, self: Leases, member: str, ranges: Any, due: int, error: str = ""
) -> None:
    self.acknowledge(member, ranges)


bug(
    "error-of-a-neighbour",
    AREA,
    "the error of one returned record is delivered with those that were leased with it, too",
    "own",
    test="tests/client/test_retries.py::test_a_redelivered_record_carries_its_last_error",
)


@plant("error-of-a-neighbour", Leases, "reject")
def reject_with_neighbours(
    reject: Any, self: Leases, member: str, ranges: Any, due: int, error: str = ""
) -> None:
    for start, end in ranges:
        for span in self.spans:
            if span.start < end and start < span.end:
                span.error = error
    reject(self, member, ranges, due, error)


bug(
    "errors-forgotten",
    AREA,
    "the next coordinator does not know why records were returned",
    "own",
    test="tests/core/group/test_coordinator.py::test_errors_are_known_to_the_next_coordinator",
)


@plant("errors-forgotten", Spans, "errors")
def errors_of_nothing(errors: Any, self: Spans) -> Any:
    return ()


bug(
    "delays-forgotten",
    AREA,
    "the next coordinator delivers at once what was returned for some time",
    "own, known since delays exist",
    test="tests/core/group/test_coordinator.py::test_delays_are_known_to_the_next_coordinator",
)


@plant("delays-forgotten", Spans, "delays")
def delays_of_nothing(delays: Any, self: Spans, now: int) -> Any:
    return ()


bug(
    "member-of-another",
    AREA,
    "who knows a member's id speaks for it, whoever has joined it",
    "own, before decision 140",
    test="tests/core/test_group_bounds.py::test_nobody_speaks_for_a_member_of_another_node",
)


@plant("member-of-another", MembershipManager, "_check_owner")
def own_all(
    check: Any, self: MembershipManager, group: ConsumerGroup, member: Any, source: str
) -> None:
    return None


bug(
    "keys-lent",
    AREA,
    "records with keys go to any member that is free",
    "KIP-932: share groups keep no order",
    "calm-3 calm network-3",
)


@plant("keys-lent", GroupOffsets, "loose")
def all_is_loose(loose: Any, self: GroupOffsets, topic: str, leases: Leases) -> Any:
    return EVERYTHING


bug(
    "idle-not-served",
    AREA,
    "a member whose partitions have nothing waits, whatever others have",
    "one worker did all: partitions of consumer groups",
    test="tests/core/test_idle_members.py::test_a_member_without_work_gets_what_has_no_key",
)


@plant("idle-not-served", ConsumerGroup, "_lease_elsewhere")
def lease_nothing(lease: Any, self: ConsumerGroup, *arguments: Any) -> Any:
    return []


bug(
    "given-back-forgotten",
    AREA,
    "what a member gives back is nobody's before its lease has run out",
    "prefetch in AMQP: unacked messages of a consumer that is busy",
    test="tests/core/test_idle_members.py::test_what_is_given_back_goes_to_a_member_that_waits",
)


@plant("given-back-forgotten", Leases, "give_back")
def give_back_nothing(give_back: Any, self: Leases, *arguments: Any) -> None:
    return None


bug(
    "work-in-silence",
    AREA,
    "a member at work tells nobody that its partitions have more",
    "KIP-932: the broker knows, but here the coordinator is told",
    test="tests/client/test_idle_workers.py::"
    "test_what_comes_while_its_consumer_is_at_work_goes_to_another",
    is_slow=True,
)


@plant("work-in-silence", LeaseRequests, "tell")
def tell_nothing(tell: Any, self: LeaseRequests, now: int) -> bool:
    return True


bug(
    "deliveries-counted-anew",
    AREA,
    "the next coordinator does not know how often a record was delivered",
    "KIP-932, delivery count",
    test="tests/core/group/test_coordinator.py::test_deliveries_are_counted_across_coordinators",
)


@plant("deliveries-counted-anew", Spans, "counts")
def counts_of_nothing(counts: Any, self: Spans) -> Any:
    return ()


bug(
    "prefetch-of-all",
    AREA,
    "a worker leases as many records as it asks for, however slow it is",
    "prefetch in Celery: worker_prefetch_multiplier of tasks that take long",
    test="tests/client/test_cluster_idle_workers.py::"
    "test_a_burst_takes_little_longer_than_a_perfect_division",
)


@plant("prefetch-of-all", LeasePace, "limit")
def lease_all(limit: Any, self: LeasePace, wanted: int) -> int:
    return wanted


bug(
    "unkeyed-stay",
    AREA,
    "records without a key go to one partition as long as no batch is full",
    "Kafka KIP-480: the sticky partition changes with each batch",
    test="tests/client/test_cluster_idle_workers.py::"
    "test_records_that_come_one_by_one_go_to_one_partition_after_the_other",
)


@plant("unkeyed-stay", ProducerTopic, "spread")
@plant("unkeyed-stay", ProducerTopic, "left")
def stay(step: Any, self: ProducerTopic, *queues: object) -> None:
    return None


bug(
    "surplus-stays",
    AREA,
    "a member that is at work keeps what comes beyond what it has asked for",
    "RabbitMQ: what is prefetched for a slow consumer waits for it",
    test="tests/client/test_cluster_idle_workers.py::"
    "test_what_comes_for_a_worker_beyond_its_task_is_soon_another_s",
)


@plant("surplus-stays", UndeliveredRecords, "return_surplus")
def keep_surplus(step: Any, self: UndeliveredRecords, now: int, *, is_stuck: bool) -> None:
    self.return_at = NEVER


bug(
    "first-takes-all",
    AREA,
    "the first member that asks gets all that there is, while others wait for some",
    "Celery: worker_prefetch_multiplier; one worker holds tasks that others are free for",
    test="tests/client/test_cluster_idle_workers.py::"
    "test_a_few_long_tasks_are_divided_among_those_that_wait",
)


@plant("first-takes-all", ConsumerGroup, "_share")
def share_nothing(share: Any, self: ConsumerGroup, member: Any, leases: Any, *rest: Any) -> Any:
    return rest[1]


# --- groups of Kafka's new protocol ---------------------------------------------------------------

RECONCILED = "tests/core/group/kafka/reconciled/test_reconciled_groups.py::"

bug(
    "assigned-before-given-up",
    AREA,
    "a partition is assigned while its former user still uses it",
    "KIP-848; franz-go's TestGroupETL",
    test=RECONCILED + "test_a_partition_is_given_up_before_another_member_gets_it",
)


@plant("assigned-before-given-up", ReconciledGroup, "_is_free")
def is_always_free(is_free: Any, self: ReconciledGroup, part: Any, member: str) -> bool:
    return True


bug(
    "epoch-before-given-up",
    AREA,
    "a member gets the new epoch before it has given its partitions up",
    "KIP-848",
    test=RECONCILED + "test_a_partition_is_given_up_before_another_member_gets_it",
)


@plant("epoch-before-given-up", ReconcilingMember, "reconcile")
def reconcile_at_once(
    reconcile: Any, self: ReconcilingMember, target_epoch: int, owned: Any, is_free: Any, now: int
) -> None:
    reconcile(self, target_epoch, frozenset(), is_free, now)


bug(
    "never-has-to-give-up",
    AREA,
    "a member that does not give a partition up keeps it for ever",
    "KIP-848",
    test=RECONCILED + "test_a_member_that_does_not_give_up_in_time_is_removed",
)


@plant("never-has-to-give-up", ReconciledGroup, "tick")
def tick_without_revocations(tick: Any, self: ReconciledGroup, now: int) -> None:
    for member in self.members.values():
        member.revoke_by = NEVER
    tick(self, now)


bug(
    "late-member-commits",
    AREA,
    "a member of an earlier epoch commits offsets",
    "KIP-848",
    test=RECONCILED + "test_only_a_member_of_the_current_epoch_commits",
)


@plant("late-member-commits", ReconciledCoordinator, "commit_code")
def commit_always(commit_code: Any, self: ReconciledCoordinator, m: Any) -> ReconciledCode:
    return ReconciledCode.NONE


bug(
    "old-epoch-welcome",
    AREA,
    "a member with another epoch goes on as if it were current",
    "KIP-848",
    test=RECONCILED + "test_the_former_epoch_is_accepted_once_the_answer_was_lost",
)


@plant("old-epoch-welcome", ReconciledGroup, "find")
def find_anyhow(find: Any, self: ReconciledGroup, m: Any) -> Any:
    return self.members.get(m.member) or find(self, m)
