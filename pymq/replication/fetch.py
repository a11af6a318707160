"""Fetch replication, for ack modes 1 and 0: a leader, and followers that fetch from the leader.

A block has one leader and one epoch, so it needs no election and no truncation: if the leader
fails, the controller seals the block, and another broker leads the next block. A follower fetches
from the end of its own log; so the leader learns this end. A record is committed when all in-sync
replicas have it.

The zkserver decides the in-sync set. The leader requests a change with AlterIsr. Until the answer
arrives, the leader waits for the replicas of both sets (Kafka's maximal ISR, KIP-497). This holds
even after the leader has given up the request, because the zkserver may still grant it. A request
is for one version of the partition: when the version changes, the request is either granted or
void. A leader that restarts may have lost unsynced records, so it does not lead that block again.
"""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.message import AlterIsr, ReplicaFetch, ReplicaFetched, Replication
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready, SaveState
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import CorruptBatch, NotLeader, StaleEpoch

LOOKS = 6  # checks for lagging followers within ``lag_max_ms``
MISSES = 3  # repeated fetches of the same offset after which the leader considers a follower stuck
HAS_LED = b"led"  # the state that a leader saves before it accepts records


@define
class Follower:
    """The leader's state of a follower."""

    end: int  # the follower has all records before it, as durable as the ack mode requires
    # the time when the follower last had all records, while the leader was running
    caught_up_at: int
    incarnation: int = 0  # incarnation of the follower that reported *end*; 0: none did
    fetch: ReplicaFetch | None = None  # the fetch that waits for new records ...
    until: int = NEVER  # ... and the deadline of that fetch
    served_from: int = -1  # the offset of the last records that were sent to the follower; -1: none
    served_at: int = 0
    misses: int = 0  # fetches in a row for that offset

    @property
    def is_stuck(self) -> bool:
        """Whether the follower seems unable to store records, as if its disk were full."""
        return self.misses >= MISSES

    def is_past(self, fetch: ReplicaFetch) -> bool:
        """Whether the follower has restarted after it sent *fetch*."""
        return 0 < fetch.incarnation < self.incarnation

    def asks(self, fetch: ReplicaFetch, now: int, retry_ms: int) -> None:
        """Note a waiting fetch, which shows that the follower has all records before its offset."""
        if fetch.offset != self.served_from:
            self.misses = 0
        elif now - self.served_at >= retry_ms:  # otherwise the fetch may be a duplicate
            self.misses += 1
        self.end, self.served_from = fetch.offset, -1
        self.incarnation = fetch.incarnation
        self.fetch, self.until = fetch, now + fetch.max_wait_ms

    def serve(self, now: int) -> None:
        """Note that the records at the offset of the follower's fetch are sent."""
        self.served_from, self.served_at = self.end, now


class FetchReplicator:
    """One replica of a block with fetch replication, as leader or as follower."""

    def __init__(self, replica: Replica, now: int) -> None:
        block = replica.state.blocks[-1]
        host = replica.host
        self.high_watermark = replica.log.start
        self.epoch = block.epoch
        self.leader: str | None = block.leader
        self.is_dirty = False
        self.deadline = NEVER
        self._replica = replica
        self._log = replica.log
        self._host = host
        self._name = replica.state.topic, replica.state.partition
        self._number = block.number
        self._committed = block.in_sync
        self._version = replica.state.version
        self._wanted: tuple[str, ...] | None = None  # the in-sync set that the leader has requested
        # members of all in-sync sets that may still be granted
        self._may_join: tuple[str, ...] = ()
        self._asked_at = NEVER
        self._join_at = 0  # after a refused request, no request is sent before this time
        self._leads = False
        self._followers: dict[str, Follower] = {}
        self._attention = PausableClock(host.replication.lag_max_ms // LOOKS)
        self._request = 0
        self._retry_at = NEVER  # when a follower retries its fetch
        if block.leader != host.me:
            self._retry_at = now
        elif replica.is_new:
            self._followers = {
                name: Follower(replica.log.start, self._attention.look(now))
                for name in block.replicas
                if name != host.me
            }
            # The replica leads when this state is durable. The state shows, after a restart, that
            # the replica must not lead the block again.
            self.is_dirty = True
        else:
            mark("fetch.restarted_leader")
            self.leader = None
        self._rearm()

    @property
    def is_leader(self) -> bool:
        """Whether this replica is the leader, which alone may append."""
        return self._leads

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The in-sync set, as the zkserver has committed it."""
        return self._committed if self._leads else ()

    def holders(self, end: int) -> tuple[str, ...]:
        """The replicas that have fetched everything before *end*."""
        found = [self._host.me] if self._log.stable_end >= end else []
        return (*found, *(name for name, f in self._followers.items() if f.end >= end))

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt a new state of the partition, perhaps with another in-sync set."""
        block = state.blocks[-1]
        is_new = state.version > self._version
        self._committed, self._version = block.in_sync, state.version
        if block.epoch != self.epoch:
            # This leader has restarted, so it no longer leads the block, and the zkserver rolls the
            # block.
            mark("fetch.leaderless")
            self.epoch, self.leader, self._leads = block.epoch, None, False
            self.is_dirty, self._retry_at = False, NEVER
        if self._wanted == self._committed:
            self._wanted, self._asked_at = None, NEVER
        elif self._wanted is not None and is_new:
            # The request was for an earlier version and can no longer be granted.
            mark("fetch.isr_refused")
            self._wanted, self._asked_at = None, NEVER
            self._join_at = now + 5 * self._host.replication.retry_ms
        if is_new:
            self._may_join = ()
        if self._leads:
            self._advance()
            self._judge(now)
        self._rearm()

    def step(self, source: str, message: Replication, now: int) -> None:
        """Handle a follower's fetch, or the answer to one."""
        if isinstance(message, ReplicaFetch):
            self._fetch(source, message, now)
        elif isinstance(message, ReplicaFetched):
            self._fetched(source, message, now)
        self._rearm()

    def appended(self, now: int) -> None:
        """Answer the fetches that wait for new records."""
        for name, follower in self._followers.items():
            if follower.fetch is not None:
                self._serve(name, follower, now)
        self._rearm()

    def tick(self, now: int) -> None:
        """End waits, retry fetches, and find lagging followers."""
        for name, follower in self._followers.items():
            if follower.until <= now and follower.fetch is not None:
                self._answer(name, follower, self._empty(follower.fetch))
        if self._leads:
            self._judge(now)
        if self._retry_at <= now:
            self._ask(now)
        self._rearm()

    def flush(self, ready: Ready, now: int) -> None:
        """Save that this replica has led."""
        if self.is_dirty:
            self.is_dirty = False
            ready.write.append(SaveState(self._replica.block, HAS_LED))

    def stable(self, end: int, now: int) -> None:
        """Note that this replica's log is on its disk up to *end*."""
        if self.leader == self._host.me:
            if not self._leads and not self.is_dirty:
                mark("fetch.leads")
                self._leads = True
            self._caught_up(now)
            self._advance()
        elif self._request and self._retry_at == NEVER:
            # The fetched records are stable; the offset of the next fetch shows this to the leader.
            self._ask(now)
        self._rearm()

    def peer_changed(self, peer: str, now: int) -> None:
        """Send a fetch to a leader that is back."""
        if peer == self.leader and self._host.is_alive(peer):
            self._retry_at = min(self._retry_at, now) if self._retry_at != NEVER else NEVER
        self._rearm()

    def transfer(self, peer: str, now: int) -> None:
        """Do nothing: the zkserver rolls the block, and the next block gets another leader."""

    def relinquish(self, now: int) -> None:
        """Do nothing: the zkserver rolls the block, and the next block gets another leader."""

    # --- the leader -----------------------------------------------------------------------------

    def _fetch(self, source: str, m: ReplicaFetch, now: int) -> None:
        follower = self._followers.get(source)
        if not self._leads or follower is None:
            error = NotLeader(f"{self._host.me} does not lead {self._replica.block}")
            self._host.send(source, self._refusal(m, error))
        elif m.leader_epoch != self.epoch:
            mark("fetch.stale_epoch")
            stale = StaleEpoch(f"{self._replica.block} is at epoch {self.epoch}")
            self._host.send(source, self._refusal(m, stale))
        elif follower.is_past(m):
            mark(
                "fetch.past"
                # The follower has restarted and does not wait for the answer; it may have lost
                # records.
            )
        elif m.offset > self._log.end or self._log.epoch_at(m.offset) != m.last_epoch:
            mark("fetch.diverging")
            diverging = self._log.end_of(m.last_epoch)
            answer = ReplicaFetched(m.id, m.block, m.offset, self.epoch, self.high_watermark)
            answer.diverging = diverging  # type: ignore[misc] # its only owner, before it is sent
            self._host.send(source, answer)
        else:
            follower.asks(m, now, self._host.replication.retry_ms)
            if follower.end >= self._log.end:
                follower.caught_up_at = self._attention.look(now)
            self._advance()
            self._judge(now, source)
            self._serve(source, follower, now)

    def _refusal(self, m: ReplicaFetch, error: NotLeader | StaleEpoch) -> ReplicaFetched:
        return ReplicaFetched(m.id, m.block, m.offset, self.epoch, 0, error=error)

    def _empty(self, m: ReplicaFetch) -> ReplicaFetched:
        return ReplicaFetched(m.id, m.block, m.offset, self.epoch, self.high_watermark)

    def _answer(self, name: str, follower: Follower, answer: ReplicaFetched) -> None:
        follower.fetch, follower.until = None, NEVER
        self._host.send(name, answer)

    def _serve(self, name: str, follower: Follower, now: int) -> None:
        m, log = follower.fetch, self._log
        assert m is not None
        if m.offset < log.end:
            data = log.recent(m.offset, m.max_bytes)
            answer = self._empty(m)
            if data is not None:
                follower.serve(now)
                answer.data = data  # type: ignore[misc] # its only owner, before it is sent
                self._answer(name, follower, answer)
            elif m.offset < log.stable_end:
                mark("fetch.from_disk")
                follower.serve(now)
                follower.fetch, follower.until = None, NEVER
                log.read(name, answer, m.offset, m.max_bytes)
        elif m.max_wait_ms == 0:
            self._answer(name, follower, self._empty(m))

    def _caught_up(self, now: int) -> None:
        for follower in self._followers.values():
            if follower.end >= self._log.end:
                follower.caught_up_at = self._attention.look(now)

    def _advance(self) -> None:
        """Raise the high watermark to the lowest log end of all replicas that may become leader."""
        end = self._log.stable_end
        for name, follower in self._followers.items():
            if name in self._committed or name in self._may_join:
                end = min(end, follower.end)
        self.high_watermark = max(self.high_watermark, end)

    def _judge(self, now: int, heard: str | None = None) -> None:
        """Request another in-sync set if a follower lags, or if *heard* has caught up."""
        limit = self._attention.look(now) - self._host.replication.lag_max_ms
        keeps = [self._host.me]
        for name, follower in self._followers.items():
            if name in self._committed:
                is_close = follower.end >= self._log.end or follower.caught_up_at > limit
                if is_close and not follower.is_stuck:
                    keeps.append(name)
                else:
                    mark("fetch.isr_shrink")
            elif (follower.end >= self.high_watermark and not follower.is_stuck) and (
                (name == heard and now >= self._join_at) or name in (self._wanted or ())
            ):
                mark("fetch.isr_expand")
                keeps.append(name)
        order = self._replica.state.blocks[-1].replicas
        wanted = tuple(name for name in order if name in keeps)
        if set(wanted) == set(self._committed):
            if self._wanted is None:
                return
            wanted = self._committed  # The zkserver may still grant the earlier request.
        if wanted != self._wanted or now >= self._asked_at:
            self._wanted = wanted
            self._may_join = tuple(dict.fromkeys((*self._may_join, *wanted)))
            self._asked_at = now + 5 * self._host.replication.retry_ms
            self._host.tell_controller(
                AlterIsr(
                    *self._name,
                    self._number,
                    self.epoch,
                    self._host.me,
                    wanted,
                    self._version,
                    self._host.incarnation,
                    self._replica.block.topic_id,
                    tuple(map(self._incarnation, wanted)),
                )
            )

    def _incarnation(self, name: str) -> int:
        """Return the incarnation to which the leader's state of a replica belongs."""
        follower = self._followers.get(name)
        return self._host.incarnation if follower is None else follower.incarnation

    # --- the follower ---------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        if self.leader is None or self.leader == self._host.me:
            self._retry_at = NEVER
            return
        config, log = self._host.replication, self._log
        self._request += 1
        end = log.stable_end
        fetch = ReplicaFetch(
            self._request,
            self._replica.block,
            end,
            log.epoch_at(end),
            self.epoch,
            config.append_bytes,
            config.fetch_wait_ms,
            self._host.incarnation,
        )
        self._host.send(self.leader, fetch)
        self._retry_at = now + config.fetch_wait_ms + 2 * config.retry_ms

    def _fetched(self, source: str, m: ReplicaFetched, now: int) -> None:
        log = self._log
        if source != self.leader or m.id != self._request or m.leader_epoch != self.epoch:
            return  # This answer belongs to an earlier fetch.
        if m.error is not None:
            self._retry_at = now + self._host.replication.retry_ms
            return
        if m.diverging is not None:
            mark("fetch.truncate")
            epoch, end = m.diverging
            # Truncate the records of an epoch that the leader does not have (KIP-279).
            log.truncate(max(min(end, log.end_of(epoch)[1]), self.high_watermark))
            self._retry_at = now + self._host.replication.retry_ms
            return
        self.high_watermark = max(self.high_watermark, min(m.high_watermark, log.stable_end))
        if m.data and m.offset == log.end:
            try:
                log.extend(m.data)
            except CorruptBatch:
                self._retry_at = now + self._host.replication.retry_ms
            else:
                self._retry_at = NEVER  # the next fetch is sent when the records are stable
        else:
            self._ask(now)

    # --- time -----------------------------------------------------------------------------------

    def _rearm(self) -> None:
        due = self._retry_at
        if self._leads:
            due = min(due, self._asked_at)
            lag = self._host.replication.lag_max_ms
            for name, follower in self._followers.items():
                due = min(due, follower.until)
                # Only members of the granted set can lag, because those members have all records
                # that consumers see.
                counts = name in self._committed and name in (self._wanted or self._committed)
                if counts and follower.end < self._log.end:
                    due = min(due, self._attention.when(follower.caught_up_at + lag))
        self.deadline = due
