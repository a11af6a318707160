"""Reads and writes key files: a folder with a key pair for each principal, and revoked keys.

* ``NAME.pub``: the public key, for all nodes. TOML.
* ``NAME.secret``: the secret key, which only NAME itself may have. TOML.
* ``NAME.revoked``: the revoked keys of that name. A ``.revoked`` file takes precedence over all
  ``.pub`` files. So a key is revoked by an additional file, since copying a file to all nodes is
  easier than deleting one on all nodes.

A name is a principal: a person, an application, or a node, whose key has the node's name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from pymq.core.types import check_name
from pymq.core.values import value
from pymq.errors import ConfigError

PUBLIC, SECRET, REVOKED = ".pub", ".secret", ".revoked"
TOKEN = ".token"  # suffix of tokens for HTTP (pymq.web.authentication)
FILE_BYTES_MAX = 65_536
_Z85 = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")


@value
class Public:
    """The public part of a principal; keys are written in Z85 (ZeroMQ RFC 32)."""

    name: str
    key: str
    is_node: bool = False  # whether the principal is a broker or a zkserver
    endpoints: tuple[str, ...] = ()  # endpoints, for nodes whose names are their endpoints


class Pair(NamedTuple):
    """The keys of a principal."""

    name: str
    public: str
    secret: str

    def __repr__(self) -> str:
        # Leave the secret out of logs.
        return f"Pair({self.name!r}, {self.public!r}, secret=...)"


def make_pair(name: str) -> Pair:
    """Make a new key pair."""
    public, secret = zmq.curve_keypair()
    return Pair(name, public.decode(), secret.decode())


def write_pair(folder: Path, pair: Pair, public: Public) -> None:
    """Write both files; create the folder if it is missing.

    Raises:
        ConfigError: a key of that name already exists.
        OSError: the files cannot be written.
    """
    check_name(pair.name, "principal")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"public = '{public.key}'"]
    if public.is_node:
        lines.append("node = true")
    if public.endpoints:
        listed = ", ".join(f"'{endpoint}'" for endpoint in public.endpoints)
        lines.append(f"endpoints = [{listed}]")
    if (folder / f"{pair.name}{PUBLIC}").exists():
        raise ConfigError(f"{folder} has a key of {pair.name!r} already; revoke that first")
    secret = [
        f"# The secret key of {pair.name}: only its owner may read this file.",
        f"public = '{pair.public}'",
        f"secret = '{pair.secret}'",
    ]
    path = folder / f"{pair.name}{SECRET}"
    try:
        _write(path, secret, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, without its {PUBLIC} file: restore that, or remove this one"
        ) from None
    try:
        _write(folder / f"{pair.name}{PUBLIC}", lines, 0o644)
    except BaseException:
        path.unlink()  # with only one of the two files, the next try would fail
        raise


def _write(path: Path, lines: Sequence[str], mode: int) -> None:
    # Set the mode when the file is created, so that others can never read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())


def revoke(folder: Path, name: str) -> str:
    """Revoke the key of *name*, remove its files and its token's file, and return the key.

    Raises:
        ConfigError: *name* has no key.
    """
    check_name(name, "principal")
    path = folder / f"{name}{PUBLIC}"
    if not path.exists():
        raise ConfigError(f"{folder} has no key of {name!r}")
    key = read_public(path).key
    revoked = folder / f"{name}{REVOKED}"
    keys = [*(read_revoked(revoked) if revoked.exists() else ()), key]
    # Write a new file and rename it, so that readers see either the old or the new content.
    new = folder / f".{name}{REVOKED}.new"
    new.unlink(missing_ok=True)
    _write(
        new, ["public = [" + ", ".join(f"'{each}'" for each in dict.fromkeys(keys)) + "]"], 0o644
    )
    new.replace(revoked)
    path.unlink()
    for suffix in (SECRET, TOKEN):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)
    return key


def read_public(path: Path) -> Public:
    """Read a ``.pub`` file.

    Raises:
        ConfigError: the file is invalid or unreadable.
    """
    found = _read(path, {"public", "node", "endpoints"})
    is_node, endpoints = found.get("node", False), found.get("endpoints", [])
    if type(is_node) is not bool or not isinstance(endpoints, list):
        raise ConfigError(f"{path}: 'node' must be true or false, 'endpoints' a list")
    name = check_name(path.name.removesuffix(PUBLIC), "principal")
    return Public(name, _key(path, found, "public"), is_node, tuple(map(str, endpoints)))


def read_revoked(path: Path) -> tuple[str, ...]:
    """Read a ``.revoked`` file and return its keys.

    Raises:
        ConfigError: the file is invalid or unreadable.
    """
    keys = _read(path, {"public"}).get("public")
    if not isinstance(keys, list):
        raise ConfigError(f"{path}: 'public' must be a list of keys")
    return tuple(_key(path, {"public": key}, "public") for key in keys)


def read_pair(path: Path) -> Pair:
    """Read a ``.secret`` file.

    Raises:
        ConfigError: the file is invalid or unreadable, or users other than its owner may read it.
    """
    found = _read(path, {"public", "secret"}, is_secret=True)
    public, secret = _key(path, found, "public"), _key(path, found, "secret")
    if zmq.curve_public(secret.encode()).decode() != public:
        raise ConfigError(f"{path}: the public key does not belong to the secret one")
    return Pair(check_name(path.name.removesuffix(SECRET), "principal"), public, secret)


def _read(path: Path, known: set[str], *, is_secret: bool = False) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror
        is_gone = isinstance(error, FileNotFoundError)
        if is_secret and is_gone and path.with_suffix(REVOKED).exists():
            why = f"keys of {path.stem} were revoked; 'pymq keys make' makes another"
        raise ConfigError(f"{path} cannot be read: {why}") from error
    if is_secret and mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {mode & 0o777:o}): chmod 600 it")
    if mode & 0o002:
        raise ConfigError(
            f"{path} can be written by everybody (mode {mode & 0o777:o}): chmod o-w it"
        )
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError("it is too long")
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # Do not show the parser's message, because it may quote a line of a secret file.
        raise ConfigError(f"{path} is no key file" + ("" if is_secret else f": {error}")) from None
    if unknown := sorted(set(found) - known):
        raise ConfigError(f"{path}: {unknown[0]!r} is not known; there are {sorted(known)}")
    return found


def _key(path: Path, found: dict[str, Any], name: str) -> str:
    key = found.get(name)
    if not isinstance(key, str) or not _Z85.fullmatch(key):
        raise ConfigError(f"{path}: {name!r} must be a key of 40 characters in Z85")
    return key
