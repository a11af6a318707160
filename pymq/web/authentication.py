"""Authenticates HTTP requests by a token, or by a cookie that was issued for a token.

Programs send the token in ``Authorization: Bearer``. A browser sends the token once and gets a
cookie that scripts cannot read and other sites cannot use. Without tokens every client has access,
as on a node without keys.
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
TOKEN_CHARS_MIN = 16  # characters of a token in a file; a shorter one could be guessed
LOOK_S = 1.0  # interval between scans of the folder


class Tokens(Protocol):
    """Maps tokens to principals."""

    def principal(self, token: str) -> str | None:
        """Return the token's principal; None if the token is unknown."""
        ...


class OneToken:
    """A single token."""

    def __init__(self, token: str, principal: str = ANYBODY) -> None:
        self._digest = _digest(token)
        self._principal = principal

    def principal(self, token: str) -> str | None:
        """Return the token's principal; None if the token is unknown."""
        return self._principal if hmac.compare_digest(_digest(token), self._digest) else None


class TokenFolder:
    """The tokens of the files ``NAME.token`` in a folder of keys; changes take effect while it is
    in use.

    The token of a principal is invalid if *is_revoked* returns True for it.
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
        """Return the token's principal; None if the token is unknown."""
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
                        continue  # other users can read the file, so the token proves nothing
                    text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
            except (OSError, UnicodeDecodeError):
                continue
            name = path.name.removesuffix(".token")
            if len(text) >= TOKEN_CHARS_MIN and not self._is_revoked(name):
                tokens.append((name, text))
        return tokens


def _digest(token: str) -> bytes:
    # JSON may contain lone surrogates, but a token never does.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@value
class WebSession:
    """The session of a browser that has signed in with a token."""

    token: str
    until: float


class Authentication:
    """Finds the principal of a request."""

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
        # sessions by cookie, and cookies by token, the oldest first
        self._sessions: dict[str, WebSession] = {}
        self._cookies: dict[str, dict[str, None]] = {}
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether requests need no token."""
        return self._tokens is None

    def principal(self, bearer: str | None, cookie: str | None, address: str = "") -> str | None:
        """Return the principal; None if unknown. A cookie is valid only as long as its token.

        Raises:
            QuotaExceeded: there were too many wrong tokens from *address*, or in total.
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
        """Return the principal of a token sent from *address*; count wrong tokens."""
        assert self._tokens is not None
        digest = _digest(token)
        if wait_s := self._guesses.wait_s(address, digest):
            self._on_refused(address)
            raise QuotaExceeded(
                f"too many unknown tokens; try again in {wait_s:.0f} s",
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
        """Return a new cookie for *token*; None if the token is unknown.

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
                # Drop a session of the token that has most sessions, so that repeated sign-ins with
                # one token end no other user's session.
                most = max(self._cookies.values(), key=len)
                self._forget(next(iter(most)))
            self._sessions[cookie] = WebSession(token, now + SESSION_S)
            self._cookies.setdefault(token, {})[cookie] = None
        return cookie

    def sign_out(self, cookie: str | None) -> None:
        """End the cookie's session."""
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
    """Whether the header ``Host`` is ``localhost`` or a loopback address.

    This prevents DNS rebinding: another site can point its own name at 127.0.0.1 to read the page,
    but the header ``Host`` of such requests contains that site's name.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name.lower().removeprefix("[").removesuffix("]"))


def is_loopback(host: str) -> bool:
    """Whether *host* is ``localhost`` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
