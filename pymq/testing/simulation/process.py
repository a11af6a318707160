"""A simulated process that can die anywhere: machines, a loop, perhaps a disk, and its own clock.

The process runs the real :class:`~pymq.runtime.loop.Loop`. Each effect of the loop passes a
*boundary*: a message that is sent, an operation of the disk, a request to the coordinator backend.
A test can let the process die at any boundary: earlier effects happen, and later ones do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from pymq.core.message import Message
from pymq.core.types import NEVER
from pymq.runtime.loop import Loop
from pymq.testing.simulation.network import Network, NetworkLink
from pymq.testing.simulation.world import Violation, World

PPM = 1_000_000
# most turns within one wake-up; with more, machines keep each other busy forever
TURNS_MAX = 20_000
TURN_US = 15  # virtual time that a turn takes


class Crash(BaseException):
    """The process dies here; no code under test may catch it."""


class Clock:
    """A clock that may run fast or slow, and jump forward; it never goes back."""

    def __init__(self, world: World, start_ms: int = 1_000, rate: int = PPM) -> None:
        self._world = world
        self._since = world.now
        self._base = start_ms * 1000
        self.rate = rate  # microseconds of this clock in a million real microseconds
        self.was_wrong = False  # True once it ran at another rate, or jumped

    def __call__(self) -> int:
        """Return the clock's time in milliseconds."""
        if self.rate == PPM:  # the usual case: this runs several times per event
            return (self._base + self._world.now - self._since) // 1000
        return self._us() // 1000

    def _us(self) -> int:
        return self._base + (self._world.now - self._since) * self.rate // PPM

    def when(self, ms: int) -> int:
        """Return the world's time at which the clock will show *ms*."""
        missing = ms * 1000 - self._base
        return self._since + -(-missing * PPM // self.rate)

    def change(self, *, rate: int | None = None, jump_us: int = 0) -> None:
        """Change the rate from now on, or jump forward."""
        self._base = self._us() + jump_us
        self._since = self._world.now
        self.rate = rate or self.rate
        self.was_wrong = self.was_wrong or self.rate != PPM or jump_us > 0


Watcher = Callable[["Process"], None]
Tap = Callable[["Process", str, str, Message], None]  # (process, receiver, sender, message)


class Process(ABC):
    """A process on a simulated machine."""

    def __init__(self, world: World, network: Network, name: str, number: int) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.number = number  # number of the process in the digest
        self.clock = Clock(world)
        self.loop: Loop | None = None  # None while the process is down
        self.incarnation = 0
        self.is_paused = False
        self.pauses = 0  # number of pauses so far
        self.turn_us = TURN_US
        self.boundaries = 0  # number of effects so far, in all incarnations
        self.crash_at = -1  # the boundary at which to die
        # called with a description of each effect
        self.on_boundary: Callable[[str], None] | None = None
        self.lag = 0  # how far the current turn is behind the world's time
        self.is_dying = False
        self.keep = "random"  # which unsynced writes a crash keeps
        self.on_turn: list[Watcher] = []
        # functions to call for sent messages, by class of message
        self.on_send: dict[type, list[Tap]] = {}
        self.on_receive: dict[type, list[Tap]] = {}
        self.on_death: list[Watcher] = []
        self.on_broken: Callable[[Process, BaseException], None] | None = None
        self.is_turning = False
        self._busy_until = 0
        self._wake_at = -1  # time of the next wake-up; others are ignored
        self._wake_for = NEVER  # the deadline of that wake-up, in the process's own milliseconds
        self._links: dict[str, NetworkLink] = {}  # links to all addresses used so far
        self._codes: dict[type, int] = {}  # digest codes of incoming messages, by class
        self._woken = self._code(3)  # digest code of a wake-up
        network.join(name, self.receive)

    @abstractmethod
    def build(self) -> None:
        """Build the machines; called at each start, once the loop exists."""

    # --- life -----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self.loop is not None

    def start(self) -> bool:
        """Start the next incarnation; return whether it survived the start."""
        assert self.loop is None, f"{self.name} is running"
        self.incarnation += 1
        self.is_dying = self.is_paused = False
        self.world.note(self._code(1), "start", self.name, self.incarnation)
        self.loop = Loop(self.clock, self._send)
        self._busy_until, self._wake_at, self.lag = self.world.now, -1, 0
        self._wake_for = NEVER
        return self._guarded(self._start)

    def _start(self) -> None:
        self.build()
        self._turn()

    def die(self) -> None:
        """Die at once; the caller decides what the disk keeps."""
        if self.loop is None:
            return
        self.world.note(self._code(2), "die", self.name, self.incarnation)
        self.loop = None
        self.crash_at = -1
        self._wake_at = -1
        self.is_paused = False
        self.network.forget_incoming(self.name)
        for callback in tuple(self.on_death):  # a callback may remove itself from the list
            callback(self)

    def boundary(self, what: str) -> None:
        """Note that an effect is about to happen; the process may die before it."""
        if self.is_dying:
            raise Crash(what)
        self.boundaries += 1
        if self.on_boundary is not None:
            self.on_boundary(what)
        if self.boundaries == self.crash_at:
            self.is_dying = True  # clean-up code of the dying process must have no effects either
            raise Crash(what)

    def crash_in(self, boundaries: int) -> None:
        """Let the process die at a boundary, after *boundaries* others."""
        self.crash_at = self.boundaries + 1 + boundaries

    def pause(self) -> None:
        """Pause at once, as SIGSTOP does; the process's clocks go on."""
        if not self.is_paused:
            self.pauses += 1
            self.is_paused = True

    def resume(self) -> None:
        """Resume, with a full inbox and overdue timers."""
        if self.is_paused:
            self.is_paused = False
            self.wake()

    # --- work -----------------------------------------------------------------------------------

    def receive(self, peer: str, source: str, message: Message) -> None:
        """Receive a message from the network."""
        loop = self.loop
        if loop is None:
            return
        kind = type(message)
        code = self._codes.get(kind)
        if code is None:
            code = self._codes[kind] = self._code(_kind(message))
        self.world.note(code, source, peer, message)
        if (taps := self.on_receive.get(kind)) is not None:
            for tap in taps:
                tap(self, peer, source, message)
        loop.take([(peer, source, message)])
        self.wake()

    def wake(self) -> None:
        """Run the loop now, or as soon as the current turn ends."""
        if self.loop is None or self.is_paused or self.is_turning:
            return
        if self.world.now < self._busy_until:
            self._wake_by(self._busy_until)
        else:
            try:  # a copy of _guarded: a call would be too slow here
                self._turn()
            except BaseException as error:
                self._ended(error)

    def _guarded(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except BaseException as error:
            self._ended(error)
            return False
        return True

    def _ended(self, error: BaseException) -> None:
        """End the process because of *error*, unless the error ends the test itself."""
        if isinstance(error, Crash):
            for callback in self.on_turn:
                callback(self)  # the checkers look at the effects before the death
            self.die()
            return
        is_own = isinstance(error, Exception) and not isinstance(error, Violation)
        if not is_own or self.on_broken is None:
            raise error
        # A machine raised an error; a real process would end here.
        self.die()
        self.on_broken(self, error)

    def _turn(self) -> None:
        loop = self.loop
        assert loop is not None
        self.is_turning = True
        self.lag = self.turn_us
        try:
            for _ in range(TURNS_MAX):
                loop.turn()
                if not loop.has_work:
                    break
            else:
                raise Violation("no-livelock", f"{self.name} is never done with its work")
        finally:
            self.is_turning = False
        self._busy_until = self.world.now + self.lag
        for callback in self.on_turn:
            callback(self)
        if loop.jobs.waiting:
            self.world.at(self._busy_until + 1_000, self._do_job, self.incarnation)
        deadline = loop.deadline
        if self._wake_at < 0 or deadline < self._wake_for:
            self._arm(deadline)  # otherwise the process wakes early enough already

    def _do_job(self, incarnation: int, _: object) -> None:
        loop = self.loop
        if loop is None or self.incarnation != incarnation or not loop.jobs.waiting:
            return
        if self._guarded(loop.jobs.run_one):
            self.wake()

    def rearm(self) -> None:
        """Note that a caller may have changed a deadline."""
        if self.loop is not None:
            self._arm(self.loop.deadline)

    def _arm(self, deadline: int) -> None:
        if deadline < NEVER:
            # A loop checks deadlines, even overdue ones, once a millisecond.
            due = max(deadline, self.clock() + 1)
            self._wake_by(max(self.clock.when(due), self._busy_until), deadline)

    def _wake_by(self, at: int, deadline: int = NEVER) -> None:
        if self._wake_at < 0 or at < self._wake_at:
            self._wake_at, self._wake_for = at, deadline
            self.world.at(at, self._wake_up, at, self.incarnation)

    def wake_soon(self) -> None:
        """Run the loop once the current turn is over."""
        if self.loop is not None:
            self._wake_by(max(self._busy_until, self.world.now + 1))

    def _wake_up(self, at: int, incarnation: int) -> None:
        loop = self.loop
        if at != self._wake_at or loop is None or incarnation != self.incarnation:
            return  # an earlier wake-up replaced this one
        self._wake_at = -1
        if self.is_paused:
            return
        if self.world.now < self._busy_until:
            self._wake_by(self._busy_until)
        elif (deadline := loop.deadline) <= self.clock() or loop.has_work:
            self.world.note(self._woken, "wake", self.name)
            try:
                self._turn()
            except BaseException as error:
                self._ended(error)
        else:
            self._arm(deadline)

    def _send(self, peer: str, source: str, message: Message) -> None:
        link = self._links.get(peer)
        if link is None:
            target = peer.split(".", 1)[0]
            link = self._links[peer] = self.network.link(self.name, target)
        kind = type(message)
        self.boundary(kind.__name__)
        if (taps := self.on_send.get(kind)) is not None:
            for tap in taps:
                tap(self, peer, source, message)
        self.network.send(link, peer, source, message, self.lag)

    def _code(self, kind: int) -> int:
        return self.number << 8 | kind & 0xFF


def _kind(message: Message) -> int:
    """Return a number for the message's class, the same in each run."""
    return 4 + sum(map(ord, type(message).__name__)) % 250


def dice(process: Process, purpose: str) -> Random:
    """Return random numbers for a purpose inside a process; each incarnation gets different
    ones.
    """
    return process.world.rng(purpose, process.name, process.incarnation)
