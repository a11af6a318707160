"""Parses and checks the address of a coordinator before anything is opened.

======================================================  ==========================================
``memory:``                                             a tree in this process, not stored
``sqlite:PATH``                                         one file, used by one process at a time
``zookeeper://HOST[:PORT][,HOST[:PORT]…][/ROOT][?…]``   a ZooKeeper ensemble
======================================================  ==========================================

The root is a chroot: all paths of the tree are below the root, so that several clusters can share
an ensemble. Options are ``session_ms``; ``auth_file``, the path of a file that holds one line
``user:password`` for digest authentication; and ``max_request_bytes``, which must be a little less
than the servers' ``jute.maxbuffer``.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

from pymq.core.values import value
from pymq.errors import ConfigError

__all__ = ["MemoryAddress", "SqliteAddress", "ZookeeperAddress", "parse", "read_credentials"]

DEFAULT_PORT = 2181
DEFAULT_SESSION_MS = 4_000  # ZooKeeper's shortest session with its default tick of 2 s
SESSION_MS = range(100, 600_001)
# ZooKeeper's limit 0xfffff, without the bytes that it adds to a request
DEFAULT_REQUEST_BYTES = 1_040_000
REQUEST_BYTES = range(1 << 16, 1 << 26)

_ROOT = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)


@value
class MemoryAddress:
    """``memory:``."""


@value
class SqliteAddress:
    """``sqlite:PATH``."""

    path: str


@value
class ZookeeperAddress:
    """``zookeeper://…``."""

    hosts: tuple[str, ...]  # each as "host:port"
    root: str = ""  # "/a/b"; or empty for ZooKeeper's own root
    session_ms: int = DEFAULT_SESSION_MS
    auth_file: str | None = None
    max_request_bytes: int = DEFAULT_REQUEST_BYTES


Address = MemoryAddress | SqliteAddress | ZookeeperAddress


def parse(url: str) -> Address:
    """Raises :class:`ConfigError`, which names the fault.

    Raises :class:`ConfigError` with the reason if *url* is invalid.
    """
    scheme, colon, rest = url.partition(":")
    match scheme if colon else "":
        case "memory":
            if rest:
                raise ConfigError(f"{url!r}: write just 'memory:', such a tree has no name")
            return MemoryAddress()
        case "sqlite":
            if not rest:
                raise ConfigError(f"{url!r} names no file; write sqlite:PATH")
            return SqliteAddress(rest)
        case "zookeeper" if rest.startswith("//"):
            return _zookeeper(url, rest[2:])
        case _:
            raise ConfigError(
                f"{url!r} is not a coordinator; write memory:, sqlite:PATH "
                "or zookeeper://HOST:PORT,HOST:PORT/ROOT"
            )


def _zookeeper(url: str, rest: str) -> ZookeeperAddress:
    where, _, options = rest.partition("?")
    hosts, slash, path = where.partition("/")
    root = (slash + path).rstrip("/")
    if "@" in hosts:
        raise ConfigError(
            "a coordinator's address may hold no password, since others can see it in the list of "
            "processes; write it into a file and add ?auth_file=PATH"
        )
    if _ROOT.fullmatch(root) is None or root.split("/")[1:2] == ["zookeeper"]:
        raise ConfigError(
            f"{url!r}: the root {root!r} must be names of [A-Za-z0-9._-] with '/' between them, "
            "and not ZooKeeper's own"
        )
    session_ms, request_bytes, auth_file = DEFAULT_SESSION_MS, DEFAULT_REQUEST_BYTES, None
    for name, text in parse_qsl(options, keep_blank_values=True):
        match name:
            case "session_ms":
                session_ms = _number(url, name, text, SESSION_MS)
            case "max_request_bytes":
                request_bytes = _number(url, name, text, REQUEST_BYTES)
            case "auth_file" if text:
                auth_file = text
            case _:
                raise ConfigError(
                    f"{url!r}: unknown option {name!r}; there are session_ms, auth_file and "
                    "max_request_bytes"
                )
    found = tuple(_host(url, host) for host in hosts.split(","))
    return ZookeeperAddress(found, root, session_ms, auth_file, request_bytes)


def _number(url: str, name: str, text: str, allowed: range) -> int:
    if not (text.isdecimal() and text.isascii() and int(text) in allowed):
        raise ConfigError(
            f"{url!r}: {name} must be {allowed.start} to {allowed.stop - 1}, not {text!r}"
        )
    return int(text)


def _host(url: str, text: str) -> str:
    found = _HOST.fullmatch(text)
    port = DEFAULT_PORT if found is None or found[2] is None else int(found[2])
    if found is None or not 0 < port < 65_536:
        raise ConfigError(f"{url!r}: {text!r} is not HOST or HOST:PORT")
    return f"{found[1]}:{port}"


def read_credentials(path: str) -> str:
    """Return the ``user:password`` in the file at *path*.

    Raises :class:`ConfigError` if the file cannot be read, is readable by all users, or has other
    content.
    """
    file = Path(path)
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the credentials in {path} cannot be read: {error}") from error
    if mode & 0o007:
        raise ConfigError(f"everybody can use the credentials in {path}; chmod it to 600")
    lines = text.splitlines()
    user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
    if not (user and colon and password):
        raise ConfigError(f"{path} must hold one line user:password, and nothing else")
    return lines[0]
