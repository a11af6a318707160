"""The users file: the Kafka clients that authenticate with a name and a password.

::

    [alice]
    SCRAM-SHA-256 = "8192:SALT:STORED_KEY:SERVER_KEY"
    SCRAM-SHA-512 = "8192:SALT:STORED_KEY:SERVER_KEY"

The name is the principal in the policy. ``pymq keys kafka-user`` writes the file. A broker reads it
again when it changes, so that a user can be added or removed while the broker runs.
"""

from __future__ import annotations

import hmac
import logging
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pymq.access.rules import PRINCIPAL_MAX
from pymq.core.types import check_name
from pymq.descriptors import lent
from pymq.errors import ConfigError, InvalidName
from pymq.kafka.security.scram import (
    HASHES,
    ITERATIONS,
    SALT_BYTES,
    Verifier,
    make_verifier,
)

log = logging.getLogger("pymq.security")

USERS_BYTES_MAX = 4 << 20
REFRESH_S = 1.0  # interval between two checks of the file
Users = Mapping[str, Mapping[str, Verifier]]  # by name and mechanism


def load_users(path: Path) -> dict[str, dict[str, Verifier]]:
    """Read a users file.

    Raises:
        ConfigError: the file cannot be read, others can read it, or a line is malformed.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{path}: others may read it; run: chmod 600 {path}")
            data = file.read(USERS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > USERS_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {USERS_BYTES_MAX} bytes")
    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return {name: _user(path, name, each) for name, each in found.items()}


def _user(path: Path, name: str, found: Any) -> dict[str, Verifier]:
    try:
        check_name(name, "user name")
    except InvalidName as error:
        raise ConfigError(f"{path}: {error.message}") from None
    if len(name) > PRINCIPAL_MAX or not isinstance(found, dict) or not found:
        raise ConfigError(f"{path}: [{name}] is no user with a verifier for each mechanism")
    verifiers = {}
    for mechanism, text in found.items():
        if mechanism not in HASHES or not isinstance(text, str):
            raise ConfigError(f"{path}: [{name}]: {mechanism} is none of {', '.join(HASHES)}")
        try:
            verifiers[mechanism] = Verifier.parse(text, mechanism)
        except ValueError as error:
            raise ConfigError(f"{path}: [{name}]: {mechanism}: {error}") from None
    return verifiers


def write_users(path: Path, users: Users) -> None:
    """Replace a users file, durably; only its owner may read it."""
    lines = []
    for name, verifiers in sorted(users.items()):
        lines.append(f'["{name}"]\n')
        lines += [f'{mechanism} = "{found}"\n' for mechanism, found in sorted(verifiers.items())]
        lines.append("\n")
    new = path.with_name(f"{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def new_user(password: str, random: Callable[[int], bytes] = os.urandom) -> dict[str, Verifier]:
    """Return the verifiers of a password, with a salt for each mechanism."""
    return {
        mechanism: make_verifier(password, mechanism, random(SALT_BYTES)) for mechanism in HASHES
    }


class UsersFile:
    """The users in a file; it is read again when it changes.

    Raises:
        ConfigError: the file cannot be read, or is malformed.
    """

    def __init__(self, path: str | os.PathLike[str], secret: bytes) -> None:
        self.path = Path(path)
        self._secret = secret  # for the salts of users that do not exist
        self._looked_at = 0.0
        self._complaint = ""  # the last logged error
        self._stamp = self._look()
        self._users: Users = load_users(self.path)

    def verifier(self, mechanism: str, name: str) -> Verifier:
        """Return the verifier of a user, or one that no password fits.

        An unknown name always gets the same salt, as a known one does.
        """
        found = self._users.get(name, {}).get(mechanism)
        if found is not None:
            return found
        salt = hmac.digest(self._secret, name.encode(), "sha256")[:SALT_BYTES]
        return Verifier(ITERATIONS, salt, b"", b"")

    def plain(self, name: str, password: str) -> bool:
        """Whether *password* is the user's; takes some milliseconds, also for unknown users."""
        mechanism = next(iter(self._users.get(name, {})), "SCRAM-SHA-256")
        return self.verifier(mechanism, name).fits(password, mechanism)

    def refresh(self, now: float) -> None:
        """Read the file again if the interval is over and it has changed.

        If it is malformed, the users that were known stay, and the error is logged.
        """
        if now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        stamp = self._look()
        if stamp == self._stamp:
            return
        try:
            with lent():
                users = load_users(self.path)
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the known users stay in use: %s", error)
            return
        self._users, self._stamp, self._complaint = users, stamp, ""
        log.info("users were read again: %d", len(users))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
