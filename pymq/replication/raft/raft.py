"""Raft for one open block, whose log is the block itself.

The implementation follows Ongaro, "Consensus: bridging theory and practice", with these
differences:

* The members of a block never change: if the replicas change, a new block begins. So there are no
  configuration entries. The roll that creates the block appoints the first leader, which leads
  without an election when its hard state is durable.
* An entry is a whole record batch. Its index is the offset where the batch ends, and its term is
  the leader epoch in the batch's header. Replicas compare (offset, epoch) pairs at the ends of
  batches.
* A block has no heartbeats: each pair of brokers exchanges pings, regardless of the number of
  shared blocks. A follower does not time out while its leader's broker is alive. A leader that
  steps down asks for votes, so that the others notice. A leader that gets a pre-vote request
  answers that it leads.
* A member sends votes, terms and confirmations only when they are durable: these messages are in
  ``Ready.after``, in the same turn as the write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from pymq.core.block.replicator import Replica
from pymq.core.message import (
    RaftAppend,
    RaftAppended,
    RaftTimeout,
    RaftVote,
    RaftVoted,
    ReplicaFetch,
    ReplicaFetched,
)
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import invariant, mark
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.replication.raft import initial_state
from pymq.replication.raft.election import ElectionResult, RaftElection
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.leadership import Leadership
from pymq.replication.raft.log_copy import LogCopy
from pymq.replication.raft.persistent_state import PersistentState
from pymq.replication.raft.quorum_features.messages import RaftSnapshot
from pymq.replication.raft.quorum_features.read_index import ReadIndex
from pymq.replication.raft.quorum_features.snapshots import SnapshotCopy, SnapshotLog

RaftMessage = RaftAppend | RaftAppended | RaftVote | RaftVoted | RaftTimeout | RaftSnapshot


class Raft:
    """One member of a block's replicas, as leader or follower.

    *learners* are members whose disk is not the one on which the block was created. The votes and
    entries of learners are lost, so learners neither vote nor count towards a majority. A majority
    is still a majority of all members, learners included. Brokers do not use learners: see
    :mod:`pymq.replication.raft.quorum_features`.
    """

    def __init__(self, replica: Replica, now: int, learners: Collection[str] = ()) -> None:
        state, host, log = replica.state, replica.host, replica.log
        members = state.blocks[-1].replicas
        voters = frozenset([name for name in members if name not in learners])
        self._group = RaftGroup(replica.block, log, host, members, voters)
        self._log = log
        self._host = host
        hard, is_saved = initial_state.hard_state(replica)
        self.state = PersistentState(self._group, hard, is_saved)
        is_new = replica.saved is None and hard == (state.epoch, state.leader)
        leader = state.leader if is_new and state.leader != host.me else None
        is_appointed = initial_state.is_appointed(replica)
        self.election = RaftElection(self._group, self.state, leader, is_appointed, now)
        self._leading: Leadership | None = None  # set exactly while the member's role is LEADER
        make_copy = SnapshotCopy if isinstance(log, SnapshotLog) else LogCopy
        self._copy = make_copy(replica.block, log)
        self.reads = ReadIndex(self._group)
        self.high_watermark = log.start
        self.deadline = NEVER
        self.is_dirty = False
        self._settle()

    # --- state ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The term."""
        return self.state.hard.term

    @property
    def leader(self) -> str | None:
        """The leader of the term, if this member knows one."""
        return self.election.leader

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append, because it leads and is not transferring leadership."""
        return self._leading is not None and self._leading.transfer.target is None

    @property
    def in_sync(self) -> tuple[str, ...]:
        """On the leader: the members that are alive and have all committed entries."""
        return self._leading.commit.in_sync if self._leading is not None else ()

    def holders(self, end: int) -> tuple[str, ...]:
        """On the leader: the members that are known to hold the log up to *end*."""
        return self._leading.commit.holders(end) if self._leading is not None else ()

    # --- called by the partition ------------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt the leader that the metadata names, unless a later one was elected."""
        if state.epoch > self.epoch:
            mark("raft.adopted")
            self._become_follower(state.epoch, now)
            if state.leader != self._host.me:
                self.election.leader = state.leader
            self.election.watch(now)
        self._settle()

    def step(
        self, source: str, message: RaftMessage | ReplicaFetch | ReplicaFetched, now: int
    ) -> None:
        """Handle another member's message."""
        if isinstance(message, (ReplicaFetch, ReplicaFetched)):
            return  # a message of another protocol
        if source not in self._group.members or source == self._host.me:
            mark("raft.stranger")
            return
        if self._heeds(source, message, now):
            match message:
                case RaftAppend():
                    self.election.follow(source, now)
                    self._copy.append(message)
                case RaftAppended():
                    if self._leading is not None:
                        self._leading.answered(source, message, now)
                case RaftVote():
                    self._asked(source, message, now)
                case RaftVoted():
                    self._elected(self.election.voted(source, message), now)
                case RaftTimeout():
                    if self.election.takes_over(source):
                        self._campaign(now, transfer=True)
                case RaftSnapshot():
                    self.election.follow(source, now)
                    if isinstance(self._copy, SnapshotCopy):
                        self._copy.install(message)
                    else:
                        mark("raft.snapshot.refused")
                case _:
                    assert_never(message)
        self._settle()

    def appended(self, now: int) -> None:
        """Send new entries while the leader's own disk writes them."""
        if self._leading is not None:
            self._leading.sender.feed_all(now)
        self._settle()

    def tick(self, now: int) -> None:
        """Resend messages, or begin an election."""
        if self._leading is not None:
            self._leading.tick(now)
        elif now >= self.election.timeout_at:
            self._elected(self.election.begin_prevote(now), now)
        self._settle()

    def flush(self, ready: Ready, now: int) -> None:
        """Add the hard state to *ready*, and messages that may leave when that state and the log
        are durable.
        """
        self.state.flush(ready)
        self._copy.flushed()
        answers = self._copy.answers(self.epoch)
        leader = self.election.leader
        if leader is not None:
            ready.after += [(leader, answer) for answer in answers]
        self._settle()

    def stable(self, end: int, now: int) -> None:
        """Note that the write is durable."""
        saved = self.state.stable()
        self._copy.stable(end)
        if saved is not None and saved.vote == self._host.me:
            if saved != self.state.hard:
                mark("raft.self_vote.too_late")
            elif self.election.is_appointed:
                mark("raft.appointed")
                self._lead(now, is_first=True)
            else:
                self._elected(self.election.vote_saved(), now)
        if self._leading is not None:
            self._leading.stable(self._copy.durable, now)
        self._settle()

    def peer_changed(self, peer: str, now: int) -> None:
        """Note that another member's broker seems dead, is back, or has restarted."""
        if peer not in self._group.members or peer == self._host.me:
            return
        if self._leading is not None:
            self._leading.peer_changed(peer, now)
            if not self._host.is_alive(peer) and not self._group.has_quorum():
                mark("raft.no_quorum")
                self._step_down(now)
        elif peer == self.election.leader:
            self.election.leader_changed(now)
        self._settle()

    def transfer(self, peer: str, now: int) -> None:
        """Transfer leadership to *peer* as soon as it has all entries."""
        if self._leading is not None:
            self._leading.transfer_to(peer, now)
        self._settle()

    def relinquish(self, now: int) -> None:
        """Ask the most complete member to begin an election now, and step down.

        Members do not vote for a candidate that lacks committed entries, so a wrong choice costs
        only time.
        """
        if self._leading is not None and (heir := self._leading.transfer.heir()) is not None:
            mark("raft.relinquished")
            self._host.send(heir, RaftTimeout(self._group.block, self.epoch))
            self._step_down(now)
        self._settle()

    def read_index(self, token: int, now: int) -> bool:
        """Begin to confirm that this member may answer a read (ReadIndex).

        The result is False if this member is not the leader.

        ``reads.take`` returns the outcome.
        """
        if self._leading is None:
            return False
        self._leading.read_index(token, now)
        self._settle()
        return True

    # --- terms ----------------------------------------------------------------------------------

    def _heeds(self, source: str, m: RaftMessage, now: int) -> bool:
        """Compare the message's term with this member's; returns whether to handle the message."""
        if isinstance(m, RaftVote) and (m.pre or not self.election.is_voter):
            return self.election.is_voter  # a pre-vote changes no term
        if isinstance(m, RaftVoted) and m.pre and m.granted:
            return True  # the answer has the term of the pre-vote
        if m.epoch == self.epoch:
            return True
        if m.epoch < self.epoch:
            self._correct(source, m)
            return False
        if isinstance(m, RaftVote) and not m.transfer and self.election.is_led(source):
            # A late message of an old election must not remove a leader (thesis 4.2.3).
            mark("raft.vote.disruptive")
            if self._leading is not None:
                self._leading.sender.introduce(source, now)
            return False
        mark("raft.newer_term")
        self._become_follower(m.epoch, now)
        return True

    def _correct(self, source: str, m: RaftMessage) -> None:
        """Answer a member of an earlier term, so that it learns the later term."""
        if isinstance(m, RaftVote):
            mark("raft.stale.vote")
            self.state.send(source, RaftVoted(m.block, self.epoch, False, m.pre))
        elif isinstance(m, RaftAppend | RaftSnapshot | RaftTimeout):
            mark("raft.stale.leader")
            self.state.send(source, RaftAppended(m.block, self.epoch, end=-1))
        else:
            mark("raft.stale.answer")

    def _become_follower(self, term: int, now: int) -> None:
        """Become a follower of a later term, without a leader."""
        invariant(term > self.epoch, "terms only rise", term=term, own=self.epoch)
        self.state.change(term, None)
        self.election.is_appointed = False
        self._copy.new_term()
        self._step_down(now)

    def _step_down(self, now: int) -> None:
        """Stop leading or being a candidate; term and vote stay."""
        if self._leading is not None:
            mark("raft.resigned")
            self._leading = None
            self.reads.give_up()
        self.election.resign(now)

    def _settle(self) -> None:
        """Update the attributes that other objects read."""
        copy, state = self._copy, self.state
        if self._leading is not None:
            copy.committed = self._leading.commit.committed
            self.deadline = self._leading.deadline
        else:
            self.deadline = self.election.timeout_at
        # The high watermark includes only entries that are durable on this disk, too, since others
        # could be lost in a crash.
        high_watermark = min(copy.committed, copy.durable)
        if not self._log.end >= high_watermark >= self.high_watermark:
            invariant(
                False,
                "the high watermark never goes back",
                was=self.high_watermark,
                new=high_watermark,
                end=self._log.end,
            )
        self.high_watermark = high_watermark
        self.is_dirty = not state.is_saved or bool(state.held) or copy.owes_answer

    # --- elections ------------------------------------------------------------------------------

    def _asked(self, source: str, m: RaftVote, now: int) -> None:
        """Answer a vote or pre-vote request."""
        if m.pre and self._leading is not None and source in self._group.voters:
            # The candidate does not know that this member leads.
            self._leading.sender.introduce(source, now)
        self.election.asked(source, m, now)

    def _elected(self, result: ElectionResult | None, now: int) -> None:
        """Act on a majority of votes, or of pre-votes."""
        if result is ElectionResult.PREVOTE_WON:
            self._campaign(now)
        elif result is ElectionResult.WON:
            self._lead(now)

    def _campaign(self, now: int, transfer: bool = False) -> None:
        """Begin an election in a new term."""
        self._copy.new_term()
        self.election.campaign(now, transfer)

    def _lead(self, now: int, is_first: bool = False) -> None:
        """Become the leader of this term."""
        mark("raft.elected")
        vote = self.state.vote
        invariant(vote == self._host.me, "a leader has voted for itself", vote=vote)
        self._leading = Leadership(
            self._group,
            self.epoch,
            self.reads,
            committed=self._copy.committed,
            durable=self._copy.durable,
            is_opened=is_first,
        )
        self.election.lead(now)
        if not is_first:
            # Entries of earlier terms are committed only together with an entry of this term (Raft
            # 5.4.2).
            self._log.begin(self.epoch)
        self._leading.sender.feed_all(now)
