"""The network between simulated processes: one link for each direction of each pair.

A link delivers in order, as TCP does, unless it is set to reorder. If a link is cut, messages over
it are lost; if it is clogged, they arrive later, all at once. Each message takes the same number of
random values from its link's stream, whatever happens to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log
from random import Random
from typing import Any

from pymq.core.message import Message
from pymq.core.values import define
from pymq.testing.simulation.world import World

# Values of an exponential distribution with mean 1: the middles of 256 slices of equal probability.
_EXPONENTIAL = [-log(1 - (i + 0.5) / 256) for i in range(256)]
_ONE = 1 << 16

Receive = Callable[[str, str, Message], None]
Packet = tuple[int, str, str, Message]


def _nobody(peer: str, source: str, message: Message) -> None:
    """Receive nothing: no process has joined under that name."""


@define
class LinkFaults:
    """How a link treats messages; times in microseconds, the rest are probabilities."""

    delay_us: int = 200  # shortest delay
    jitter_us: int = 100  # mean of the additional delay, exponentially distributed
    tail: float = 0.0  # probability of a delay up to a thousand times as long
    loss: float = 0.0
    duplicate: float = 0.0  # probability that the message arrives twice
    late: float = 0.0  # probability that it arrives again after up to 10 seconds
    reorder: float = 0.0  # probability that it overtakes earlier messages


class NetworkLink:
    """The link from one process to another."""

    __slots__ = (
        "clogged_until",
        "cuts",
        "faults",
        "generation",
        "last_at",
        "lost",
        "receive",
        "rng",
        "sent",
        "slow",
        "source",
        "target",
    )

    def __init__(
        self, source: str, target: str, receive: Receive, faults: LinkFaults, rng: Random
    ) -> None:
        self.source = source
        self.target = target
        self.receive = receive  # delivers a message to the target
        self.faults = faults
        self.rng = rng
        self.cuts: dict[int, None] = {}  # the cuts that affect this link
        self.generation = 0  # rises when the connection breaks
        self.last_at = 0  # the time when the last in-order message arrives
        self.clogged_until = 0
        self.slow = 1  # factor for all delays of this link
        self.sent = self.lost = 0


class Network:
    """All links; processes join the network under their names."""

    def __init__(self, world: World, faults: LinkFaults | None = None) -> None:
        self.world = world
        # the faults of links without faults of their own
        self.faults = faults if faults is not None else LinkFaults()
        self.on_change: list[Callable[[], None]] = []  # called after each cut or heal
        # called with the names of a reset
        self.on_reset: list[Callable[[str, str | None], None]] = []
        self._links: dict[tuple[str, str], NetworkLink] = {}
        self._receivers: dict[str, Receive] = {}
        self._cuts = 0

    def join(self, name: str, receive: Receive) -> None:
        """Register *receive* for messages to *name*."""
        self._receivers[name] = receive
        for link in self._links.values():
            if link.target == name:
                link.receive = receive

    @property
    def names(self) -> list[str]:
        """Return all processes in the order in which they joined."""
        return list(self._receivers)

    def link(self, source: str, target: str) -> NetworkLink:
        """Return the link from *source* to *target*."""
        found = self._links.get((source, target))
        if found is None:
            rng = self.world.rng("link", source, target)
            receive = self._receivers.get(target, _nobody)
            found = NetworkLink(source, target, receive, self.faults, rng)
            self._links[source, target] = found
        return found

    # --- messages -------------------------------------------------------------------------------

    def send(
        self, link: NetworkLink, peer: str, source: str, message: Message, lag: int, slow: int = 1
    ) -> None:
        """Send *message* to machine *peer*; the message leaves *lag* microseconds from now."""
        # Always draw the same number of values, so that the values for other messages stay the
        # same.
        bits = link.rng.getrandbits(96)
        link.sent += 1
        if link.cuts:
            link.lost += 1
            return
        faults, world = link.faults, self.world
        if faults.loss and bits & 0xFFFF < faults.loss * _ONE:
            link.lost += 1
            return
        delay = faults.delay_us + int(faults.jitter_us * _EXPONENTIAL[bits >> 16 & 0xFF])
        if faults.tail and bits >> 24 & 0xFFFF < faults.tail * _ONE:
            delay *= 1 << (bits >> 40 & 7) + 3  # 8 to 1024 times
        at = world.now + lag + delay * link.slow * slow
        if at < link.clogged_until:
            at = link.clogged_until
        if not faults.reorder or bits >> 43 & 0xFFFF >= faults.reorder * _ONE:
            # Keep the order: a late message delays the messages behind it.
            if at < link.last_at:
                at = link.last_at
            link.last_at = at
        packet = (link.generation, peer, source, message)
        world.at(at, self._arrive, link, packet)
        if faults.duplicate and bits >> 59 & 0xFFF < faults.duplicate * (1 << 12):
            world.at(at + faults.delay_us, self._arrive, link, packet)
        if faults.late and bits >> 71 & 0xFFF < faults.late * (1 << 12):
            # The message may arrive over another connection, as if an attacker had recorded it.
            late = (-1, peer, source, message)
            world.at(at + (bits >> 83 & 0x1FFF) * 1221, self._arrive, link, late)

    def _arrive(self, link: NetworkLink, packet: Packet) -> None:
        generation, peer, source, message = packet
        if generation not in (link.generation, -1):
            link.lost += 1
            return
        link.receive(peer, source, message)

    # --- faults ---------------------------------------------------------------------------------

    def cut(self, a: Iterable[str], b: Iterable[str], *, one_way: bool = False) -> int:
        """Lose all messages between two sides, or only from *a* to *b*.

        Returns a number with which :meth:`mend` undoes this cut.
        """
        self._cuts += 1
        left, right = list(a), list(b)
        for one in left:
            for other in right:
                if one == other:
                    continue
                self.link(one, other).cuts[self._cuts] = None
                if not one_way:
                    self.link(other, one).cuts[self._cuts] = None
        self._changed()
        return self._cuts

    def mend(self, cut: int) -> None:
        """Undo one :meth:`cut`."""
        for link in self._links.values():
            link.cuts.pop(cut, None)
        self._changed()

    def heal(self) -> None:
        """Undo all cuts, clogs and slowness; rates of faults stay.

        Held-back messages arrive now; otherwise later messages would wait behind them.
        """
        soon = self.world.now + self.faults.delay_us
        behind: dict[int, None] = {}
        for link in self._links.values():
            link.cuts.clear()
            link.clogged_until = 0
            link.slow = 1
            if link.last_at > soon:
                link.last_at = soon
                behind[id(link)] = None
        if behind:
            arrive = self._arrive
            self.world.hasten(
                soon,
                lambda action, link, packet: (
                    action == arrive and id(link) in behind and packet[0] == link.generation
                ),
            )
        self._changed()

    def set_faults(self, faults: LinkFaults) -> None:
        """Set the conditions of all links."""
        self.faults = faults
        for link in self._links.values():
            link.faults = faults

    def calm(self) -> None:
        """End all faults, including their rates."""
        self.set_faults(LinkFaults(self.faults.delay_us, self.faults.jitter_us))
        self.heal()

    def is_cut(self, a: str, b: str) -> bool:
        """Whether messages between two processes are lost."""
        return bool(self.link(a, b).cuts or self.link(b, a).cuts)

    def clog(self, a: str, b: str, until: int) -> None:
        """Hold back everything from *a* to *b*, to be delivered at *until*."""
        self.link(a, b).clogged_until = until

    def reset(self, name: str, other: str | None = None) -> None:
        """Break all connections of a process, or only those to one other process.

        Messages in flight are lost.
        """
        for (source, target), link in self._links.items():
            if name in (source, target) and (other is None or other in (source, target)):
                link.generation += 1
                link.last_at = 0
        for callback in self.on_reset:
            callback(name, other)

    def forget_incoming(self, name: str) -> None:
        """Lose the messages on their way to *name*: the process has died."""
        for link in self._links.values():
            if link.target == name:
                link.generation += 1

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()

    def status(self) -> dict[str, Any]:
        """Return the links that are cut, for reports."""
        return {f"{s}>{t}": list(link.cuts) for (s, t), link in self._links.items() if link.cuts}
