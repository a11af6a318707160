"""Network namespaces of Linux: each node has a separate network card, and links can be cut.

All namespaces are connected to one bridge of this machine, where the test itself has an address,
too. To cut a link, the sender gets a wrong hardware address for the receiver: the kernel continues
to send, no packet arrives, and no side is notified, as when a cable behind a switch is unplugged.
A cut may affect a single direction only. Needs root and iproute2; see :meth:`Namespaces.why_not`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from pymq.errors import PymqError
from pymq.testing.child import Transient

__all__ = ["HOST", "Namespaces"]

HOST = "host"  # the namespace of the test, of its clients and of ZooKeeper
NOBODY = "02:00:00:00:de:ad"
SUBNETS = 200  # number of tests that can do this at a time on one machine


class Namespaces(Transient):
    """A bridge and the namespaces on it. Use it in a ``with`` block."""

    def __init__(self) -> None:
        self._number = -1
        self._addresses: dict[str, str] = {}
        self._cuts: set[tuple[str, str]] = set()

    @staticmethod
    def why_not() -> str | None:
        """The reason why namespaces cannot be used here; None if they can."""
        if shutil.which("ip") is None:
            return "network namespaces need iproute2"
        if os.geteuid() != 0:
            return "network namespaces need root"
        for command in ("add", "del"):
            done = _try("link", command, "dev", f"pmqt{os.getpid()}", *_KIND[command])
            if done is not None:
                return f"network namespaces cannot be made here: {done}"
        return None

    def start(self) -> None:
        """Make the bridge."""
        for number in range(SUBNETS):
            # The process that creates the bridge owns the subnet.
            if _try("link", "add", "dev", f"pmq{number}", "type", "bridge") is None:
                self._number = number
                break
        else:
            raise PymqError("no subnet is free: ip link del pmq0, pmq1 and so on")
        self._addresses[HOST] = self._subnet(1)
        _ip("address", "add", f"{self.host}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    @property
    def host(self) -> str:
        """The address of this machine on the bridge."""
        return self._addresses[HOST]

    @property
    def _bridge(self) -> str:
        return f"pmq{self._number}"

    def _subnet(self, host: int) -> str:
        return f"10.213.{self._number}.{host}"

    def _space(self, name: str) -> str:
        return f"pmq{self._number}-{name}"

    def add(self, name: str) -> str:
        """Make a namespace with one card; returns its address."""
        place = len(self._addresses) + 1
        space, near = self._space(name), f"pmq{self._number}v{place}"
        address = self._addresses[name] = self._subnet(place)
        _ip("netns", "add", space)
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", near, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        return address

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs *command* in a namespace, as the same process."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Drop all packets from *one* to *other*, and also in the other direction unless
        *one_way*.
        """
        for sender, receiver in ((one, other), (other, one))[: 1 if one_way else 2]:
            self._neighbour("replace", sender, receiver, "lladdr", NOBODY, "nud", "permanent")
            self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Mend all wires."""
        for sender, receiver in sorted(self._cuts):
            self._neighbour("del", sender, receiver)
        self._cuts.clear()

    def _neighbour(self, verb: str, sender: str, receiver: str, *rest: str) -> None:
        where = () if sender == HOST else ("-n", self._space(sender))
        device = self._bridge if sender == HOST else "eth0"
        _ip(*where, "neighbour", verb, self._addresses[receiver], "dev", device, *rest)

    def close(self) -> None:
        """Remove the network; processes in it continue without one."""
        for name in self._addresses:
            if name != HOST:
                _try("netns", "del", self._space(name))
        _try("link", "del", self._bridge)
        self._addresses.clear()
        self._cuts.clear()


_KIND = {"add": ("type", "veth"), "del": ()}


def _try(*arguments: str) -> str | None:
    """Run ``ip``; returns its error output, or None."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def _ip(*arguments: str) -> None:
    if (problem := _try(*arguments)) is not None:
        raise PymqError(f"ip {' '.join(arguments)}: {problem}")
