"""SASL: the mechanisms that a gate offers, and the exchange of one connection."""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pymq.errors import AuthenticationFailed
from pymq.kafka.security.scram import HASHES, NONCE_BYTES, ScramExchange
from pymq.kafka.security.users import UsersFile

PLAIN = "PLAIN"
TOKEN_BYTES_MAX = 16 << 10


class Exchange(Protocol):
    """An exchange of messages that ends with the client's principal."""

    principal: str

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's next message.

        Raises:
            AuthenticationFailed: the client has not proved who it is.
        """
        ...


class PlainExchange:
    """A name and a password in one message (RFC 4616)."""

    def __init__(self, fits: Callable[[str, str], bool]) -> None:
        self._fits = fits
        self.principal = ""

    def step(self, token: bytes) -> bytes:
        """Return an empty answer if the password is right.

        Raises:
            AuthenticationFailed: it is not, or the user is unknown.
        """
        try:
            identity, name, password = token.decode().split("\0")
        except ValueError:
            raise AuthenticationFailed("a malformed message of PLAIN") from None
        if identity not in ("", name):
            raise AuthenticationFailed("a user cannot act as another one")
        if not self._fits(name, password):
            raise AuthenticationFailed("the user is unknown, or the password is wrong")
        self.principal = name
        return b""


class Sasl:
    """The mechanisms for the users in a file."""

    def __init__(
        self,
        users: UsersFile,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._users = users
        self._clock = clock
        self._random = random
        self.mechanisms = (PLAIN, *HASHES)
        self.refused = 0  # clients that have not proved who they are

    def begin(self, mechanism: str) -> Exchange | None:
        """Return a new exchange; None if the mechanism is not offered."""
        self._users.refresh(self._clock())
        if mechanism == PLAIN:
            return PlainExchange(self._users.plain)
        if mechanism in HASHES:
            nonce = b64encode(self._random(NONCE_BYTES)).decode()
            return ScramExchange(mechanism, partial(self._users.verifier, mechanism), nonce)
        return None
