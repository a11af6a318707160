"""Elections of one member: its leader, its candidacy, and its votes for others."""

from __future__ import annotations

from enum import Enum

from pymq.core.message import RaftVote, RaftVoted
from pymq.core.observe.coverage import invariant, mark
from pymq.core.types import NEVER
from pymq.replication.quorum import majority
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.persistent_state import PersistentState


class RaftRole(Enum):
    """The role of a replica of a Raft block."""

    FOLLOWER = "follower"
    # sends pre-vote requests: asks whether others would vote for this member (thesis 9.6)
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ElectionResult(Enum):
    """The result of a vote by a majority."""

    PREVOTE_WON = "prevote_won"  # the member may begin the real election
    WON = "won"  # the member leads the term


class Ballot:
    """The votes, or pre-votes, of one election."""

    def __init__(self, members: int) -> None:
        self._needed = majority(members)
        self._members = members
        self._votes: dict[str, bool] = {}

    def cast(self, member: str, granted: bool) -> None:
        """Count a member's vote; only the member's first vote counts."""
        self._votes.setdefault(member, granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority has granted its vote."""
        return sum(self._votes.values()) >= self._needed

    @property
    def is_lost(self) -> bool:
        """Whether a majority is no longer possible, because too many have refused."""
        against = len(self._votes) - sum(self._votes.values())
        return against > self._members - self._needed


class RaftElection:
    """The role of one member, the leader that it knows, and its election timeout.

    ==============  ====================  ========================================================
    role            becomes               when
    ==============  ====================  ========================================================
    FOLLOWER        LEADER                the member is the first leader and has saved its term
    all but LEADER  PRECANDIDATE          the election timeout has passed
    PRECANDIDATE    CANDIDATE, next term  a majority would vote for the member
    all but LEADER  CANDIDATE, next term  the leader transfers its leadership to the member
    CANDIDATE       LEADER                a majority, including itself, has voted for the member
    all but LEADER  FOLLOWER              too many refuse for a majority, the leader of the term
                                          sends a message, or the member votes for another one
    all             FOLLOWER, later term  another member has that term
    LEADER          FOLLOWER              no majority is alive, or its disk has failed
    ==============  ====================  ========================================================
    """

    def __init__(
        self,
        group: RaftGroup,
        state: PersistentState,
        leader: str | None,
        is_appointed: bool,
        now: int,
    ) -> None:
        self._group = group
        self._host = group.host
        self._log = group.log
        self._state = state
        self.is_voter = group.me in group.voters
        self.role = RaftRole.FOLLOWER
        self.leader = leader
        # The member is the block's first leader, and leads when its hard state is durable.
        self.is_appointed = self.is_voter and is_appointed
        self.timeout_at = NEVER
        self._ballot = Ballot(len(group.members))
        self.watch(now)

    # --- the leader of the term -----------------------------------------------------------------

    def is_led(self, candidate: str) -> bool:
        """Whether this member believes that a member other than *candidate* leads."""
        if self.role is RaftRole.LEADER:
            return True
        leader = self.leader
        return leader is not None and leader != candidate and self._host.is_alive(leader)

    def follow(self, source: str, now: int) -> None:
        """Follow *source*, the leader of this term."""
        invariant(
            self.role is not RaftRole.LEADER,
            "one leader in a term",
            term=self._state.hard.term,
            other=source,
        )
        self.role = RaftRole.FOLLOWER
        self.is_appointed = False
        if self.leader != source:
            mark("raft.found_leader")
            self.leader = source
        self.timeout_at = NEVER
        self.watch(now)

    def lead(self, now: int) -> None:
        """Lead this term."""
        self.is_appointed = False
        self.role = RaftRole.LEADER
        self.leader = self._group.me
        self.watch(now)

    def resign(self, now: int) -> None:
        """Become a follower that knows no leader, but keep the vote (CCF #8094)."""
        self.role = RaftRole.FOLLOWER
        self.leader = None
        self.watch(now)

    def leader_changed(self, now: int) -> None:
        """Note that the leader's broker seems dead, is back, or has restarted."""
        assert self.leader is not None
        if self._host.is_alive(self.leader) and self.timeout_at == NEVER:
            # This member has not noticed a failure of the broker, so the broker has restarted and
            # no longer leads.
            mark("raft.leader_restarted")
            self.leader = None
        self.watch(now)

    def watch(self, now: int) -> None:
        """Arm the election timeout if no leader is known to be alive, and disarm it otherwise."""
        is_led = self.leader is not None and self._host.is_alive(self.leader)
        if not self.is_voter or self.role is RaftRole.LEADER or is_led or self.is_appointed:
            self.timeout_at = NEVER
        elif self.timeout_at == NEVER:
            mark("raft.timer")
            self._rearm(now)

    def _rearm(self, now: int) -> None:
        base = self._host.replication.election_ms
        self.timeout_at = now + self._host.rng.randrange(base, 2 * base)

    # --- candidacy --------------------------------------------------------------------------------

    def begin_prevote(self, now: int) -> ElectionResult | None:
        """Begin a pre-vote, which does not disturb a leader (thesis 9.6)."""
        mark("raft.precandidate")
        self.leader = None
        self.role = RaftRole.PRECANDIDATE
        self._rearm(now)
        self._ballot = Ballot(len(self._group.members))
        self._call_for_votes(self._state.term + 1, pre=True)
        return self._cast(self._group.me, True)

    def takes_over(self, source: str) -> bool:
        """Whether to begin an election at once, because the leader transfers its leadership."""
        is_voter = self.is_voter and source in self._group.voters
        if not is_voter or self.role is RaftRole.LEADER:
            mark("raft.take_over.ignored")
            return False
        mark("raft.take_over")
        return True

    def campaign(self, now: int, transfer: bool) -> None:
        """Begin an election; *transfer* is set if the leader has asked for the election."""
        mark("raft.candidate")
        self.leader = None
        self.role = RaftRole.CANDIDATE
        self._state.change(self._state.term + 1, self._group.me)
        self.is_appointed = False
        self._rearm(now)
        # This member's own vote counts when it is durable.
        self._ballot = Ballot(len(self._group.members))
        self._call_for_votes(self._state.term, pre=False, transfer=transfer)

    def _call_for_votes(self, term: int, pre: bool, transfer: bool = False) -> None:
        end = self._log.end
        message = RaftVote(self._group.block, term, end, self._log.epoch_at(end), pre, transfer)
        for peer in self._group.others:
            if peer in self._group.voters:
                self._state.send(peer, message)

    def voted(self, source: str, m: RaftVoted) -> ElectionResult | None:
        """Count the vote of another member."""
        if source not in self._group.voters:
            mark("raft.vote.learner")
        elif m.pre:
            if self.role is RaftRole.PRECANDIDATE and m.epoch == self._state.term + m.granted:
                return self._cast(source, m.granted)
        elif self.role is RaftRole.CANDIDATE:
            return self._cast(source, m.granted)
        return None

    def vote_saved(self) -> ElectionResult | None:
        """Count the candidate's vote for itself, which is now durable."""
        return self._cast(self._group.me, True) if self.role is RaftRole.CANDIDATE else None

    def _cast(self, member: str, granted: bool) -> ElectionResult | None:
        self._ballot.cast(member, granted)
        if self._ballot.is_won:
            if self.role is RaftRole.PRECANDIDATE:
                return ElectionResult.PREVOTE_WON
            if self._state.is_durable:
                return ElectionResult.WON
        elif self._ballot.is_lost:
            mark("raft.election.lost")
            self.role = RaftRole.FOLLOWER  # the member waits for its next timeout
        return None

    # --- voting ---------------------------------------------------------------------------------

    def asked(self, source: str, m: RaftVote, now: int) -> None:
        """Answer a vote or pre-vote request."""
        if source not in self._group.voters:
            mark("raft.vote.learner")
            return
        state = self._state
        if m.pre:
            granted = self._would_vote(source, m, now)
            term = m.epoch if granted else state.term
            state.send(source, RaftVoted(m.block, term, granted, pre=True))
            return
        granted = state.vote in (None, source) and self.leader in (None, source)
        if not granted:
            mark("raft.vote.other")
        elif not self._is_up_to_date(m):
            mark("raft.vote.log_behind")
            granted = False
        else:
            mark("raft.vote.granted")
            if state.vote is None:
                state.change(state.term, source)
            # This member may have been a pre-candidate for the next term.
            self.role = RaftRole.FOLLOWER
            if self.leader is None:
                self._rearm(now)
        state.send(source, RaftVoted(m.block, state.term, granted, pre=False))

    def _would_vote(self, source: str, m: RaftVote, now: int) -> bool:
        """Answer a pre-vote request; a granted pre-vote is not a promise."""
        if m.epoch > self._state.term and source == self.leader:
            mark("raft.leader_gave_up")
            self.leader = None
            self.watch(now)
        if self.role is RaftRole.LEADER:
            mark("raft.prevote.at_leader")
            return False
        if self.is_led(source):
            mark("raft.prevote.led")
            return False
        if m.epoch <= self._state.term or not self._is_up_to_date(m):
            mark("raft.prevote.refused")
            return False
        mark("raft.prevote.granted")
        return True

    def _is_up_to_date(self, m: RaftVote) -> bool:
        """Whether the candidate's log is at least as up to date as this one (Raft 5.4.1)."""
        end = self._log.end
        return (m.last_epoch, m.end) >= (self._log.epoch_at(end), end)
