"""Known bugs of other implementations, planted to prove that the tests find them.

Most mutants are faults that published implementations have shipped, or that the papers warn of (B1:
a vote that is not durable, B3: figure 8, B5: a stale member that is elected, B8: a wiped disk, B9:
an append that always cuts, B10: a commit beyond the compared log, B11: a leader that counts too
soon, B12: no pre-vote, B13: reads of a deposed leader, B14: old snapshots, B15: hasty transfers,
B20: cutting to the high watermark). A mutant names the test that must find it: a script, or random
runs. Random runs alone find most of the bugs that have a script, too, within some hundreds of
seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import attrs

from pymq.core.block.replicator import Replica
from pymq.core.message import Message, RaftAppend, RaftTimeout, RaftVote
from pymq.core.ready import Ready, SaveState
from pymq.errors import CorruptBatch
from pymq.replication.quorum import reached
from pymq.replication.raft import initial_state
from pymq.replication.raft.commit_index import CommitIndex
from pymq.replication.raft.election import ElectionResult, RaftElection
from pymq.replication.raft.leadership import Leadership
from pymq.replication.raft.log_copy import LogCopy
from pymq.replication.raft.log_matching import conflict
from pymq.replication.raft.log_sender import LogSender
from pymq.replication.raft.persistent_state import HardState, PersistentState
from pymq.replication.raft.progress import FollowerProgress
from pymq.replication.raft.quorum_features.messages import RaftSnapshot, RoundAppend
from pymq.replication.raft.quorum_features.read_index import ReadIndex
from pymq.replication.raft.quorum_features.snapshots import SnapshotCopy, SnapshotLog
from pymq.replication.raft.raft import Raft
from pymq.replication.raft.transfer import LeadershipTransfer

Patch = tuple[Any, str, Any]  # a class or module, a name in it, its replacement


class Mutant(NamedTuple):
    """A bug, and the test that finds it."""

    what: str
    patches: list[Patch]
    script: str | None = None  # the script that must fail; None: some random run must fail


MUTANTS: dict[str, Mutant] = {}


def plant(
    name: str, what: str, owner: Any, attribute: str, script: str | None = None
) -> Callable[[Any], Any]:
    """Replace an attribute by the decorated function in the mutant *name*."""

    def add(function: Any) -> Any:
        mutant = MUTANTS.setdefault(name, Mutant(what, [], script))
        mutant.patches.append((owner, attribute, function))
        return function

    return add


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the duration of a ``with``."""
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in MUTANTS[name].patches]
    try:
        for owner, key, function in MUTANTS[name].patches:
            setattr(owner, key, function)
        yield
    finally:
        for owner, key, function in before:
            setattr(owner, key, function)


# --- what must be durable -----------------------------------------------------------------------

_flush = Raft.flush


@plant("B1", "term and vote are not saved", Raft, "flush")
def flush_without_state(self: Raft, ready: Ready, now: int) -> None:
    _flush(self, ready, now)
    ready.write = [write for write in ready.write if not isinstance(write, SaveState)]


@plant("B1'", "term and vote are saved after the reply", PersistentState, "send")
def send_at_once(self: PersistentState, peer: str, message: Message) -> None:
    self._group.host.send(peer, message)


@plant("B2", "term and vote are saved one after the other", Raft, "flush", "mit-persist-torn-vote")
def flush_in_two_writes(self: Raft, ready: Ready, now: int) -> None:
    _flush(self, ready, now)
    for save in [write for write in ready.write if isinstance(write, SaveState)]:
        term, vote = HardState.loads(save.state)
        halfway = SaveState(save.block, HardState(term - 1, vote).dumps())
        ready.write.insert(ready.write.index(save), halfway)


@plant("B1''", "what the follower has is said before it is durable", Raft, "step")
def step_and_answer(self: Raft, source: str, message: Any, now: int) -> None:
    _step(self, source, message, now)
    for answer in self._copy.answers(self.epoch):
        if self.leader is not None:
            self._host.send(self.leader, answer)
    self._settle()


_step = Raft.step


@plant(
    "B11",
    "the leader counts itself before its disk is done",
    CommitIndex,
    "_counted",
    "pymq-own-disk-counts-last",
)
def count_at_once(self: CommitIndex, name: str) -> int:
    if name not in self._group.voters:
        return self._log.start
    return self._log.end if name == self._group.me else self._followers[name].match


@plant(
    "B11'",
    "a write for an earlier term counts for what replaced it (ABA)",
    LogCopy,
    "stable",
    "etcd-TestLeaderMsgAppSelfAckAfterTermChange",
)
def stable_whatever_happened(self: LogCopy, end: int) -> None:
    self.durable = max(self.durable, end)


# --- elections ----------------------------------------------------------------------------------


@plant("B4", "a step-down within a term forgets the vote", Raft, "_step_down", "ccf-8094")
def step_down_without_vote(self: Raft, now: int) -> None:
    _step_down(self, now)
    self.state.change(self.epoch, None)


_step_down = Raft._step_down


@plant("B5", "whoever asks gets the vote, whatever its log lacks", RaftElection, "_is_up_to_date")
def any_log_will_do(self: RaftElection, m: RaftVote) -> bool:
    return True


@plant(
    "B5'",
    "the longer log wins, whatever its last epoch",
    RaftElection,
    "_is_up_to_date",
    "etcd-TestVoter",
)
def longer_log_wins(self: RaftElection, m: RaftVote) -> bool:
    return m.end >= self._log.end


@plant(
    "B8",
    "a member whose disk was replaced votes as before",
    Raft,
    "__init__",
    "kraft-single-node-committed-data-loss",
)
def learner_votes(self: Raft, replica: Replica, now: int, learners: tuple[str, ...] = ()) -> None:
    _init(self, replica, now)


_init = Raft.__init__


@plant(
    "B12",
    "no question before an election",
    RaftElection,
    "begin_prevote",
    "etcd-TestDisruptiveFollowerPreVote",
)
def campaign_at_once(self: RaftElection, now: int) -> ElectionResult:
    return ElectionResult.PREVOTE_WON


@plant("B12", "", RaftElection, "is_led")
def never_led(self: RaftElection, candidate: str) -> bool:
    return False


def forgets_vote(self: PersistentState) -> str | None:
    return self.hard.vote if self.hard.vote == self._group.me else None


plant("double-vote", "a second candidate gets a vote in the same term", PersistentState, "vote")(
    property(forgets_vote)
)


def appointed_again(replica: Replica) -> bool:
    open_block = replica.state.blocks[-1]
    saved = None if replica.saved is None else HardState.loads(replica.saved)
    return replica.host.me == open_block.leader and (
        saved is None or saved == (open_block.epoch, open_block.leader)
    )


plant(
    "first-leader-twice",
    "the first leader leads its term again after a crash",
    initial_state,
    "is_appointed",
)(appointed_again)


@plant("first-leader-twice", "", Raft, "stable")
def stable_again(self: Raft, end: int, now: int) -> None:
    _stable(self, end, now)
    if self.election.is_appointed:
        self._lead(now, is_first=True)
        self._settle()


_stable = Raft.stable


@plant("stubborn", "a leader that has given up is still believed in", RaftElection, "_would_vote")
def would_never_vote(self: RaftElection, source: str, m: RaftVote, now: int) -> bool:
    if self.leader is not None and self._host.is_alive(self.leader):
        return False
    return m.epoch > self._state.term and self._is_up_to_date(m)


# --- commit -------------------------------------------------------------------------------------


@plant(
    "B3",
    "an earlier term's batch is committed by counting",
    CommitIndex,
    "advance",
    "raft-5.4.2-earlier-term",
)
def commit_by_counting(self: CommitIndex) -> None:
    end = reached([self._counted(name) for name in self._group.members])
    if end > self.committed:
        self.committed, self.is_opened = end, True


@plant(
    "B10",
    "the follower commits beyond what was verified",
    LogCopy,
    "append",
    "pymq-commit-not-beyond-verified",
)
def append_and_commit(self: LogCopy, m: RaftAppend) -> None:
    _append(self, m)
    self.committed = max(self.committed, min(m.commit, self._log.end))


_append = LogCopy.append


@plant("minority", "one less than a majority will do", CommitIndex, "advance")
def commit_by_minority(self: CommitIndex) -> None:
    ends = sorted(self._counted(name) for name in self._group.members)
    end = ends[(len(ends) + 1) // 2] if len(ends) > 1 else ends[0]
    if end > self.committed and self._log.epoch_at(end) == self._term:
        self.committed, self.is_opened = end, True


@plant(
    "B13",
    "a read is answered without a round",
    Leadership,
    "read_index",
    "etcd-TestReadOnlyOptionSafe",
)
def read_at_once(self: Leadership, token: int, now: int) -> None:
    self._reads.confirmed.append((token, self.commit.committed))


@plant(
    "B13'",
    "a read of a new leader does not wait for its own batch",
    ReadIndex,
    "confirm",
    "etcd-TestReadOnlyForNewLeader",
)
def confirm_too_early(self: ReadIndex, committed: int, is_opened: bool) -> None:
    _confirm(self, committed, is_opened=True)


_confirm = ReadIndex.confirm


# --- logs ---------------------------------------------------------------------------------------


@plant("B9", "an append always cuts off what is behind it", LogCopy, "_take")
def take_and_cut(self: LogCopy, m: RaftAppend) -> None:
    if m.prev < self._log.start or (not m.data and m.prev == self._log.end):
        return
    if m.prev < self._log.end:
        self._log.truncate(m.prev)
        self.durable, self._counts_to = min(self.durable, m.prev), min(self._counts_to, m.prev)
    if m.data:
        self._log.extend(m.data)
    self._verified = self._log.end


@plant(
    "no-check",
    "an append is taken in wherever it goes on",
    LogCopy,
    "append",
    "etcd-TestFollowerCheckMsgApp",
)
def append_unchecked(self: LogCopy, m: RaftAppend) -> None:
    if m.prev == self._log.end:
        if isinstance(m, RoundAppend):
            self._round = max(self._round, m.round)
        try:
            self._log.extend(m.data)
        except CorruptBatch:
            return
        self._verified = self._log.end
        self.committed = max(self.committed, min(m.commit, self._verified))
        self._has_answer = True
        return
    _append(self, m)


@plant(
    "B14",
    "an old snapshot is installed over a newer log",
    SnapshotCopy,
    "install",
    "etcd-TestRestoreIgnoreSnapshot",
)
def install_always(self: SnapshotCopy, m: RaftSnapshot) -> None:
    assert isinstance(self._log, SnapshotLog)
    self.durable = self._counts_to = min(self.durable, self.committed)
    self._log.install(m.end, m.last_epoch, m.data)
    self._verified = self.committed = m.end
    self._has_answer = True


@plant("B20", "a follower cuts to its high watermark, not to where the logs part", LogCopy, "_take")
def take_after_high_watermark(self: LogCopy, m: RaftAppend) -> None:
    if m.data and m.prev < self._log.end and conflict(self._log, m.prev, m.prev_epoch) is None:
        self._log.truncate(self.committed)
        self.durable = min(self.durable, self.committed)
        self._counts_to = min(self._counts_to, self.committed)
        return
    _take(self, m)


_take = LogCopy._take


# --- flow, liveness and transfer ----------------------------------------------------------------


@plant(
    "B15",
    "the target is told before it has everything",
    LeadershipTransfer,
    "tell_target",
    "etcd-TestLeaderTransferToSlowFollower",
)
def tell_target_at_once(self: LeadershipTransfer) -> None:
    if self.target is not None and not self._is_told:
        self._is_told = True
        self._group.host.send(self.target, RaftTimeout(self._group.block, self._term))


def leads_on(self: Raft) -> bool:
    return self._leading is not None


plant(
    "B15'",
    "appends are taken while leadership is handed over",
    Raft,
    "is_leader",
    "etcd-TestLeaderTransferToUpToDateNode",
)(property(leads_on))


@plant("silent", "followers are not told what is committed", LogSender, "lacks")
def lacks_only_data(self: LogSender, progress: FollowerProgress) -> bool:
    return progress.match < self._log.end


@plant("silent", "", LogSender, "_stream")
def stream_only_data(self: LogSender, progress: FollowerProgress, now: int) -> None:
    progress.told_commit = self._commit.committed
    self._reads._told[progress.peer] = self._reads.pending.round
    _stream(self, progress, now)


_stream = LogSender._stream


@plant("no-retry", "what is lost is not sent again", FollowerProgress, "retry")
def never_retry(self: FollowerProgress) -> None:
    self.retry_at = 1 << 62


@plant("no-retry", "", LogSender, "probe")
def probe_unless_bare(
    self: LogSender, progress: FollowerProgress, now: int, bare: bool = False
) -> None:
    if not bare:
        _probe(self, progress, now)


_probe = LogSender.probe


@plant(
    "old-refusal",
    "a late refusal moves a follower back",
    FollowerProgress,
    "refused",
    "pymq-late-refusal",
)
def always_refused(self: FollowerProgress, end: int) -> bool:
    return True


@plant(
    "old-term",
    "what a leader of an earlier term says is heeded",
    Raft,
    "_correct",
    "etcd-TestRejectStaleTermMessage",
)
def heed_old_leader(self: Raft, source: str, m: Any) -> None:
    if isinstance(m, RaftAppend):
        self._copy.append(attrs.evolve(m, epoch=self.epoch))


__all__ = ["MUTANTS", "Mutant", "planted"]
