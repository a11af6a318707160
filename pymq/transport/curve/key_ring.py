"""The keys that a node knows; the node reads them again when their files change."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from pymq.core.types import CLIENT_PREFIX, check_name
from pymq.descriptors import lent
from pymq.errors import ConfigError
from pymq.transport.curve import key_files as files
from pymq.transport.curve.key_files import Pair, Public

log = logging.getLogger("pymq.security")

REFRESH_S = 1.0  # interval between two checks of the folder
ZKSERVER = "zkserver"  # the expected principal at an endpoint that no key file names

Seen = tuple[str, int, int, int]  # name, inode, size and time of change of a file


class KeyRing:
    """The key pair of this node and the public keys of all principals, from a folder.

    The node's own pair is that of *principal*. Without *principal*, the node's own pair is the
    first of these that exists: the pair of the principal whose key file names *endpoint*, the pair
    of *default* if its secret is in the folder, or the only pair in the folder.

    Raises:
        ConfigError: there is no such pair, or a file in the folder is invalid.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        principal: str | None = None,
        *,
        endpoint: str = "",
        default: str = "",
    ) -> None:
        self.folder = Path(folder)
        self.version = 0  # rises each time the keys are read
        self._looked_at = 0.0
        self._complaint = ""  # the last logged error
        self._publics: dict[str, Public] = {}  # public keys, by name
        self._principals: dict[str, str] = {}  # names of principals, by key
        self._endpoints: dict[str, Public] = {}
        try:
            self._seen = self._look()
        except OSError as error:
            raise ConfigError(f"no keys can be read in {folder}: {error.strerror}") from error
        self._load(self._seen)
        at = self._endpoints.get(endpoint)
        self.own = self._find_own(principal, [at.name] if at else [default])

    def _find_own(self, principal: str | None, defaults: Sequence[str]) -> Pair:
        suffix = files.SECRET
        if principal is not None:
            name = check_name(principal, "principal")
            return files.read_pair(self.folder / f"{name}{suffix}")
        there = sorted(path.name.removesuffix(suffix) for path in self.folder.glob(f"*{suffix}"))
        name = next((each for each in defaults if each in there), "")
        if not name and len(there) == 1:
            name = there[0]
        if not name:
            found = f"there are those of {', '.join(there)}" if there else "there is none"
            raise ConfigError(
                f"which secret key of {self.folder} is ours? Name a principal; {found}"
            )
        return files.read_pair(self.folder / f"{name}{suffix}")

    # --- questions ------------------------------------------------------------------------------

    def principal(self, key: str) -> str | None:
        """Return the principal of a key; None if the key is unknown or revoked."""
        return self._principals.get(key)

    def is_node(self, principal: str) -> bool:
        """Whether the principal is a broker or a zkserver, by its key file."""
        found = self._publics.get(principal)
        return found is not None and found.is_node

    def at(self, node: str, endpoint: str) -> Public | None:
        """Return the public key that *node* at *endpoint* must have; None if there is none.

        Usually this is the key with the node's name. If the node's name is its endpoint, this is
        the key whose file names that endpoint, or else the key of ``zkserver``.
        """
        if "://" not in node:
            return self._publics.get(node)
        return self._endpoints.get(endpoint) or self._publics.get(ZKSERVER)

    def may_be(self, principal: str, node: str) -> bool:
        """Whether a connection of *principal* may use the name of *node*.

        Without this check any client could get the messages for a broker.
        """
        if node.startswith(CLIENT_PREFIX) and node not in self._publics:
            return True
        found = self.at(node, node)
        return found is not None and found.name == principal

    def check_own(self, node: str, endpoint: str) -> None:
        """Check that this node's key is the key that its peers expect.

        Raises:
            ConfigError: peers expect another key, so they would refuse this node.
        """
        found = self.at(node, endpoint)
        if found is None or found.key != self.own.public:
            expected = "a key that is missing" if found is None else f"the key of {found.name}"
            raise ConfigError(
                f"{node} at {endpoint} must have {expected} by the files in {self.folder}, "
                f"but has the key of {self.own.name}"
            )

    # --- reading --------------------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Read the folder again if the interval is over and files have changed.

        If a file is invalid, the old keys stay in use and the error is logged.
        """
        if now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        try:
            # Clients that use up all descriptors must not prevent a revocation.
            with lent():
                seen = self._look()
                if seen == self._seen:
                    return
                # After an error the node retries each second, because a revocation must not wait
                # for another change. The node logs the error once.
                self._load(seen)
        except (ConfigError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the old keys stay in use: %s", error)
            return
        self._seen, self._complaint = seen, ""
        log.info("keys were read again: %d are known", len(self._principals))

    def _look(self) -> frozenset[Seen]:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((files.PUBLIC, files.REVOKED)):
                    stat = entry.stat()
                    found.append((entry.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return frozenset(found)

    def _load(self, seen: frozenset[Seen]) -> None:
        paths = sorted(self.folder / name for name, *_ in seen)
        revoked: set[str] = set()
        for path in paths:
            if path.name.endswith(files.REVOKED):
                revoked.update(files.read_revoked(path))
        publics: dict[str, Public] = {}
        principals: dict[str, str] = {}
        endpoints: dict[str, Public] = {}
        for path in paths:
            if not path.name.endswith(files.PUBLIC):
                continue
            found = files.read_public(path)
            if found.key in revoked:
                continue
            if (other := principals.get(found.key)) is not None:
                raise ConfigError(f"{found.name} and {other} have the same key in {self.folder}")
            publics[found.name] = found
            principals[found.key] = found.name
            endpoints.update(dict.fromkeys(found.endpoints, found))
        self._publics, self._principals, self._endpoints = publics, principals, endpoints
        self.version += 1
