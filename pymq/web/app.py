"""Routes HTTP requests to answers; :mod:`pymq.web.server` speaks HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from pymq.core.observe.metrics import Metrics
from pymq.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    Closed,
    PymqError,
    QuotaExceeded,
)
from pymq.web.authentication import SESSION_S, Authentication, is_local_name
from pymq.web.snapshots import ClusterSnapshot, ClusterSnapshots

log = logging.getLogger("pymq.http")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
SAFE = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
TEXT = "text/plain; charset=utf-8"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class HttpRequest(NamedTuple):
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    port: int
    address: str = ""  # address of the client


class HttpResponse(NamedTuple):
    """A response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def respond(status: int, body: bytes, kind: str, *more: tuple[str, str]) -> HttpResponse:
    """Return a response with security headers for browsers."""
    return HttpResponse(status, (("Content-Type", kind), *SAFE, *more), body)


def as_json(found: object, status: int = 200, *more: tuple[str, str]) -> HttpResponse:
    """Return a JSON response."""
    return respond(status, json.dumps(found).encode(), "application/json", *more)


def refuse(status: int, why: str, code: str = "INVALID_REQUEST") -> HttpResponse:
    """Return an error response with the reason."""
    return as_json({"error": why, "code": code}, status)


class WebApp:
    """Serves metrics. With *desks*, the snapshots of a cluster, the app also serves the page.

    *may_scrape* decides whether a principal may read the metrics.
    """

    def __init__(
        self,
        gate: Authentication,
        metrics: Callable[[], Metrics],
        *,
        desks: ClusterSnapshots | None = None,
        may_scrape: Callable[[str], bool] = lambda principal: True,
        writable: bool = False,
        title: str = "pymq",
    ) -> None:
        self.checks_host = True  # the server listens on loopback only
        self.is_secure = False  # the server uses TLS
        self._gate = gate
        self._metrics = metrics
        self._desks = desks
        self._may_scrape = may_scrape
        self._writable = writable
        self._title = title

    @property
    def is_open(self) -> bool:
        """Whether requests need no token."""
        return self._gate.is_open

    def close(self) -> None:
        """Close all clients."""
        if self._desks is not None:
            self._desks.close()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; errors become responses."""
        try:
            return self._answer(request)
        except QuotaExceeded as error:
            told = {"error": str(error), "code": error.code}
            return as_json(told, 429, ("Retry-After", str(-(-error.retry_ms // 1000))))
        except PymqError as error:
            return refuse(_status(error), str(error), error.code)
        except TimeoutError:
            return refuse(504, "it does not answer in time", "REQUEST_TIMEOUT")
        except Exception:
            log.exception("a request has failed")
            return refuse(500, "it has failed; the log says why", "INTERNAL_ERROR")

    def _answer(self, request: HttpRequest) -> HttpResponse:
        path, is_read = request.path, request.method in ("GET", "HEAD")
        if self.checks_host and not is_local_name(request.headers.get("host", "")):
            return refuse(421, "this is served to this machine only, by the name of localhost")
        if path == "/health" and is_read:
            return respond(200, b"ok\n", TEXT)
        if path in FILES and is_read and self._desks is not None:
            name, kind = FILES[path]
            return respond(200, _file(name), kind)
        if request.method == "POST":
            if not _is_ours(request):
                return refuse(403, "this comes from another site", "AUTHORIZATION_FAILED")
            if path == "/login":
                return self._sign_in(request)
            if path == "/logout":
                self._gate.sign_out(_cookie(request))
                return as_json({}, 200, self._set_cookie(request.port, "", 0))
        principal = self._gate.principal(_bearer(request), _cookie(request), request.address)
        if principal is None:
            return refuse(401, "a token is needed", AuthenticationFailed.code)
        if path == "/metrics" and is_read:
            if not self._may_scrape(principal):
                raise AuthorizationFailed(
                    f"{principal} may not Describe cluster, which the metrics are of"
                )
            return respond(200, str(self._metrics()).encode(), "text/plain; version=0.0.4")
        if self._desks is not None and path.startswith("/api/"):
            return self._api(self._desks.of(principal), principal, request)
        if path == "/" and is_read:
            return respond(200, b"metrics are at /metrics, the page is at a zkserver\n", TEXT)
        return refuse(404, "there is nothing here", "NOT_FOUND")

    def _sign_in(self, request: HttpRequest) -> HttpResponse:
        token = _object(request.body).get("token")
        cookie = self._gate.sign_in(token, request.address) if isinstance(token, str) else None
        if cookie is None:
            return refuse(401, "this token is unknown", AuthenticationFailed.code)
        return as_json({}, 200, self._set_cookie(request.port, cookie, round(SESSION_S)))

    def _set_cookie(self, port: int, cookie: str, seconds: int) -> tuple[str, str]:
        flags = f"Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        secure = "; Secure" if self.is_secure else ""
        return "Set-Cookie", f"{_cookie_name(port)}={cookie}; {flags}{secure}"

    def _api(self, desk: ClusterSnapshot, principal: str, request: HttpRequest) -> HttpResponse:
        query, name = request.query, request.path.removeprefix("/api/")
        if request.method == "POST":
            if not self._writable:
                return refuse(403, "this page may only be looked at", "AUTHORIZATION_FAILED")
            return as_json(desk.change(name, _object(request.body)))
        if name == "state":
            state = desk.state()
            about = {
                "age_s": desk.age_s,
                "title": self._title,
                "writable": self._writable,
                "principal": principal,
                "can_sign_out": not self._gate.is_open,
            }
            return as_json({**state, **about})
        if name == "topic":
            return as_json(desk.topic(query.get("name", "")))
        if name == "group":
            return as_json(desk.group(query.get("name", "")))
        if name == "records":
            return as_json(desk.records(query))
        if name == "letters":
            # This request reads with consumers, unlike the view of records, so a read-only page
            # does not have it.
            if not self._writable:
                return refuse(403, "this page may only be looked at", "AUTHORIZATION_FAILED")
            return as_json(desk.letters(query))
        return refuse(404, "there is nothing here", "NOT_FOUND")


def _file(name: str) -> bytes:
    return resources.files("pymq.web").joinpath("page", name).read_bytes()


def _bearer(request: HttpRequest) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _cookie_name(port: int) -> str:
    return f"pymq_{port}"  # cookies ignore ports, so nodes on one machine need different names


def _cookie(request: HttpRequest) -> str | None:
    # This code does not use http.cookies, which finds no cookie at all if one is malformed; and on
    # localhost the browser sends the cookies of all servers.
    wanted = _cookie_name(request.port)
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, found = pair.strip().partition("=")
        if name == wanted:
            return found
    return None


def _is_ours(request: HttpRequest) -> bool:
    """Whether a changing request comes from pymq's own page, or not from a browser."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    is_plain = request.headers.get("content-type", "").startswith("application/json")
    return is_plain and (origin is None or origin in (f"http://{host}", f"https://{host}"))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _status(error: PymqError) -> int:
    match error:
        case AuthorizationFailed():
            return 403
        case AuthenticationFailed():
            return 401
        case LookupError():
            return 404
        case ValueError():
            return 400
        case TimeoutError():
            return 504
        case Closed():
            return 503
        case _:
            return 503 if error.retriable else 409
