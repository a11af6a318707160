"""The loop: the only place that acts on stores, coordinators and transports.

All machines of a process share one loop: broker, zkserver, producers, consumers. A turn

1. takes in the messages that have come,
2. lets the machines decide,
3. merges what they want (:class:`~pymq.core.ready.Ready`) and carries it out, so that all producers
   of a turn share one write and one sync,
4. tells the machines that it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs

from pymq.coord.base import Coordinator
from pymq.core.message import Message
from pymq.core.metadata.coordination import Commit, CoordEvent
from pymq.core.ready import (
    Compact,
    Compacted,
    FindTime,
    Read,
    Ready,
    Recover,
    StoreEvent,
    TimeFound,
    Write,
)
from pymq.core.types import NEVER, BlockId
from pymq.errors import PymqError, StoreError
from pymq.runtime.disks import LoopDisks
from pymq.runtime.timers import Timers
from pymq.store.base import BlockStore

READ_BYTES_MAX = 32 << 20  # in one answer, whatever somebody asks for
# Of a turn, after which it recovers no further block. A broker that starts has to recover all of
# its open blocks; between two of them it takes in messages and sends pings.
RECOVER_MS = 10
TURNS_MAX = 200  # in one call of ``run``; a request takes about three
HELD_MAX = 4  # turns that a write waits for those of other brokers while messages come in


class Machine(Protocol):
    """A machine that the loop drives."""

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do, in the loop's milliseconds."""
        ...

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        ...

    def tick(self, now: int) -> None:
        """Do what is due."""
        ...

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, or None."""
        ...

    def advance(self, ready: Ready, now: int) -> None:
        """Take in that the work was carried out."""
        ...


class StoreUser(Machine, Protocol):
    """A machine that keeps blocks."""

    def stored(self, event: StoreEvent, now: int) -> None:
        """Take in an event of the store."""
        ...

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Take in that records of a block could not be read; returns the error to answer."""
        ...


class CoordinatorUser(Machine, Protocol):
    """A machine that keeps metadata in a coordinator."""

    def decided(self, event: CoordEvent, now: int) -> None:
        """Take in an event of the coordinator."""
        ...

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """Take in that a commit could not be carried out; nothing was changed."""
        ...


class WallClockUser(Protocol):
    """A machine that needs the wall clock."""

    def set_wall_offset(self, offset_ms: int) -> None:
        """Take in what the wall clock is ahead of the loop's clock now."""
        ...


Far = Callable[[str, str, Message], None]  # (for whom, from whom, what)
Work = tuple[str, Machine, Ready]  # (whose, of what, which)


class Loop:
    """Drives the machines of one process; one thread at a time may call it.

    Messages for machines of other processes go to *far*; without it they are dropped. *flush* is
    called when these messages have to leave: before a write, after a write that others wait for,
    and after each turn.

    There may be several brokers, each with its own store. Then their writes wait until no machine
    has other work, and all disks write at once: a leader's while its followers' do. A broker whose
    write waits gets no messages until it is done, because to a machine a write takes no time.
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
        self.jobs: deque[tuple[str, Compact]] = deque()  # long work, for another thread
        self._inbox: deque[tuple[str, str, Message]] = deque()  # (for whom, from whom, what)
        self._events: deque[tuple[str, StoreEvent]] = deque()  # of jobs, from any thread
        # recoveries that are left for the next turn
        self._asks: deque[tuple[str, Recover]] = deque()
        self._dirty: dict[str, None] = {}
        self._pokes: deque[str] = deque()  # machines to drive, named by any thread
        self._ticked = -1  # when deadlines were checked last
        self._timers = Timers()
        self._users: dict[str, StoreUser] = {}  # machines that have a store
        self._only: tuple[StoreUser, BlockStore] | None = None  # the only one, if there is just one
        self._disks = LoopDisks()
        self._held: dict[str, Work] = {}  # whose writes wait for those of other brokers ...
        self._held_for = 0  # ... for so many turns ...
        self._held_back: list[tuple[str, str, Message]] = []  # ... and what came for them
        self._coordinator: tuple[str, CoordinatorUser, Coordinator] | None = None
        self._wall_ms: Callable[[], int] | None = None
        self._wall_users: list[WallClockUser] = []

    # --- assembling -----------------------------------------------------------------------------

    def add(self, name: str, machine: Machine, *, tells: bool = False) -> None:
        r"""Drive *machine*; messages to *name* are for it.

        If it *tells*, it is asked for its deadline only after it was driven, or :meth:`rearm`\ ed;
        until then nothing else may change that.
        """
        self.machines[name] = machine
        self._timers.add(name, machine, tells=tells)
        self._dirty[name] = None

    def remove(self, name: str) -> None:
        """Forget a machine; what comes for it is dropped."""
        self.machines.pop(name, None)
        self._timers.remove(name)
        self._dirty.pop(name, None)

    def add_broker(self, name: str, machine: StoreUser, store: BlockStore) -> None:
        """Drive a machine that keeps its blocks in *store*."""
        self._users[name] = machine
        self._only = (machine, store) if len(self._users) == 1 else None
        self._disks.add(name, store)
        self.add(name, machine)

    def add_zkserver(self, name: str, machine: CoordinatorUser, backend: Coordinator) -> None:
        """Drive a machine that keeps its metadata in *backend*."""
        self._coordinator = (name, machine, backend)
        self.add(name, machine)

    def follow_wall_clock(self, wall_ms: Callable[[], int], machine: WallClockUser) -> None:
        """Tell *machine* the time of day before each turn.

        A wall clock is set while a process runs, and the loop's clock stands still while a machine
        is suspended. An offset that was taken at the start would be wrong from then on.
        """
        self._wall_ms = wall_ms
        self._wall_users.append(machine)

    def release(self) -> None:
        """Let go of the threads that write side by side; they begin anew when they are needed."""
        self._disks.release()

    # --- turning --------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """A machine was given something by the thread that turns the loop: look at it next."""
        self._dirty[name] = None

    def poke(self, name: str) -> None:
        """A machine was given something by another thread: look at it next."""
        self._pokes.append(name)

    def rearm(self, name: str) -> None:
        """The deadline of a machine that tells may have changed; any thread may call this."""
        self._timers.rearm(name)

    def deliver(self, peer: str, source: str, message: Message) -> None:
        """Take in a message from another process for machine *peer*."""
        self._inbox.append((peer, source, message))

    def take(self, arrivals: Iterable[tuple[str, str, Message]]) -> None:
        """Take in messages from other processes: (for whom, from whom, what)."""
        self._inbox.extend(arrivals)

    @property
    def has_work(self) -> bool:
        """Whether a turn would do something at once."""
        at_hand = self._inbox or self._dirty or self._pokes or self._events
        return bool(at_hand or self._held or self._asks)

    @property
    def waiting(self) -> int:
        """How many messages wait to be taken in."""
        return len(self._inbox)

    @property
    def deadline(self) -> int:
        """When something is due."""
        return self._timers.first

    def run(self, is_enough: Callable[[], bool] | None = None, *, within_ms: int = NEVER) -> None:
        """Turn until nothing is left to do, or until *is_enough*; not for ever.

        Other threads may bring work as fast as it is done, so after some turns it is left to the
        next one, and after *within_ms* milliseconds, too.
        """
        began = -1
        for _ in range(TURNS_MAX):
            self.turn()
            if not self.has_work or (is_enough is not None and is_enough()):
                return
            if began < 0:
                began = self._ticked
            elif self._ticked - began >= within_ms:
                return

    def turn(self) -> bool:
        """Take in everything that came, decide once, act once; returns whether there was work."""
        now, machines = self.clock(), self.machines
        inbox = self._inbox
        held = self._held
        if self._wall_ms is not None:
            offset = self._wall_ms() - now
            for user in self._wall_users:
                user.set_wall_offset(offset)
        if inbox:
            self._inbox = deque()
            for peer, source, message in inbox:
                machine = machines.get(peer)
                if peer in held:
                    self._held_back.append((peer, source, message))
                elif machine is not None:
                    machine.step(source, message, now)
                    self._dirty[peer] = None
        while self._pokes:
            self._dirty[self._pokes.popleft()] = None
        if self._events or self._coordinator is not None:
            self._take_events(now)
        if self._asks:
            self._recover_on(now)
        if now != self._ticked:
            # Deadlines are in whole milliseconds, so one look at each is enough.
            self._ticked = now
            self._timers.driven(self._dirty)
            for name in self._timers.due(now):
                if machines[name].deadline <= now and name not in held:
                    machines[name].tick(now)
                    self._dirty[name] = None
        dirty = self._dirty
        if not dirty and not self._held:
            return bool(inbox)
        self._dirty = {}  # A machine that is touched from here on has the next turn.
        for name in held:
            dirty.pop(name, None)  # It is looked at when it has written.
        work: list[Work] = []
        for name in dirty:
            found = machines.get(name)
            ready = found.ready(now) if found is not None else None
            if found is not None and ready is not None:
                work.append((name, found, ready))
        if work:
            self._act(work, now)
        self._timers.driven(dirty)
        if self._held:
            self._held_for += 1
            if not (self._inbox or self._dirty) or self._held_for >= HELD_MAX:
                self._write_held(now)
        return True

    def _act(self, work: list[Work], now: int) -> None:
        """Do what several machines want, with one write for all of them."""
        writes: list[Write] = []
        for name, _, ready in work:
            self._post(name, ready.send)
            writes += ready.write
        if writes and self._flush is not None:
            self._flush()  # Followers are to write while our own disk does.
        if writes and len(self._users) > 1:
            self._held |= {each[0]: each for each in work if each[2].write}
            work = [each for each in work if not each[2].write]
            writes = []
        failed = self._write(writes, now) if writes else False
        self._finish_all(work, failed, now)

    def _finish_all(self, work: list[Work], failed: bool, now: int) -> None:
        """What several machines wanted written is written, or some of it has *failed*."""
        for name, machine, ready in work:
            self._finish(name, machine, ready, failed, now)
        for name, machine, _ in work:
            # What became of the work is often nothing but answers: they need no turn of their own.
            # What other threads have brought meanwhile is for the next turn, though.
            more = machine.ready(now)
            if more is None:
                continue
            self._post(name, more.send)
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
                self._flush()  # A leader waits for it; what we make of the write, nobody does.
        for read in ready.read:
            self._read(name, read, now)
        for ask in ready.ask:
            if isinstance(ask, Recover) and (self._asks or self.clock() - now >= RECOVER_MS):
                self._asks.append((name, ask))
            else:
                self._ask(name, ask, now)
        if ready.jobs:
            self.jobs.extend((name, job) for job in ready.jobs)
        if ready.meta:
            self._consult(ready, now)
        machine.advance(ready, now)

    def _post(self, name: str, envelopes: list[tuple[str, Message]]) -> None:
        if self._far is None:
            for peer, message in envelopes:
                self._inbox.append((peer, name, message))
            return
        for peer, message in envelopes:
            if peer in self.machines:
                self._inbox.append((peer, name, message))
            else:
                self._far(peer, name, message)

    # --- the store ------------------------------------------------------------------------------

    def _write(self, writes: list[Write], now: int) -> bool:
        """Write everything of the turn; return whether any of it failed."""
        if self._only is None:
            return False
        machine, store = self._only
        failures = store.write(writes)
        for failure in failures:
            machine.stored(failure, now)
        return bool(failures)

    def _write_held(self, now: int) -> None:
        """Let all disks write what waits for that; what fails of it fails for its broker alone."""
        held, self._held, self._held_for = list(self._held.values()), {}, 0
        self._inbox.extendleft(reversed(self._held_back))
        self._held_back = []
        found = self._disks.write([(name, ready.write) for name, _, ready in held])
        for each, failures in zip(held, found, strict=True):
            name = each[0]
            for failure in failures:
                self._users[name].stored(failure, now)
            self._finish_all([each], bool(failures), now)
            self._dirty[name] = None

    def _read(self, name: str, read: Read, now: int) -> None:
        try:
            most = min(read.max_bytes, READ_BYTES_MAX)
            store = self._disks.store(name)
            data = store.read(read.block, read.offset, read.end, most, verify=read.verify)
            answer: Message = attrs.evolve(read.answer, data=data)
        except PymqError as error:
            if not (read.verify and "found_crc" in error.details):
                # Only the reader gets the error of a damaged body: the producer may have sent it
                # like this, and then it is the same on all replicas.
                error = self._users[name].read_failed(read.block, error, now)
                self._dirty[name] = None
            answer = attrs.evolve(read.answer, error=error)
        # A group coordinator reads through its own broker.
        peer = name if read.peer.startswith("#") else read.peer
        self._post(name, [(peer, answer)])

    def _ask(self, name: str, ask: Recover | FindTime, now: int) -> None:
        machine, store = self._users[name], self._disks.store(name)
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
        """Recover blocks that were left by earlier turns: at least one."""
        for _ in range(len(self._asks)):
            name, ask = self._asks.popleft()
            if name in self._held:
                self._asks.append((name, ask))
            elif name in self._users:
                self._ask(name, ask, now)
                if self.clock() - now >= RECOVER_MS:
                    return

    def do_job(self) -> None:
        """Do one piece of long work. Any thread may call this at any time, unlike the rest."""
        name, job = self.jobs.popleft()
        try:
            event = self._disks.store(name).compact(job)
        except PymqError as error:
            event = Compacted(job.topic, job.partition, (), error)
        except Exception as error:  # whatever it is, the partition gets it
            event = Compacted(job.topic, job.partition, (), StoreError(str(error)))
        self._events.append((name, event))

    def _take_events(self, now: int) -> None:
        for _ in range(len(self._events)):
            name, event = self._events.popleft()
            if name in self._held:
                self._events.append((name, event))
                continue
            self._users[name].stored(event, now)
            self._dirty[name] = None
        if self._coordinator is not None:
            name, zkserver, backend = self._coordinator
            for decision in backend.poll():
                zkserver.decided(decision, now)
                self._dirty[name] = None

    # --- the coordinator ------------------------------------------------------------------------

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
