"""Raft for one open block, whose log is the block itself.

It follows Ongaro, "Consensus: bridging theory and practice", with these differences:

* The members of a block never change: another set of replicas is another block. So there are no
  configuration entries. The roll that creates the block names the first leader, which leads without
  an election once its hard state is durable.
* An entry is a whole record batch, its index the offset where it ends, its term the leader epoch in
  its header. (offset, epoch) pairs are compared at the ends of batches.
* A block has no heartbeats: each pair of brokers exchanges pings, however many blocks they share.
  A follower does not time out while its leader's broker is alive. A leader that steps down asks for
  votes, which the others notice. A leader that receives a pre-vote request answers that it leads.
* Votes, terms and confirmations of a follower leave only when they are durable: they are in
  ``Ready.after``, in the turn of the write that they wait for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from pymq.core.block.replicator import Replica
from pymq.core.message import (
    Message,
    RaftAppend,
    RaftAppended,
    RaftSnapshot,
    RaftTimeout,
    RaftVote,
    RaftVoted,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
)
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import invariant, mark
from pymq.core.ready import Envelope, Ready, SaveState
from pymq.core.types import NEVER
from pymq.replication.raft import initial_state
from pymq.replication.raft.election import Ballot, HardState, RaftRole
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.leadership import Leadership
from pymq.replication.raft.log_copy import LogCopy

RaftMessage = RaftAppend | RaftAppended | RaftVote | RaftVoted | RaftTimeout | RaftSnapshot


class Raft:
    """One member of a block's replicas.

    *learners* are members whose disk is not the one that the block was created on. Their votes and
    entries are lost, so they neither vote nor count, while the majority stays that of all members.
    """

    def __init__(self, replica: Replica, now: int, learners: Collection[str] = ()) -> None:
        state, host, log = replica.state, replica.host, replica.log
        members = state.blocks[-1].replicas
        self._group = RaftGroup(replica.block, log, host, members, frozenset(learners))
        self._log = log
        self._host = host
        self._is_voter = host.me in members and host.me not in learners
        self.role = RaftRole.FOLLOWER
        self.leader: str | None = None
        self._leading: Leadership | None = None
        self._ballot = Ballot(len(members))
        self._hard, self._is_saved = initial_state.hard_state(replica)
        self._saving: HardState | None = None  # by the write that is under way
        self._appointed = self._is_voter and initial_state.is_appointed(replica)
        self._copy = LogCopy(replica.block, log)
        self.high_watermark = log.start
        self._after: list[Envelope] = []  # messages that leave once their content is durable
        self._lost_reads: list[int] = []
        self._election_at = NEVER
        self.deadline = NEVER
        self.is_dirty = False
        if replica.saved is None and self._hard == (state.epoch, state.leader):
            self.leader = state.leader if state.leader != host.me else None
        self._watch(now)
        self._settle()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The term."""
        return self._hard.term

    @property
    def vote(self) -> str | None:
        """The member's vote in its term."""
        return self._hard.vote

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append: it leads and transfers no leadership."""
        return self._leading is not None and self._leading.target is None

    @property
    def is_learner(self) -> bool:
        """Whether this member is a learner, which neither votes nor counts."""
        return not self._is_voter

    @property
    def in_sync(self) -> tuple[str, ...]:
        """On the leader: the members that are alive and have all committed entries."""
        return self._leading.in_sync if self._leading is not None else ()

    def holders(self, end: int) -> tuple[str, ...]:
        """On the leader: the members that are known to hold the log up to *end*."""
        return self._leading.holders(end) if self._leading is not None else ()

    def _is_led(self, candidate: str) -> bool:
        """Whether, as far as this member knows, another member than *candidate* leads."""
        if self._leading is not None:
            return True
        leader = self.leader
        return leader is not None and leader != candidate and self._host.is_alive(leader)

    # --- what the partition calls ---------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt the leader that the metadata names, unless a later one was elected."""
        if state.epoch > self.epoch:
            mark("raft.adopted")
            self._become_follower(state.epoch, now)
            if state.leader != self._host.me:
                self.leader = state.leader
            self._watch(now)
        self._settle()

    def step(self, source: str, message: Replication, now: int) -> None:
        """Take in another member's message."""
        if isinstance(message, (ReplicaFetch, ReplicaFetched)):
            return  # of another discipline
        if source not in self._group.members or source == self._host.me:
            mark("raft.stranger")
            return
        if self._heeds(source, message, now):
            match message:
                case RaftAppend():
                    self._follow(source, now)
                    self._copy.append(message)
                case RaftAppended():
                    if self._leading is not None:
                        self._leading.answered(source, message, now)
                case RaftVote():
                    self._asked(source, message, now)
                case RaftVoted():
                    self._voted(source, message, now)
                case RaftTimeout():
                    self._take_over(source, now)
                case RaftSnapshot():
                    self._follow(source, now)
                    self._copy.install(message)
                case _:
                    assert_never(message)
        self._settle()

    def appended(self, now: int) -> None:
        """Send new entries while the leader's own disk writes them."""
        if self._leading is not None:
            self._leading.feed_all(now)
        self._settle()

    def tick(self, now: int) -> None:
        """Resend messages, or begin an election."""
        if self._leading is not None:
            self._leading.tick(now)
        elif now >= self._election_at:
            self._ask_around(now)
        self._settle()

    def flush(self, ready: Ready, now: int) -> None:
        """Add the hard state to *ready*, and messages that may leave once it and the log are
        durable.
        """
        if not self._is_saved:
            ready.write.append(SaveState(self._group.block, self._hard.dumps()))
            self._saving, self._is_saved = self._hard, True
        self._copy.flushed()
        ready.after += self._after
        self._after = []
        answers = self._copy.answers(self.epoch)
        if self.leader is not None:
            ready.after += [(self.leader, answer) for answer in answers]
        self._settle()

    def stable(self, end: int, now: int) -> None:
        """Take in that the write is durable."""
        saved, self._saving = self._saving, None
        self._copy.stable(end)
        if saved is not None and saved == self._hard and saved.vote == self._host.me:
            if self._appointed:
                mark("raft.appointed")
                self._lead(now, is_first=True)
            elif self.role is RaftRole.CANDIDATE:
                self._cast(self._host.me, True, now)
        elif saved is not None and saved.vote == self._host.me:
            mark("raft.self_vote.too_late")
        if self._leading is not None:
            self._leading.stable(self._copy.durable, now)
        self._settle()

    def peer_changed(self, peer: str, now: int) -> None:
        """Take in that another member's broker seems dead, is back, or has restarted."""
        if peer not in self._group.members or peer == self._host.me:
            return
        if self._leading is not None:
            self._leading.peer_changed(peer, now)
            if not self._host.is_alive(peer) and not self._group.has_quorum():
                mark("raft.no_quorum")
                self._step_down(now)
        elif peer == self.leader:
            if self._host.is_alive(peer) and self._election_at == NEVER:
                # Its death was not noticed, so the broker has restarted and no longer leads.
                mark("raft.leader_restarted")
                self.leader = None
            self._watch(now)
        self._settle()

    def transfer(self, peer: str, now: int) -> None:
        """Transfer leadership to *peer* as soon as it has all entries."""
        if self._leading is not None:
            self._leading.transfer(peer, now)
        self._settle()

    def relinquish(self, now: int) -> None:
        """Ask the most complete member to begin an election now, and step down.

        Members do not vote for one that lacks committed entries, so a poor choice only costs time.
        """
        if self._leading is not None and (heir := self._leading.heir()) is not None:
            mark("raft.relinquished")
            self._host.send(heir, RaftTimeout(self._group.block, self.epoch))
            self._step_down(now)
        self._settle()

    def read_index(self, token: int, now: int) -> bool:
        """Begin to confirm that a read may be answered here (ReadIndex); False if not the
        leader.
        """
        if self._leading is None:
            return False
        self._leading.read_index(token, now)
        self._settle()
        return True

    def take_reads(self) -> list[tuple[int, int | None]]:
        """Return decided reads as (token, end): all before *end* may be read.

        The high watermark is at *end* or beyond. None: this replica no longer leads.
        """
        found: list[tuple[int, int | None]] = [(token, None) for token in self._lost_reads]
        self._lost_reads = []
        if self._leading is not None:
            ends, mine = self._leading.read_ends, self.high_watermark
            found += [(token, end) for token, end in ends if end <= mine]
            self._leading.read_ends = [(token, end) for token, end in ends if end > mine]
        return found

    # --- terms ----------------------------------------------------------------------------------

    def _heeds(self, source: str, m: RaftMessage, now: int) -> bool:
        """Compare terms; returns whether the message has to be handled."""
        if isinstance(m, RaftVote) and (m.pre or not self._is_voter):
            return self._is_voter  # A pre-vote changes no term.
        if isinstance(m, RaftVoted) and m.pre and m.granted:
            return True  # The answer has the term of the pre-vote.
        if m.epoch == self.epoch:
            return True
        if m.epoch < self.epoch:
            self._correct(source, m)
            return False
        if isinstance(m, RaftVote) and not m.transfer and self._is_led(source):
            # A late message of an old election must not depose a leader (thesis 4.2.3).
            mark("raft.vote.disruptive")
            if self._leading is not None:
                self._leading.probe(source, now)
            return False
        mark("raft.newer_term")
        self._become_follower(m.epoch, now)
        return True

    def _correct(self, source: str, m: RaftMessage) -> None:
        """Answer a member of an earlier term with the later one."""
        if isinstance(m, RaftVote):
            mark("raft.stale.vote")
            self._send(source, RaftVoted(m.block, self.epoch, False, m.pre))
        elif isinstance(m, RaftAppend | RaftSnapshot | RaftTimeout):
            mark("raft.stale.leader")
            self._send(source, RaftAppended(m.block, self.epoch, end=-1))
        else:
            mark("raft.stale.answer")

    def _send(self, peer: str, message: Message) -> None:
        """Send a message with the own term, once the term is durable."""
        if self._is_saved and self._saving is None:
            self._host.send(peer, message)
        else:
            mark("raft.held_back")
            self._after.append((peer, message))

    def _become_follower(self, term: int, now: int) -> None:
        """Become a follower of a later term, without a leader."""
        invariant(term > self.epoch, "terms only rise", term=term, own=self.epoch)
        self._hard, self._is_saved = HardState(term, None), False
        self._appointed = False
        self._copy.new_term()
        self._resign()
        self._watch(now)

    def _step_down(self, now: int) -> None:
        """Step down within the term, keeping the vote (CCF #8094)."""
        self._resign()
        self._watch(now)

    def _resign(self) -> None:
        self.role = RaftRole.FOLLOWER
        self.leader = None
        if self._leading is not None:
            mark("raft.resigned")
            self._lost_reads += self._leading.reads.give_up()
            self._lost_reads += [token for token, _ in self._leading.read_ends]
            self._leading = None

    def _watch(self, now: int) -> None:
        """Arm the election timeout exactly while no leader is known to be alive."""
        is_led = self.leader is not None and self._host.is_alive(self.leader)
        if not self._is_voter or self._leading is not None or is_led or self._appointed:
            self._election_at = NEVER
        elif self._election_at == NEVER:
            mark("raft.timer")
            self._rearm(now)

    def _rearm(self, now: int) -> None:
        base = self._host.replication.election_ms
        self._election_at = now + self._host.rng.randrange(base, 2 * base)

    def _settle(self) -> None:
        """Update the attributes that others read."""
        copy = self._copy
        if self._leading is not None:
            copy.committed = self._leading.committed
            self.deadline = self._leading.deadline
        else:
            self.deadline = self._election_at
        # An entry that is not durable here, too, could be lost again in a crash.
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
        self.is_dirty = not self._is_saved or bool(self._after) or copy.owes_answer

    # --- elections ------------------------------------------------------------------------------

    def _ask_around(self, now: int) -> None:
        """Begin a pre-vote, which disturbs no leader (thesis 9.6)."""
        mark("raft.precandidate")
        self._resign()
        self.role = RaftRole.PRECANDIDATE
        self._rearm(now)
        self._ballot = Ballot(len(self._group.members))
        self._call_for_votes(self.epoch + 1, pre=True)
        self._cast(self._host.me, True, now)

    def _campaign(self, now: int, transfer: bool = False) -> None:
        mark("raft.candidate")
        self._resign()
        self.role = RaftRole.CANDIDATE
        self._hard, self._is_saved = HardState(self.epoch + 1, self._host.me), False
        self._appointed = False
        self._copy.new_term()
        self._rearm(now)
        # This member's own vote counts once it is durable.
        self._ballot = Ballot(len(self._group.members))
        self._call_for_votes(self.epoch, pre=False, transfer=transfer)

    def _call_for_votes(self, term: int, pre: bool, transfer: bool = False) -> None:
        end = self._log.end
        message = RaftVote(self._group.block, term, end, self._log.epoch_at(end), pre, transfer)
        for peer in self._group.others:
            if peer not in self._group.learners:
                self._send(peer, message)

    def _asked(self, source: str, m: RaftVote, now: int) -> None:
        """Answer a vote or pre-vote request."""
        if source in self._group.learners:
            mark("raft.vote.learner")
            return
        if m.pre:
            granted = self._would_vote(source, m, now)
            term = m.epoch if granted else self.epoch
            self._send(source, RaftVoted(m.block, term, granted, pre=True))
            return
        granted = self.vote in (None, source) and self.leader in (None, source)
        if not granted:
            mark("raft.vote.other")
        elif not self._is_up_to_date(m):
            mark("raft.vote.log_behind")
            granted = False
        else:
            mark("raft.vote.granted")
            if self.vote is None:
                self._hard, self._is_saved = HardState(self.epoch, source), False
            # This member may have been a pre-candidate for the next term.
            self.role = RaftRole.FOLLOWER
            if self.leader is None:
                self._rearm(now)
        self._send(source, RaftVoted(m.block, self.epoch, granted, pre=False))

    def _would_vote(self, source: str, m: RaftVote, now: int) -> bool:
        """Answer a pre-vote; the answer promises nothing."""
        if m.epoch > self.epoch and source == self.leader:
            mark("raft.leader_gave_up")
            self.leader = None
            self._watch(now)
        if self._leading is not None:
            mark("raft.prevote.at_leader")
            self._leading.probe(source, now)  # The candidate does not know the leader.
            return False
        if self._is_led(source):
            mark("raft.prevote.led")
            return False
        if m.epoch <= self.epoch or not self._is_up_to_date(m):
            mark("raft.prevote.refused")
            return False
        mark("raft.prevote.granted")
        return True

    def _is_up_to_date(self, m: RaftVote) -> bool:
        """Whether the candidate's log is at least as up to date as this one (Raft 5.4.1)."""
        end = self._log.end
        return (m.last_epoch, m.end) >= (self._log.epoch_at(end), end)

    def _voted(self, source: str, m: RaftVoted, now: int) -> None:
        if source in self._group.learners:
            mark("raft.vote.learner")
        elif m.pre:
            if self.role is RaftRole.PRECANDIDATE and m.epoch == self.epoch + m.granted:
                self._cast(source, m.granted, now)
        elif self.role is RaftRole.CANDIDATE:
            self._cast(source, m.granted, now)

    def _cast(self, member: str, granted: bool, now: int) -> None:
        self._ballot.cast(member, granted)
        if self._ballot.is_won:
            if self.role is RaftRole.PRECANDIDATE:
                self._campaign(now)
            elif self._is_saved and self._saving is None:
                self._lead(now)
        elif self._ballot.is_lost:
            mark("raft.election.lost")
            self.role = RaftRole.FOLLOWER  # and waits for its next timeout

    def _lead(self, now: int, is_first: bool = False) -> None:
        """Become the leader of this term."""
        mark("raft.elected")
        invariant(self.vote == self._host.me, "a leader has voted for itself", vote=self.vote)
        self._appointed = False
        self.role = RaftRole.LEADER
        self.leader = self._host.me
        self._leading = Leadership(
            self._group, self.epoch, self._copy.committed, self._copy.durable, opened=is_first
        )
        self._watch(now)
        if not is_first:
            # Entries of earlier terms are committed only with one of this term (Raft 5.4.2).
            self._log.begin(self.epoch)
        self._leading.feed_all(now)

    # --- what a leader says ---------------------------------------------------------------------

    def _follow(self, source: str, now: int) -> None:
        """Follow *source*, the leader of this term."""
        invariant(self._leading is None, "one leader in a term", term=self.epoch, other=source)
        self.role = RaftRole.FOLLOWER
        self._appointed = False
        if self.leader != source:
            mark("raft.found_leader")
            self.leader = source
        self._election_at = NEVER
        self._watch(now)

    def _take_over(self, source: str, now: int) -> None:
        """Begin an election at once: the leader transfers its leadership."""
        if not self._is_voter or self._leading is not None or source in self._group.learners:
            mark("raft.take_over.ignored")
            return
        mark("raft.take_over")
        self._campaign(now, transfer=True)
