"""Bugs of replication: which replica has which records, which records are committed, and which
replica leads.

Raft has further mutants in its own tests.
"""

from __future__ import annotations

from typing import Any

import attrs

from pymq.client.fetching.partition_route import PartitionRoute
from pymq.client.router import Router
from pymq.controller.transitions import blocks, broker_restarts, report_transitions
from pymq.coord import paths
from pymq.core.block.block_offsets import BlockOffsets
from pymq.core.block.leader_epochs import LeaderEpochs
from pymq.core.block.log import BlockLog
from pymq.core.message import RaftVote
from pymq.core.partition.fetch import FetchHandler
from pymq.core.partition.open_block import OpenBlock
from pymq.core.partition.partition import Partition
from pymq.core.partition.produce import ProduceHandler
from pymq.core.pending.pending_produces import PendingProduces
from pymq.core.ready import Ready, SaveState
from pymq.core.repair.block_repair import BlockRepair
from pymq.core.repair.partition_repairs import PartitionRepairs
from pymq.core.types import NEVER, TopicPartition
from pymq.errors import NotLeader, OffsetOutOfRange, PymqError
from pymq.replication.fetch import FetchReplicator, Follower
from pymq.replication.raft.commit_index import CommitIndex
from pymq.replication.raft.log_copy import LogCopy
from pymq.replication.raft.raft import Raft
from tests.testing.planted.bug import bug, plant

RAFT, FETCH = "raft", "fetch"

bug(
    "believed-too-early",
    RAFT,
    "the high watermark rises before the disk has answered",
    "etcd #14370 (B11)",
    "calm calm-3",
)


@plant("believed-too-early", Partition, "flush")
def flush_believed(flush: Any, self: Partition, ready: Any, now: int) -> None:
    log, replicator = self.opened.log, self.opened.replicator
    if replicator is not None and log is not None:
        before, log.stable_end = log.stable_end, log.end
        replicator.stable(log.end, now)
        self.look(now)
        log.stable_end = before
    flush(self, ready, now)


bug(
    "follower-shows-uncommitted",
    RAFT,
    "a follower gives readers all that it has, not what it knows to be committed",
    "Kafka KAFKA-9807 (readers beyond the high watermark); KIP-392",
    test="tests/client/test_cluster_replicas.py::test_a_follower_shows_what_is_committed_only",
)


@plant("follower-shows-uncommitted", BlockOffsets, "readable_end")
def show_the_end(readable_end: Any, self: BlockOffsets) -> int:
    log = self.log
    return readable_end(self) if log is None else log.stable_end


bug(
    "watermark-outlives-cut",
    RAFT,
    "what was committed before the log was cut is taken to be so of what comes in its place",
    "Kafka KAFKA-3410, KIP-101 (a restored high watermark above a truncated log)",
    test="tests/core/block/test_log.py::test_what_is_cut_off_is_not_committed_nor_readable",
)


@plant("watermark-outlives-cut", BlockLog, "_cut")
def cut_all_but_the_watermark(cut: Any, self: BlockLog, end: int) -> None:
    committed = self.committed
    cut(self, end)
    self.committed = committed


bug(
    "serves-what-was-cut",
    RAFT,
    "a follower goes on to serve a tail that it has cut off",
    "Kafka KAFKA-9807; etcd #14370",
    test="tests/core/block/test_log.py::test_what_is_cut_off_is_not_committed_nor_readable",
)


@plant("serves-what-was-cut", BlockLog, "_cut")
def cut_all_but_what_is_read(cut: Any, self: BlockLog, end: int) -> None:
    stable_end = self.stable_end
    cut(self, end)
    self.stable_end = stable_end


bug(
    "laggard-is-believed",
    RAFT,
    "a follower that lags says that an offset is beyond the end, and the reader believes it",
    "Kafka KIP-392: OFFSET_NOT_AVAILABLE instead of OFFSET_OUT_OF_RANGE",
    test="tests/client/test_cluster_replicas.py::test_a_position_that_a_follower_has_not_reached_is_no_error",
)


@plant("laggard-is-believed", FetchHandler, "_fetch_of_follower")
def refuse_what_is_missing(fetch: Any, self: FetchHandler, source: str, m: Any, now: int) -> None:
    if m.offset > self._partition.opened.offsets.readable_end:
        answer = self._answer(m, m.offset, self._out_of_range(m))
        self._host.reply(source, answer, now)
    else:
        fetch(self, source, m, now)


@plant("laggard-is-believed", PartitionRoute, "refused")
def believe(refused: Any, self: PartitionRoute, router: Any, error: Any) -> int | None:
    if isinstance(error, OffsetOutOfRange):
        return None
    pause: int | None = refused(self, router, error)
    return pause


bug(
    "transfer-unsaved",
    RAFT,
    "a member that is asked to take the leadership over stands for election without saving that",
    "a mutation that no test killed; Raft 5.2",
    test="tests/testing/test_directed.py"
    "::test_who_takes_the_leadership_over_knows_its_term_after_a_crash",
)


@plant("transfer-unsaved", Raft, "flush")
def flush_unsaved(flush: Any, self: Raft, ready: Ready, now: int) -> None:
    is_asked = any(isinstance(m, RaftVote) and m.transfer for _, m in self.state.held)
    before = len(ready.write)
    flush(self, ready, now)
    if is_asked:
        mine = [write for write in ready.write[before:] if not isinstance(write, SaveState)]
        ready.write[before:] = mine


bug(
    "verified-for-ever",
    RAFT,
    "what was compared with the log of one leader is not compared with that of the next",
    "a mutation that no test killed; Raft 5.3",
    test="tests/testing/test_directed.py"
    "::test_what_was_compared_with_one_leader_is_compared_with_the_next",
)


@plant("verified-for-ever", LogCopy, "new_term")
def keep_verified(new_term: Any, self: LogCopy) -> None:
    verified = self._verified
    new_term(self)
    self._verified = max(verified, self._verified)


bug(
    "answered-at-once",
    RAFT,
    "a producer is told that its record is safe before anything is done for it",
    "NATS #7564; Redis-Raft",
    "calm calm-3",
)


@plant("answered-at-once", ProduceHandler, "_await")
def answer_at_once(
    wait: Any, self: ProduceHandler, end: int, source: str, m: Any, answer: Any
) -> None:
    if m.acks != 0:
        self._host.reply(source, answer, 0)


bug(
    "answered-by-leader-alone",
    RAFT,
    "ack -1 is answered once the leader has the record, as if it were ack 1",
    "MongoDB w:1, Elasticsearch 1.x (Jepsen 2014)",
    "calm-3 swarm-3",
)


@plant("answered-by-leader-alone", PendingProduces, "due")
def due_locally(due: Any, self: PendingProduces, local: int, committed: int) -> Any:
    return due(self, local, max(local, committed))


bug(
    "answered-before-stable",
    RAFT,
    "ack -1 is answered once it is sent to the followers",
    "cockroach #124440",
    "calm-3 swarm-3",
)


@plant("answered-before-stable", ProduceHandler, "_await")
def answer_when_sent(
    wait: Any, self: ProduceHandler, end: int, source: str, m: Any, answer: Any
) -> None:
    wait(self, end, source, m, answer)
    for waiting, found in self._answers.due(NEVER, NEVER):
        self._leave(waiting, found, 0)


bug(
    "counts-what-was-sent",
    RAFT,
    "a leader takes what it has for what everybody has on disk",
    "Raft 5.3",
    "calm-3",
)


@plant("counts-what-was-sent", CommitIndex, "_counted")
def count_what_was_sent(counted: Any, self: CommitIndex, name: str) -> int:
    return self._log.end


bug(
    "no-noop",
    RAFT,
    "a new leader does not open its term: what is there stays uncommitted until somebody sends",
    "thesis 6.4, erratum of chapter 4 (B6)",
    "raft-crash raft-network",
)


@plant("no-noop", BlockLog, "begin")
def begin_nothing(begin: Any, self: BlockLog, epoch: int) -> None:
    return None


bug(
    "isr-of-one",
    FETCH,
    "the high watermark is the leader's own end, whoever is in sync",
    "Kafka, min.insync.replicas=1 and nobody waited for (Jepsen 2013)",
    "fetch-network network-3",
)


@plant("isr-of-one", FetchReplicator, "_advance")
def advance_alone(advance: Any, self: FetchReplicator) -> None:
    self.high_watermark = max(self.high_watermark, self._log.stable_end)


bug(
    "isr-majority",
    FETCH,
    "the high watermark is what a majority of the in-sync set has, not what all of it have",
    "WeakIsr of hachikuji/kafka-specification",
    "fetch-network network-3",
)


@plant("isr-majority", FetchReplicator, "_advance")
def advance_by_majority(advance: Any, self: FetchReplicator) -> None:
    ends = [f.end for name, f in self._followers.items() if name in self._committed]
    ends = sorted([*ends, self._log.stable_end])
    self.high_watermark = max(self.high_watermark, ends[(len(ends) - 1) // 2 + (len(ends) > 1)])


bug(
    "wanted-isr-ignored",
    FETCH,
    "a leader counts only on the set that it knows of, not on the one it has asked for",
    "KIP-497: the maximal ISR",
    "fetch-network fetch-crash",
    is_slow=True,
)


@plant("wanted-isr-ignored", FetchReplicator, "_advance")
def advance_without_wanted(advance: Any, self: FetchReplicator) -> None:
    may_join, self._may_join = self._may_join, ()
    advance(self)
    self._may_join = may_join


bug(
    "isr-expands-early",
    FETCH,
    "a follower that lags joins the in-sync set as soon as it fetches",
    "KAFKA-8836; expand before current",
    "network-3 swarm-3 crash-3",
)


@plant("isr-expands-early", FetchReplicator, "_judge")
def judge_kindly(judge: Any, self: FetchReplicator, now: int, heard: str | None = None) -> None:
    high, self.high_watermark = self.high_watermark, 0
    judge(self, now, heard)
    self.high_watermark = high


bug(
    "isr-shrinks-unasked",
    FETCH,
    "a leader counts without a follower before the zkserver has taken it out",
    "Kafka before KIP-497; ISR shrink not by compare and set",
    "fetch-rolls fetch-network",
)


@plant("isr-shrinks-unasked", FetchReplicator, "_judge")
def judge_alone(judge: Any, self: FetchReplicator, now: int, heard: str | None = None) -> None:
    judge(self, now, heard)
    if self._wanted is not None:
        self._committed = self._wanted


bug(
    "fetched-is-stable",
    FETCH,
    "a follower says that it has what is still on its way to its disk",
    "etcd #14370, for followers that fetch",
    "fetch-disk",
    is_slow=True,
)


@plant("fetched-is-stable", FetchReplicator, "_fetched")
def fetched_and_told(fetched: Any, self: FetchReplicator, source: str, m: Any, now: int) -> None:
    fetched(self, source, m, now)
    log = self._log
    if m.data and log.end > log.stable_end:
        stable, log.stable_end = log.stable_end, log.end
        self._ask(now)
        log.stable_end = stable


bug(
    "restarted-leader-leads",
    FETCH,
    "a leader that was started anew is left to lead on, without what it had not synced",
    "KIP-966: unclean restarts stay in sync",
    "fetch-crash crash-3",
)


@plant("restarted-leader-leads", FetchReplicator, "__init__")
def lead_again(init: Any, self: FetchReplicator, replica: Any, now: int) -> None:
    init(self, attrs.evolve(replica, is_new=True), now)


@plant("restarted-leader-leads", broker_restarts, "_interrupted")
def not_interrupted(interrupted: Any, block: Any, *arguments: Any, **named: Any) -> Any:
    return block


@plant("restarted-leader-leads", OpenBlock, "_make")
def make_again(make: Any, self: OpenBlock, saved: Any, now: int, *, is_new: bool) -> None:
    make(self, saved, now, is_new=is_new or not self.is_voted)


bug(
    "unfenced-isr",
    FETCH,
    "the zkserver takes any in-sync set from anybody",
    "KIP-841, KIP-903",
    test="tests/controller/test_controller_rolls.py::test_a_wish_that_is_not_granted_is_answered_with_what_is",
)


@plant("unfenced-isr", report_transitions, "alter_isr")
def alter_unfenced(alter: Any, draft: Any, m: Any, members: Any) -> None:
    name = TopicPartition(m.topic, m.partition)
    block = draft.image.partition(*name).open_block
    if m.in_sync != block.in_sync and set(m.in_sync) <= set(block.replicas):
        blocks.change(draft, name)
        node = attrs.evolve(block, in_sync=m.in_sync)
        draft.put(paths.block(*name, block.number), node)


bug(
    "joins-by-its-last-life",
    FETCH,
    "who was started anew joins the in-sync set by what it had before",
    "KIP-903",
    test="tests/testing/test_late_wishes.py",
)


@plant("joins-by-its-last-life", report_transitions, "_may_join")
def may_join_as_anybody(may_join: Any, *arguments: Any) -> Any:
    return may_join(*arguments[:-1], 0)


bug(
    "counts-its-last-life",
    FETCH,
    "a leader counts what a follower had before it was started anew",
    "KIP-903: a fetch with a stale broker epoch",
    test="tests/replication/test_fetch.py",
)


@plant("counts-its-last-life", Follower, "is_past")
def never_past(is_past: Any, self: Follower, fetch: Any) -> bool:
    return False


bug(
    "copies-not-compared",
    FETCH,
    "whoever has as many records as a sealed block is taken to have the same ones",
    "KIP-101, KIP-279: logs diverge without being cut",
    test="tests/core/repair/test_block_repair.py",
)


@plant("copies-not-compared", LeaderEpochs, "agreed")
def agree_always(agreed: Any, self: LeaderEpochs, end: int, other: Any, other_end: int) -> int:
    return min(end, other_end)


bug(
    "whole-too-early",
    FETCH,
    "a replica says that it has all of a sealed block when it has a part",
    "RabbitMQ mirrored queues (Jepsen 2014)",
    "wipe-3 fetch-network",
)


@plant("whole-too-early", BlockRepair, "advance")
def advance_and_claim(advance: Any, self: BlockRepair) -> None:
    advance(self)
    self.is_done = True


@plant("whole-too-early", BlockRepair, "is_dirty")
def dirty_as_before(is_dirty: Any, self: BlockRepair) -> Any:
    done, self.is_done = self.is_done, False
    found = is_dirty(self)
    self.is_done = done
    return found


@plant("whole-too-early", PartitionRepairs, "ends")
def ends_of_the_blocks(ends: Any, self: PartitionRepairs, state: Any, numbers: Any = None) -> Any:
    wanted = {block.number: block.end for block in state.blocks}
    return [(*name, number, wanted[number]) for *name, number, _ in ends(self, state, numbers)]


bug(
    "start-over-forgets",
    FETCH,
    "a replica that starts over after a failed write forgets what was visible",
    "L5: the high watermark goes back (KIP-207)",
    "disk-3 swarm-3",
    is_slow=True,
)


@plant("start-over-forgets", OpenBlock, "start_over")
def start_over_from_nothing(over: Any, self: OpenBlock, now: int) -> None:
    over(self, now)
    self.offsets.visible = 0


bug(
    "last-replica-unread",
    RAFT,
    "a reader asks the broker that led before as if it led, and nobody else is left",
    "Kafka KIP-392: a fetch is for the leader, unless that names a replica to read from",
    test="tests/client/test_cluster_replicas.py::test_the_last_replica_is_read_though_it_led_before",
)


@plant("last-replica-unread", PartitionRoute, "refused")
def ask_as_leader(
    refused: Any, self: PartitionRoute, router: Router, error: PymqError
) -> int | None:
    pause: int | None = refused(self, router, error)
    if isinstance(error, NotLeader):
        self.forget()
    return pause


bug(
    "end-told-early",
    RAFT,
    "a new leader tells where the log ends before it knows what is committed",
    "Kafka KIP-207 (offsets that go backwards after an election); Raft, section 8",
    test="tests/client/test_cluster_replicas.py"
    "::test_a_new_leader_knows_the_end_once_it_knows_what_was_acknowledged",
)


@plant("end-told-early", BlockOffsets, "knows_end")
def know_at_once(knows_end: Any, self: BlockOffsets) -> bool:
    return True
