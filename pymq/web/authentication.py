"""Who may come in over HTTP: by a token, and then by a cookie that stands for it.

A token is for programs, in ``Authorization: Bearer``; a browser gives it once and gets a cookie
that no script can read and no other site can use. Without tokens everybody may who can connect, as
it is with a node that has no keys.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pymq.core.values import value
from pymq.errors import QuotaExceeded
from pymq.web.login_throttle import LoginThrottle

ANYBODY = ""
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1_000
SESSIONS_OF_A_TOKEN = 20
TOKEN_BYTES_MAX = 1_024
TOKEN_CHARS_MIN = 16  # of one in a file; a shorter one could be guessed
LOOK_S = 1.0  # between two looks at a folder


class Tokens(Protocol):
    """Who has which token."""

    def principal(self, token: str) -> str | None:
        """Whose token it is; None if it is nobody's."""
        ...


class OneToken:
    """A single token."""

    def __init__(self, token: str, principal: str = ANYBODY) -> None:
        self._digest = _digest(token)
        self._principal = principal

    def principal(self, token: str) -> str | None:
        """Whose token it is; None if it is nobody's."""
        return self._principal if hmac.compare_digest(_digest(token), self._digest) else None


class TokenFolder:
    """The tokens of the files ``NAME.token`` in a folder of keys, also after they have changed.

    Those of whom *is_revoked* says so count no more.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_revoked: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._is_revoked = is_revoked
        self._looked_at = -LOOK_S
        self._digests: dict[bytes, str] = {}

    def principal(self, token: str) -> str | None:
        """Whose token it is; None if it is nobody's."""
        if self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self._digests = {_digest(text): name for name, text in self._read()}
        given, found = _digest(token), None
        for digest, name in self._digests.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found

    def _read(self) -> list[tuple[str, str]]:
        tokens = []
        for path in sorted(self._folder.glob("*.token")):
            try:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_mode & 0o077:
                        continue  # Others can read it: it proves nothing.
                    text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
            except (OSError, UnicodeDecodeError):
                continue
            name = path.name.removesuffix(".token")
            if len(text) >= TOKEN_CHARS_MIN and not self._is_revoked(name):
                tokens.append((name, text))
        return tokens


def _digest(token: str) -> bytes:
    # JSON may hold what is no text at all, and whoever sends that has no token.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@value
class WebSession:
    """A browser that has shown a token."""

    token: str
    until: float


class Authentication:
    """Tells who a request is from."""

    def __init__(
        self,
        tokens: Tokens | None,
        clock: Callable[[], float] = time.monotonic,
        on_refused: Callable[[str], object] = lambda address: None,
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._on_refused = on_refused
        self._guesses = LoginThrottle(clock)
        # The cookies of each token, the oldest first.
        self._sessions: dict[str, WebSession] = {}
        self._cookies: dict[str, dict[str, None]] = {}
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether everybody may come in."""
        return self._tokens is None

    def principal(self, bearer: str | None, cookie: str | None, address: str = "") -> str | None:
        """Who it is; None if that is not known. The token behind a cookie must still be one.

        Raises:
            QuotaExceeded: too many tokens that are nobody's were tried from *address*, or in all.
        """
        if self._tokens is None:
            return ANYBODY
        if bearer is not None:
            return self._try(bearer, address)
        with self._lock:
            session = self._sessions.get(cookie or "")
        if session is None or session.until <= self._clock():
            return None
        return self._tokens.principal(session.token)

    def _try(self, token: str, address: str) -> str | None:
        """Whose token it is that somebody at *address* has shown."""
        assert self._tokens is not None
        digest = _digest(token)
        if wait_s := self._guesses.wait_s(address, digest):
            self._on_refused(address)
            raise QuotaExceeded(
                f"too many tokens were tried that are nobody's; again in {wait_s:.0f} s",
                retry_ms=round(1000 * wait_s) + 1,
            )
        found = self._tokens.principal(token)
        if found is None:
            self._guesses.wrong(address)
            self._on_refused(address)
        else:
            self._guesses.right(address, digest)
        return found

    def sign_in(self, token: str, address: str = "") -> str | None:
        """A new cookie for who has *token*; None if it is nobody's.

        Raises:
            QuotaExceeded: as for :meth:`principal`.
        """
        if self._tokens is None or self._try(token, address) is None:
            return None
        cookie, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            for old in [key for key, session in self._sessions.items() if session.until <= now]:
                self._forget(old)
            mine = self._cookies.setdefault(token, {})
            if len(mine) >= SESSIONS_OF_A_TOKEN:
                self._forget(next(iter(mine)))
            elif len(self._sessions) >= SESSIONS_MAX:
                # Of the one who has most: nobody signs out others by signing in again and again.
                most = max(self._cookies.values(), key=len)
                self._forget(next(iter(most)))
            self._sessions[cookie] = WebSession(token, now + SESSION_S)
            self._cookies.setdefault(token, {})[cookie] = None
        return cookie

    def sign_out(self, cookie: str | None) -> None:
        """The cookie counts no more."""
        with self._lock:
            self._forget(cookie or "")

    def _forget(self, cookie: str) -> None:
        session = self._sessions.pop(cookie, None)
        if session is not None:
            cookies = self._cookies[session.token]
            del cookies[cookie]
            if not cookies:
                del self._cookies[session.token]


def is_local_name(host: str) -> bool:
    """Whether the header ``Host`` names this machine by a name that no other site can have.

    A page elsewhere may let its own name point to 127.0.0.1, and then read what is served there; it
    cannot have it called ``localhost``, nor by a number.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name.lower().removeprefix("[").removesuffix("]"))


def is_loopback(host: str) -> bool:
    """Whether that is this machine, as only itself can reach it, by its name or by a number."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
