"""Looks hosts up without blocking the thread that turns the loop."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from typing import Any

from pymq.transport.bell import Bell

KEPT_S = 10.0  # how long an answer, or a failure, is used

Address = tuple[socket.AddressFamily, Any]


class Resolver:
    """The addresses of hosts; *bell* rings when a look-up has ended."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        # (addresses or the error, when they were found), by host
        self._known: dict[str, tuple[list[Address] | str, float]] = {}
        self._pending: set[str] = set()

    def find(self, host: str, port: int) -> Address | None:
        """Return an address of a host; None while it is being looked up.

        Raises:
            OSError: the host has no address.
        """
        try:
            number = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return (socket.AF_INET6 if number.version == 6 else socket.AF_INET), (host, port)
        known = self._known.get(host)
        if known is None or time.monotonic() - known[1] > KEPT_S:
            if host not in self._pending:
                self._pending.add(host)
                threading.Thread(target=self._look_up, args=(host,), daemon=True).start()
            if known is None:
                return None
        found = known[0]
        if isinstance(found, str):
            raise OSError(found)
        family, (address, *rest) = found[0]
        return family, (address, port, *rest[1:])

    def failed(self, host: str) -> None:
        """Note that nobody answered at the address of a host; the next one is tried next."""
        known = self._known.get(host)
        if known is not None and isinstance(known[0], list):
            known[0].append(known[0].pop(0))

    def _look_up(self, host: str) -> None:
        found: list[Address] | str
        try:
            found = [
                (family, address)
                for family, _, _, _, address in socket.getaddrinfo(
                    host, None, type=socket.SOCK_STREAM
                )
            ]
        except OSError as error:
            found = f"{host} has no address: {error.strerror}"
        self._known[host] = found, time.monotonic()
        self._pending.discard(host)
        self._bell.ring()
