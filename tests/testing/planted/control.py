"""Bugs of zkservers, of rolls, and of the identity of nodes and disks."""

from __future__ import annotations

from typing import Any

import attrs

from pymq.broker.broker import BrokerMachine
from pymq.broker.hosting.hosting import HostedPartitions
from pymq.broker.hosting.removals import Removals
from pymq.broker.hosting.request_fence import RequestFence
from pymq.controller.election import Election
from pymq.controller.operations.broker_registry import BrokerRegistry
from pymq.controller.operations.roll_state import RollState
from pymq.controller.operations.rolls import Rolls
from pymq.controller.operations.topics import Topics
from pymq.controller.state.image import Draft, TopicImage
from pymq.controller.state.transactions import Transactions
from pymq.controller.transitions import (
    blocks,
    placement,
    report_transitions,
    request_plans,
    takeover,
)
from pymq.core.block.sealing import Sealing, SealState
from pymq.core.message import Produced, Stopped, StopReplica
from pymq.core.metadata.coordination import Conflicted, SessionExpired, Uncertain
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.open_block import OpenBlock
from pymq.core.partition.partition import Partition
from pymq.core.partition.produce import ProduceHandler
from pymq.core.types import TopicPartition
from pymq.errors import InvalidRequest
from tests.testing.planted.bug import bug, plant

CONTROLLER, ROLLS, IDENTITY = "controller", "rolls", "identity"

# --- zkservers ----------------------------------------------------------------------------------

bug(
    "expiry-ignored",
    CONTROLLER,
    "a zkserver that has lost its session goes on, and its commits are not fenced",
    "CURATOR-220: LOST is not reported (B17); the fence alone would hide it",
    "coordinator-soon",
    is_slow=True,
)


@plant("expiry-ignored", Election, "decided")
def decide_without_expiry(decided: Any, self: Election, event: Any, now: int) -> Any:
    return None if isinstance(event, SessionExpired) else decided(self, event, now)


@plant("expiry-ignored", Transactions, "begin")
def begin_unfenced_too(begin: Any, self: Transactions, image: Any) -> None:
    begin(self, image)
    self._fence = ()


bug(
    "epoch-not-raised",
    CONTROLLER,
    "a take-over keeps the controller epoch of the one before",
    "K2; KAFKA-1239",
    "coordinator-3",
)


@plant("epoch-not-raised", Election, "_run")
def run_at_old_epoch(run: Any, self: Election, image: Any) -> None:
    before = image.controller_epoch
    image.controller_epoch = max(0, before - 1)
    try:
        run(self, image)
    finally:
        image.controller_epoch = before


bug(
    "race-lost-unseen",
    CONTROLLER,
    "a zkserver that has lost the race for being the active one takes itself for it",
    "K2; split brain of two controllers (KAFKA-1305)",
    "coordinator-3",
)


@plant("race-lost-unseen", Election, "_claimed")
def claimed_anyway(claimed: Any, self: Election, event: Any) -> Any:
    if isinstance(event, Conflicted) and self._draft is not None:
        self._draft.adopt([0] * len(self._draft.ops))
        return self._win(self._draft.image)
    return claimed(self, event)


bug(
    "uncertain-is-done",
    CONTROLLER,
    "a commit whose outcome nobody knows is taken for done",
    "commit_unknown_result of FoundationDB; Kafka's ZkClient",
    test="tests/controller/test_controller_election.py::test_a_commit_of_which_nobody_knows_is_looked_up",
)


@plant("uncertain-is-done", Transactions, "settle")
def settled_and_done(settle: Any, self: Transactions, event: Any, now: int) -> None:
    flight = self._flight
    if isinstance(event, Uncertain) and flight is not None and flight.tag == event.tag:
        self._flight = None
        for task, _, result in flight.items:
            self._finish(task, result, now)
    else:
        settle(self, event, now)


bug(
    "done-is-refused",
    CONTROLLER,
    "a commit that is refused when it is repeated is taken for one that was not done before",
    "a retry that is not idempotent: commit_unknown_result of FoundationDB",
    test="tests/controller/test_controller_election.py::test_a_commit_of_which_nobody_knows_is_looked_up",
)


@plant("done-is-refused", Transactions, "settle")
def forget_that_it_is_repeated(settle: Any, self: Transactions, event: Any, now: int) -> None:
    if isinstance(event, Conflicted) and self._flight is not None:
        self._flight.repeats = 0
    settle(self, event, now)


bug(
    "repeated-without-fence",
    CONTROLLER,
    "a commit whose answer was lost is repeated without proof that its zkserver is still active",
    "K1; a delayed write of an old controller (KAFKA-1305)",
    test="tests/controller/test_controller_election.py"
    "::test_a_commit_is_not_repeated_by_a_zkserver_that_another_has_replaced",
)


@plant("repeated-without-fence", Transactions, "_submit")
def submit_unfenced(submit: Any, self: Transactions, flight: Any) -> None:
    fence = self._fence
    try:
        self._fence = () if flight.repeats else fence
        submit(self, flight)
    finally:
        self._fence = fence


bug(
    "fence-without-node",
    CONTROLLER,
    "a commit proves the controller epoch, and not that its zkserver still has its session",
    "K1; nobody else may have taken over yet, and whoever does has read the tree before",
    test="tests/testing/test_directed.py"
    "::test_what_is_asked_while_a_session_ends_is_not_done_in_the_next_one",
)


@plant("fence-without-node", Transactions, "begin")
def begin_with_the_epoch(begin: Any, self: Transactions, image: Any) -> None:
    begin(self, image)
    self._fence = self._fence[:1]


bug(
    "stale-controller",
    CONTROLLER,
    "a broker goes by what it is told last, whoever says so, and however old it is",
    "K2; Kafka's controller epochs (KAFKA-1305), leader epochs of LeaderAndIsr",
    test="tests/broker/test_broker.py::test_a_late_state_does_not_bring_back_what_was_stopped",
)


@plant("stale-controller", HostedPartitions, "leader_and_isr")
def heed_anybody(heed: Any, self: HostedPartitions, source: str, m: Any, now: int) -> None:
    self._registration.epoch = min(self._registration.epoch, m.controller_epoch)
    heed(self, source, m, now)


@plant("stale-controller", RequestFence, "is_late")
def never_late(is_late: Any, self: RequestFence, request: int, *about: Any) -> bool:
    return False


@plant("stale-controller", HostedPartitions, "_adopt")
def adopt_older(adopt: Any, self: HostedPartitions, request: int, state: Any, now: int) -> Any:
    partition = self.by_name.get(TopicPartition(state.topic, state.partition))
    if partition is None or partition.state.topic_id != state.topic_id:
        return adopt(self, request, state, now)
    partition.adopt(state, self._registration.epoch, now)
    self._schedule.touch(partition)
    return None


# --- rolls --------------------------------------------------------------------------------------

bug(
    "sealed-too-short",
    ROLLS,
    "a block is said to end before its last record",
    "first design of pymq: the end of another replica",
    "calm calm-3",
)


@plant("sealed-too-short", Sealing, "done")
def sealed_short(done: Any, self: Sealing, *arguments: Any) -> Any:
    answer = done(self, *arguments)
    return attrs.evolve(answer, end=answer.end - 1) if answer is not None else None


bug(
    "sealed-unfenced",
    ROLLS,
    "a replica that has said where its copy ends goes on following the old leader",
    "BookKeeper #2614: ledgers closed without fencing",
    test="tests/testing/test_takeovers.py",
)


@plant("sealed-unfenced", Sealing, "is_fenced")
def never_fenced(is_fenced: Any, self: Sealing) -> bool:
    return False


@plant("sealed-unfenced", OpenBlock, "acting")
def acts_though_fenced(acting: Any, self: OpenBlock) -> Any:
    # The control compares this value with the property itself, which runs read all the time.
    if self.log is None or self.log.is_recovering or not self.is_running:
        return None
    return self.replicator


@plant("sealed-unfenced", Sealing, "must_write")
def must_write_fenced(must: Any, self: Sealing, log: Any, replicator: Any) -> Any:
    if self.state is SealState.DRAINING and self.fenced is not None:
        return not log.unwritten
    return must(self, log, replicator)


bug(
    "sealed-uncommitted",
    ROLLS,
    "a leader seals what it has, before the others have it",
    "M3 of the study; Redpanda, membership change under load",
    "network-3 rolls-3 calm-3 swarm-3",
)


@plant("sealed-uncommitted", Sealing, "must_write")
def must_write_at_once(must: Any, self: Sealing, log: Any, replicator: Any) -> Any:
    return self.state is SealState.DRAINING and not log.unwritten


bug(
    "shortest-copy-wins",
    ROLLS,
    "a take-over ends the block where the shortest copy ends, in sync or not",
    "Kafka before KIP-101: the wrong replica is asked",
    "fetch-crash fetch-network fetch-rolls",
)


@plant("shortest-copy-wins", Rolls, "_commit")
def commit_shortest(commit: Any, self: Rolls, roll: Any, m: Any, holders: Any, now: int) -> None:
    if roll.is_takeover:
        answers = [answer for answer in roll.answers.values() if answer.error is None]
        m = min(answers, key=lambda answer: answer.end)
        holders = tuple(answer.broker for answer in answers if answer.end >= m.end)
    commit(self, roll, m, holders, now)


bug(
    "unclean-takeover",
    ROLLS,
    "any replica may say where the block of a dead leader ends",
    "Kafka's unclean.leader.election.enable, once the default (Jepsen 2013)",
    "fetch-crash fetch-network fetch-rolls",
)


@plant("unclean-takeover", takeover, "is_enough")
def any_is_enough(is_enough: Any, block: Any, brokers: Any) -> bool:
    return bool(brokers)


@plant("unclean-takeover", Rolls, "_decide")
def decide_at_once(decide: Any, self: Rolls, roll: Any, now: int) -> None:
    answers = [m for m in roll.answers.values() if m.error is None]
    if roll.is_takeover and roll.state is RollState.SEALING and answers:
        self._commit(roll, answers[0], (answers[0].broker,), now)


bug(
    "longest-copy-wins",
    ROLLS,
    "a take-over of voters goes by the length of their copies, whatever their epochs",
    "KIP-101, KIP-279; Raft 5.4.1",
    test="tests/testing/test_equal_lengths.py",
)


@plant("longest-copy-wins", takeover, "rank")
def rank_by_length(rank: Any, m: Any) -> tuple[int, int]:
    return (0, m.end)


bug(
    "equally-long-is-whole",
    ROLLS,
    "a take-over of voters names as holders all whose copies are as long as the best one",
    "KIP-101; Raft 5.4.1",
    test="tests/testing/test_equal_lengths.py",
)


@plant("equally-long-is-whole", Rolls, "_commit")
def commit_by_length(commit: Any, self: Rolls, roll: Any, m: Any, holders: Any, now: int) -> None:
    if roll.is_takeover:
        whole = [x for x in roll.answers.values() if x.error is None and x.end == m.end]
        holders = tuple(x.broker for x in whole)
    commit(self, roll, m, holders, now)


bug(
    "late-seal-counts",
    ROLLS,
    "an answer to an earlier roll of the same block ends this one",
    "a mutation that no test killed",
    test="tests/testing/test_late_seals.py::"
    "test_what_was_told_to_the_zkserver_before_does_not_end_the_block[False]",
)


@plant("late-seal-counts", Rolls, "sealed")
def sealed_at_any_epoch(sealed: Any, self: Rolls, m: Any, now: int) -> None:
    roll = self.get(TopicPartition(m.topic, m.partition))
    epoch = m.epoch if roll is None else roll.epoch
    sealed(self, attrs.evolve(m, epoch=epoch, controller_epoch=0), now)


bug(
    "seal-for-another-counts",
    ROLLS,
    "an answer to the zkserver before ends the block, which has gone on since",
    "own, before decision 149",
    test="tests/testing/test_late_seals.py::"
    "test_what_was_told_to_the_zkserver_before_does_not_end_the_block[True]",
)


@plant("seal-for-another-counts", Rolls, "sealed")
def sealed_for_anybody(sealed: Any, self: Rolls, m: Any, now: int) -> None:
    sealed(self, attrs.evolve(m, controller_epoch=0), now)


bug(
    "offline-not-heard",
    ROLLS,
    "the zkserver does nothing about a replica whose disk has failed",
    "one failed sync stopped a partition of mode leader for ever",
    test="tests/testing/test_failed_disks.py::"
    "test_a_write_that_fails_is_a_leader_that_hands_over[0-leader-sync]",
)


@plant("offline-not-heard", BrokerRegistry, "offline")
def offline_unheard(offline: Any, self: BrokerRegistry, m: Any, now: int) -> None:
    return None


bug(
    "cut-before-commit",
    ROLLS,
    "a replica that is asked to seal cuts what it does not know to be committed",
    "KIP-101: truncation to the high watermark (B20)",
    "fetch-crash crash-3",
)


@plant("cut-before-commit", Partition, "seal")
def seal_and_cut(seal: Any, self: Partition, m: Any, now: int) -> None:
    log: Any = self.opened.log
    replicator: Any = self.opened.replicator
    is_open = log is not None and replicator is not None and m.block == self.state.blocks[-1].number
    if m.takeover and is_open and not log.is_recovering:
        log.truncate(replicator.high_watermark)
    seal(self, m, now)


bug(
    "parked-dropped",
    ROLLS,
    "what came in during a roll is dropped, and yet confirmed",
    "RethinkDB: reconfiguration under load",
    "rolls-3 calm-3",
)


@plant("parked-dropped", ProduceHandler, "drive_parked")
def drop_parked(drive: Any, self: ProduceHandler, now: int) -> None:
    parked, self._parked = self._parked, []
    log = self._partition.opened.log
    for source, m in parked:
        self._answer(source, Produced(m.id, log.end if log is not None else 0, 1), m.acks, now)


bug(
    "parked-refused-twice",
    ROLLS,
    "what came in during a roll is appended, and refused as well",
    "P5: what has failed is there (aborted read), Redpanda 21.10",
    "rolls-3 calm-3",
)


@plant("parked-refused-twice", ProduceHandler, "drive_parked")
def drive_and_refuse(drive: Any, self: ProduceHandler, now: int) -> None:
    for source, m in self._parked:
        self._answer(source, Produced(m.id, error=InvalidRequest("rolled")), m.acks, now)
    drive(self, now)


bug(
    "epoch-kept-at-roll",
    ROLLS,
    "the next block has the epoch of the one before",
    "L7, L8; KIP-595",
    "calm-3 rolls-3 swarm-3",
)


@plant("epoch-kept-at-roll", blocks, "change")
def change_without_epoch(change: Any, draft: Any, name: Any, **fields: Any) -> None:
    if "next_block" in fields and fields.get("epoch", 0) > 1:
        fields["epoch"] -= 1
    change(draft, name, **fields)


bug(
    "next-block-elsewhere",
    ROLLS,
    "the next block begins one offset too late",
    "L1: gaps at a roll",
    "calm calm-3",
)


@plant("next-block-elsewhere", blocks, "_open")
def open_later(open_block: Any, draft: Any, name: Any, block: Any, *arguments: Any) -> None:
    if block.number and block.start:
        block = attrs.evolve(block, start=block.start + 1)
    open_block(draft, name, block, *arguments)


bug(
    "holders-not-asked",
    ROLLS,
    "all replicas are noted as holding a block when it is sealed",
    "Kafka: ISR of a new leader is not its own (KAFKA-1367)",
    "network-3 rolls-3 swarm-3 crash-3",
)


@plant("holders-not-asked", Rolls, "_commit")
def commit_for_all(commit: Any, self: Rolls, roll: Any, m: Any, holders: Any, now: int) -> None:
    image = self._commits.image.find(roll.name)
    replicas = image.open_block.replicas if image is not None else ()
    commit(self, roll, m, tuple({**dict.fromkeys(holders), **dict.fromkeys(replicas)}), now)


bug(
    "removed-before-commit",
    ROLLS,
    "a block that is sealed goes from brokers that are no replica of the next one",
    "K7; NATS #7556: clean-up of what is not known",
    "rolls-3 swarm-3",
)


@plant("removed-before-commit", blocks, "leavers")
def leave_early(leaving: Any, image: Any, left: Any) -> Any:
    left = list(left)
    return leaving(image, left[-1:])


# --- who is who ---------------------------------------------------------------------------------

bug(
    "wiped-broker-votes",
    IDENTITY,
    "a broker whose disk was replaced is taken for the one before",
    "thesis 3.8, RethinkDB (B8)",
    "wipe-3",
)


@plant("wiped-broker-votes", LocalBlocks, "holds")
def hold_by_name(holds: Any, self: LocalBlocks, block: Any) -> bool:
    return self._host.me in block.replicas


@plant("wiped-broker-votes", placement, "has_storage")
@plant("wiped-broker-votes", blocks, "has_storage")
@plant("wiped-broker-votes", report_transitions, "has_storage")
@plant("wiped-broker-votes", takeover, "has_storage")
def has_storage_by_name(has: Any, image: Any, block: Any, broker: str) -> bool:
    return True


bug(
    "wall-clock-of-the-start",
    ROLLS,
    "a broker keeps the time of day that it took at its start, also after its clock was set right",
    "own",
    test="tests/testing/test_what_enters.py::"
    "test_a_wall_clock_that_is_set_right_is_believed_at_once",
)


@plant("wall-clock-of-the-start", BrokerMachine, "set_wall_offset")
def keep_the_first(set_wall_offset: Any, self: BrokerMachine, offset_ms: int) -> None:
    return None


# --- topics of many commits -----------------------------------------------------------------------

LARGE = "tests/controller/test_large_topics.py::"

bug(
    "half-a-topic-stays",
    CONTROLLER,
    "a zkserver that takes over leaves what it finds of a topic that was being made or removed",
    "own: any change of several writes that nobody ends",
    test=f"{LARGE}test_a_topic_is_whole_or_not_there_after_a_crash_between_any_two_slices",
)


@plant("half-a-topic-stays", Topics, "_remove_all")
def leave_all(_: Any, self: Topics) -> None:
    pass


bug(
    "delete-forgets-a-slice",
    CONTROLLER,
    "a topic counts as removed when the first slice of it is",
    "own, a loop that ends where a draft is full",
    test=f"{LARGE}test_a_large_topic_is_deleted_in_slices",
)


@plant("delete-forgets-a-slice", request_plans, "remove_topic")
def remove_some(remove: Any, draft: Draft, topic: TopicImage) -> bool:
    remove(draft, topic)
    return True


bug(
    "gone-before-it-is",
    CONTROLLER,
    "a broker says that a deleted topic is gone when it begins to remove it",
    "own: an answer before the work",
    test="tests/broker/hosting/test_removals.py::test_what_is_asked_again_meanwhile_is_answered_once",
)


@plant("gone-before-it-is", Removals, "begin")
def gone_at_once(begin: Any, self: Any, source: str, m: StopReplica, *rest: Any) -> None:
    begin(self, source, m, *rest)
    self._host.out.after.append((source, Stopped(m.id, self._host.me)))
