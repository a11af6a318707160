"""The loop: the only place that acts on stores, coordinators and transports.

All machines of a process share one loop: broker, zkserver, producers, consumers. A turn

1. takes in the messages that have come,
2. lets the machines decide,
3. merges their requested work (:class:`~pymq.core.ready.Ready`) and carries it out, so that all
   producers of a turn share one write and one sync,
4. reports to the machines that the work is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import attrs

from pymq.coord.base import Coordinator
from pymq.core.message import Message
from pymq.core.metadata.coordination import Commit, CoordEvent
from pymq.core.ready import (
    FindTime,
    Read,
    Ready,
    Recover,
    StoreEvent,
    TimeFound,
    Write,
)
from pymq.core.types import NEVER, BlockId
from pymq.errors import PymqError
from pymq.runtime.background_jobs import BackgroundJobs
from pymq.runtime.disks import LoopDisks
from pymq.runtime.timers import Timers
from pymq.runtime.wall_clock import WallClock
from pymq.store.base import BlockStore

# A turn starts no further recovery of a block after this time. A starting broker recovers all of
# its open blocks; between two of them it handles messages and sends pings.
RECOVER_MS = 10
TURNS_MAX = 200  # turns in one call of ``run``; a request takes about three
HELD_MAX = 4  # turns for which a write waits for other brokers' writes while messages come in


class Machine(Protocol):
    """A machine that the loop drives."""

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do, in the loop's milliseconds."""
        ...

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle one message."""
        ...

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        ...

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, or None."""
        ...

    def advance(self, ready: Ready, now: int) -> None:
        """Note that the work was carried out."""
        ...


class StoreUser(Machine, Protocol):
    """A machine that keeps blocks."""

    def stored(self, event: StoreEvent, now: int) -> None:
        """Handle an event of the store."""
        ...

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Note that records of a block could not be read; returns the error to answer."""
        ...


class CoordinatorUser(Machine, Protocol):
    """A machine that keeps metadata in a coordinator backend."""

    def decided(self, event: CoordEvent, now: int) -> None:
        """Handle an event of the coordinator backend."""
        ...

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """Note that a commit could not be carried out; nothing was changed."""
        ...


class RequestMeter(Protocol):
    """Times the requests of a machine."""

    def arrived(self, source: str, message: Message) -> None:
        """Note a message that the machine is about to handle."""
        ...

    def left(self, envelopes: Sequence[tuple[str, Message]]) -> None:
        """Note the messages that the machine sends."""
        ...


Far = Callable[[str, str, Message], None]  # (receiver, sender, message)
Work = tuple[str, Machine, Ready]  # (name of the machine, machine, its requested work)


class Loop:
    """Drives the machines of one process; only one thread at a time may call it.

    Messages for machines of other processes go to *far*; without it they are dropped. *flush* is
    called when these messages have to leave: before a write, after a write that others wait for,
    and after each turn.

    There may be several brokers, each with its own store. In that case the brokers' writes wait
    until no machine has other work, so that all disks, those of leaders and followers, write at the
    same time. A broker whose write waits gets no messages until the write is done.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        far: Far | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self._far = far
        self._flush = flush
        self.machines: dict[str, Machine] = {}
        self.inbox: deque[tuple[str, str, Message]] = deque()  # (receiver, sender, message)
        # recoveries left for the next turn
        self._asks: deque[tuple[str, Recover]] = deque()
        self._dirty: dict[str, None] = {}
        self._pokes: deque[str] = deque()  # names of machines to drive; any thread may append
        self._ticked = -1  # the time when deadlines were last checked
        self._timers = Timers()
        self._meters: dict[str, RequestMeter] = {}
        self._users: dict[str, StoreUser] = {}  # machines that have a store
        # the broker and its store, if there is only one
        self._only: tuple[StoreUser, BlockStore] | None = None
        self.disks = LoopDisks()
        self.jobs = BackgroundJobs(self.disks)
        self.wall_clock = WallClock()
        self._events = self.jobs.done
        self._held: dict[str, Work] = {}  # work whose writes wait for those of other brokers, ...
        self._held_for = 0  # ... the number of turns for which these writes have waited, ...
        # ... and the messages that arrived for the broker's machines during these turns
        self._held_back: list[tuple[str, str, Message]] = []
        self._coordinator: tuple[str, CoordinatorUser, Coordinator] | None = None

    # --- assembling -----------------------------------------------------------------------------

    def add(self, name: str, machine: Machine, *, tells: bool = False) -> None:
        r"""Drive *machine*; messages to *name* are for it.

        If the machine *tells*, the loop asks for its deadline only after driving it, or after
        :meth:`rearm`\ ; the deadline must not change otherwise.
        """
        self.machines[name] = machine
        self._timers.add(name, machine, tells=tells)
        self._dirty[name] = None

    def remove(self, name: str) -> None:
        """Remove a machine; later messages for it are dropped."""
        self.machines.pop(name, None)
        self._timers.remove(name)
        self._dirty.pop(name, None)
        self._meters.pop(name, None)

    def add_broker(
        self,
        name: str,
        machine: StoreUser,
        store: BlockStore,
        meter: RequestMeter | None = None,
    ) -> None:
        """Drive a machine that keeps its blocks in *store*; *meter* times its requests."""
        self._users[name] = machine
        self._only = (machine, store) if len(self._users) == 1 else None
        self.disks.add(name, store)
        self.add(name, machine)
        if meter is not None:
            self._meters[name] = meter

    def add_zkserver(
        self,
        name: str,
        machine: CoordinatorUser,
        backend: Coordinator,
        meter: RequestMeter | None = None,
    ) -> None:
        """Drive a machine that keeps its metadata in *backend*; *meter* times its requests."""
        self._coordinator = (name, machine, backend)
        self.add(name, machine)
        if meter is not None:
            self._meters[name] = meter

    # --- turning --------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """Drive a machine in the next turn; called by the thread that runs the loop."""
        self._dirty[name] = None

    def poke(self, name: str) -> None:
        """Drive a machine in the next turn; any thread may call this."""
        self._pokes.append(name)

    def rearm(self, name: str) -> None:
        """Note that a machine's deadline may have changed; any thread may call this."""
        self._timers.rearm(name)

    def take(self, arrivals: Iterable[tuple[str, str, Message]]) -> None:
        """Add messages from other processes: (receiver, sender, message)."""
        self.inbox.extend(arrivals)

    @property
    def has_work(self) -> bool:
        """Whether a turn would have work."""
        at_hand = self.inbox or self._dirty or self._pokes or self._events
        return bool(at_hand or self._held or self._asks)

    @property
    def deadline(self) -> int:
        """The earliest deadline of a machine."""
        return self._timers.first

    def run(
        self,
        is_enough: Callable[[], bool] | None = None,
        *,
        queueing: Collection[object] = (),
        within_ms: int = NEVER,
    ) -> None:
        """Turn until no work is left or *is_enough* returns True, within limits.

        Other threads may add work as fast as the loop does it. So the loop returns after a number
        of turns, after *within_ms* milliseconds, or when a thread is in *queueing*.
        """
        began = -1
        for _ in range(TURNS_MAX):
            has_more = self.turn()
            if not has_more or queueing or (is_enough is not None and is_enough()):
                return
            if began < 0:
                began = self._ticked
            elif self._ticked - began >= within_ms:
                return

    def turn(self) -> bool:
        """Handle all messages and events, let the machines decide, then carry out their work.

        Returns whether another turn would have work, as :attr:`has_work` does.
        """
        now, machines, meters = self.clock(), self.machines, self._meters
        inbox, held, timers = self.inbox, self._held, self._timers
        if now != self.wall_clock.told:
            self.wall_clock.tell(now)
        if inbox:
            self.inbox = deque()
            for peer, source, message in inbox:
                machine = machines.get(peer)
                if peer in held:
                    self._held_back.append((peer, source, message))
                elif machine is not None:
                    if peer in meters:
                        meters[peer].arrived(source, message)
                    machine.step(source, message, now)
                    self._dirty[peer] = None
        while self._pokes:
            self._dirty[self._pokes.popleft()] = None
        if self._events:
            self._take_events(now)
        if self._coordinator is not None and self._coordinator[2].arrivals:
            self._take_decisions(now)
        if self._asks:
            self._recover_on(now)
        if now != self._ticked:
            # Deadlines are in whole milliseconds, so one check per millisecond is enough.
            self._ticked = now
            if timers.telling:
                timers.driven(self._dirty)
            for name in timers.due(now):
                if machines[name].deadline <= now and name not in held:
                    machines[name].tick(now)
                    self._dirty[name] = None
        dirty = self._dirty
        if not dirty and not self._held:
            return bool(self.inbox or self._pokes or self._events or self._asks)
        self._dirty = {}  # a machine that is touched from now on is driven in the next turn
        for name in held:
            dirty.pop(name, None)  # The machine is driven again after its write.
        work: list[Work] = []
        for name in dirty:
            found = machines.get(name)
            ready = found.ready(now) if found is not None else None
            if found is not None and ready is not None:
                work.append((name, found, ready))
        if work:
            self._act(work, now)
        if timers.telling:
            timers.driven(dirty)
        if self._held:
            self._held_for += 1
            if not (self.inbox or self._dirty) or self._held_for >= HELD_MAX:
                self._write_held(now)
        at_hand = self.inbox or self._dirty or self._pokes or self._events
        return bool(at_hand or self._held or self._asks)

    def _act(self, work: list[Work], now: int) -> None:
        """Carry out the work of several machines, with one write for all of them."""
        writes: list[Write] = []
        has_reads = False
        for name, _, ready in work:
            if ready.send:
                self._post(name, ready.send)
            if ready.read:
                has_reads = True
            writes += ready.write
        if writes and has_reads:
            for name, _, ready in work:
                if ready.read:
                    self._post(name, self.disks.read_first(name, ready, writes))
        if writes and self._flush is not None:
            self._flush()  # followers write at the same time as this node's disk
        if writes and len(self._users) > 1:
            self._held |= {each[0]: each for each in work if each[2].write}
            work = [each for each in work if not each[2].write]
            writes = []
        failed = self._write(writes, now) if writes else False
        self._finish_all(work, failed, now)

    def _finish_all(self, work: list[Work], failed: bool, now: int) -> None:
        """Finish the work of several machines after its write; *failed* if a part of it failed."""
        for name, machine, ready in work:
            self._finish(name, machine, ready, failed, now)
        for name, machine, _ in work:
            # The next work of these machines is often only answers, which do not need their own
            # turn. Input from other threads waits for the next turn.
            more = machine.ready(now)
            if more is None:
                continue
            if more.send:
                self._post(name, more.send)
                if more.write and self._flush is not None:
                    self._flush()  # These answers need not wait for the next write.
            if more.write and len(self._users) > 1:
                self._held[name] = name, machine, more
                continue
            failed = self._write(more.write, now) if more.write else False
            self._finish(name, machine, more, failed, now)
            self._dirty[name] = None
        if self._flush is not None:
            self._flush()

    def _finish(self, name: str, machine: Machine, ready: Ready, failed: bool, now: int) -> None:
        if ready.after and not failed:
            self._post(name, ready.after)
            if self._flush is not None:
                # A leader waits for this answer, and no node waits for the machine's next work.
                self._flush()
        for read in ready.read:
            self._read(name, read, now)
        for ask in ready.ask:
            if isinstance(ask, Recover) and (self._asks or self.clock() - now >= RECOVER_MS):
                self._asks.append((name, ask))
            else:
                self._ask(name, ask, now)
        if ready.jobs:
            self.jobs.add(name, ready.jobs)
        if ready.meta:
            self._consult(ready, now)
        machine.advance(ready, now)

    def _post(self, name: str, envelopes: list[tuple[str, Message]]) -> None:
        if name in self._meters:
            self._meters[name].left(envelopes)
        if self._far is None:
            for peer, message in envelopes:
                self.inbox.append((peer, name, message))
            return
        for peer, message in envelopes:
            if peer in self.machines:
                self.inbox.append((peer, name, message))
            else:
                self._far(peer, name, message)

    # --- the store ------------------------------------------------------------------------------

    def _write(self, writes: list[Write], now: int) -> bool:
        """Write everything of the turn; returns whether any write failed."""
        if self._only is None:
            return False
        machine, store = self._only
        failures = store.write(writes)
        for failure in failures:
            machine.stored(failure, now)
        return bool(failures)

    def _write_held(self, now: int) -> None:
        """Carry out the held writes on all disks in parallel.

        A failure affects its broker alone.
        """
        held, self._held, self._held_for = list(self._held.values()), {}, 0
        self.inbox.extendleft(reversed(self._held_back))
        self._held_back = []
        found = self.disks.write([(name, ready.write) for name, _, ready in held])
        for each, failures in zip(held, found, strict=True):
            name = each[0]
            for failure in failures:
                self._users[name].stored(failure, now)
            self._finish_all([each], bool(failures), now)
            self._dirty[name] = None

    def _read(self, name: str, read: Read, now: int) -> None:
        try:
            answer: Message = self.disks.filled(name, read)
        except PymqError as error:
            if not (read.verify and "found_crc" in error.details):
                # Only the reader gets the error of a damaged body: perhaps the producer sent it
                # damaged, and then all replicas have the same bytes.
                error = self._users[name].read_failed(read.block, error, now)
                self._dirty[name] = None
            answer = attrs.evolve(read.answer, error=error)
        # A group coordinator reads through its own broker.
        peer = name if read.peer.startswith("#") else read.peer
        self._post(name, [(peer, answer)])

    def _ask(self, name: str, ask: Recover | FindTime, now: int) -> None:
        machine, store = self._users[name], self.disks.store(name)
        if isinstance(ask, Recover):
            event: StoreEvent = store.recover(ask.block, ask.start, ask.is_open)
        else:
            try:
                offset = store.find_time(ask.block, ask.end, ask.timestamp_ms)
                event = TimeFound(ask.token, offset)
            except PymqError as error:
                event = TimeFound(ask.token, None, error)
        machine.stored(event, now)
        self._dirty[name] = None

    def _recover_on(self, now: int) -> None:
        """Recover at least one of the blocks that earlier turns have left over."""
        for _ in range(len(self._asks)):
            name, ask = self._asks.popleft()
            if name in self._held:
                self._asks.append((name, ask))
            elif name in self._users:
                self._ask(name, ask, now)
                if self.clock() - now >= RECOVER_MS:
                    return

    def _take_events(self, now: int) -> None:
        for _ in range(len(self._events)):
            name, event = self._events.popleft()
            if name in self._held:
                self._events.append((name, event))
                continue
            self._users[name].stored(event, now)
            self._dirty[name] = None

    # --- the coordinator backend ------------------------------------------------------------------

    def _take_decisions(self, now: int) -> None:
        assert self._coordinator is not None
        name, zkserver, backend = self._coordinator
        for decision in backend.poll():
            zkserver.decided(decision, now)
            self._dirty[name] = None

    def _consult(self, ready: Ready, now: int) -> None:
        assert self._coordinator is not None
        name, machine, backend = self._coordinator
        for request in ready.meta:
            try:
                backend.submit(request)
            except PymqError as error:
                if not isinstance(request, Commit):
                    raise
                machine.commit_failed(request.tag, error, now)
        self._dirty[name] = None
