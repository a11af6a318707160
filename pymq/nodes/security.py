"""Access to a node: keys, policy, connection limits and the audit log."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from pymq.access.audit import Audit, AuditedRequest
from pymq.access.grants import Grants
from pymq.access.guard import Guard
from pymq.access.requirements import Requirement
from pymq.access.rules import Policy, load_policy
from pymq.core.message import Message
from pymq.core.values import value
from pymq.descriptors import lent
from pymq.errors import ConfigError
from pymq.nodes.clocks import monotonic_ms, wall_ms
from pymq.nodes.remote import uses_zeromq
from pymq.transport.base import (
    Gate,
    OnRefused,
    Transport,
    TransportQuotas,
    Tuning,
    zmq_needed,
)

log = logging.getLogger("pymq.security")

POLICY = "policy.toml"  # default file in the folder of keys
RELOAD_MS = 1_000  # interval of checks of the policy file


@value
class Access:
    """The security options of a node: keys and a policy, or explicitly none."""

    curve_dir: str | os.PathLike[str] | None = None
    policy: str | os.PathLike[str] | None = None
    audit: str | os.PathLike[str] | None = None
    insecure: bool = False
    connections_per_address: int | None = None  # None means 1,000
    connections_per_principal: int | None = None  # None means 500
    tls_dir: str | os.PathLike[str] | None = None

    @property
    def folder(self) -> str | os.PathLike[str] | None:
        """The folder of keys or certificates, if there is one; clients then have names."""
        return self.curve_dir if self.curve_dir is not None else self.tls_dir

    def check(self) -> dict[str, int]:
        """Check that the options are compatible; returns the limits of connections, by name.

        Raises:
            ConfigError: the options are not compatible.
        """
        given = {
            "per_address": self.connections_per_address,
            "per_principal": self.connections_per_principal,
        }
        chosen = {by: most for by, most in given.items() if most is not None}
        for by, most in chosen.items():
            if most < 1:
                raise ConfigError(f"connections_{by}={most} must be at least 1")
        if self.curve_dir is not None and self.tls_dir is not None:
            raise ConfigError("curve_dir and tls_dir exclude each other")
        if self.folder is None:
            for by in chosen:
                raise ConfigError(
                    f"connections_{by} needs keys or certificates: others are not limited"
                )
            if self.policy is not None or self.audit is not None:
                raise ConfigError("a policy needs keys: without curve_dir clients have no names")
        elif self.insecure:
            which = "curve_dir" if self.curve_dir is not None else "tls_dir"
            raise ConfigError(f"{which} and insecure exclude each other")
        return chosen


class SecurityOptions(TypedDict, total=False):
    """The keyword arguments of a node that become its :class:`Access`."""

    curve_dir: str | os.PathLike[str] | None
    policy: str | os.PathLike[str] | None
    audit: str | os.PathLike[str] | None
    insecure: bool
    connections_per_address: int | None
    connections_per_principal: int | None
    tls_dir: str | os.PathLike[str] | None


@value
class Http:
    """The HTTP options of a node.

    *cert* is a PEM file with a certificate and its key; *writable* allows changes on the page.
    """

    listen: str
    cert: str | os.PathLike[str] | None = None
    writable: bool = False


def open_transport(
    name: str | None,
    listen: str,
    advertise: str | None,
    default: str,
    access: Access,
    gate: Gate | None = None,
) -> tuple[Transport, NodeSecurity | None]:
    """Create the transport of a node that listens, and its guard if it has keys.

    *default* is the name of the node's key, if no key file names its endpoint. A *gate* replaces
    the guard and the policy.

    Raises:
        ConfigError: an option is wrong.
        MissingExtra: pyzmq is not installed.
    """
    limits = access.check()
    listen = listen.removeprefix("zmq+")
    if access.folder is None and access.insecure:
        log.warning("insecure: every client that can connect may do everything")
    door = None
    if access.folder is not None and gate is None:
        door = NodeSecurity(access.policy or Path(access.folder) / POLICY, access.audit)
    options = TransportOptions(
        listen=listen,
        advertise=advertise,
        gate=gate if door is None else door,
        tuning=Tuning(**limits),
        insecure=access.insecure,
    )
    if door is not None:
        options["on_refused"], options["on_send"], options["quotas"] = door.refuse, door.send, door
    try:
        if uses_zeromq(listen):
            return _zeromq(name, default, access, options), door
        return _tcp(name, access, options), door
    except BaseException:
        if door is not None:
            door.close()
        raise


class TransportOptions(TypedDict, total=False):
    """The arguments that all transports have in common."""

    listen: str
    advertise: str | None
    gate: Gate | None
    tuning: Tuning
    insecure: bool
    on_refused: OnRefused
    on_send: Callable[[str, Message], Message]
    quotas: TransportQuotas


def _zeromq(name: str | None, default: str, access: Access, options: TransportOptions) -> Transport:
    """Create a transport over ZeroMQ; see :func:`open_transport`."""
    with zmq_needed():
        from pymq.transport.curve.key_ring import KeyRing  # on demand: these modules load zmq
        from pymq.transport.zeromq.transport import ZmqTransport

    if access.tls_dir is not None:
        raise ConfigError(f"{options['listen']} is ZeroMQ; tls_dir is for tls://HOST:PORT")
    keys = None
    if access.curve_dir is not None:
        endpoint = options["advertise"] or options["listen"]
        keys = KeyRing(access.curve_dir, endpoint=endpoint, default=default)
    return ZmqTransport(name, keys=keys, **options)


def _tcp(name: str | None, access: Access, options: TransportOptions) -> Transport:
    """Create a transport over TCP or TLS; see :func:`open_transport`."""
    from pymq.transport.tcp.certificates import Certificates  # on demand: these load ssl
    from pymq.transport.tcp.transport import TcpTransport

    if access.curve_dir is not None:
        raise ConfigError(f"curve_dir is for ZeroMQ; {options['listen']} takes tls_dir, with TLS")
    certificates = None if access.tls_dir is None else Certificates(access.tls_dir)
    return TcpTransport(name, certificates=certificates, **options)


class NodeSecurity:
    """A gate that applies the policy of a file and reloads the file when it changes.

    Each refusal is written as a line of JSON to the file *audit*, or to the log ``pymq.security``.

    Raises:
        ConfigError: the policy cannot be read, or the audit log cannot be written.
    """

    def __init__(
        self,
        policy: str | os.PathLike[str],
        audit: str | os.PathLike[str] | None = None,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._path = Path(policy)
        self._clock = clock
        self._looked_at = clock()
        if not self._path.exists():
            raise ConfigError(
                f"there is no policy {self._path}, and without one every request is denied; "
                "'pymq keys policy' writes a first one"
            )
        self._stamp = self._look()
        self._complaint = ""  # last problem that was logged
        first = load_policy(self._path)
        self._file = -1 if audit is None else _open_audit(audit)
        self._audit = Audit(self._write, wall_ms)
        self._guard = Guard(first, self._audit, clock)
        self.send = self._guard.send  # the guard also counts and checks messages to clients

    def __call__(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        """Return the answers that refuse *message*, or None to accept it."""
        self._refresh()
        return self._guard(principal, source, message)

    def admit(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        """As a call, for a Kafka client, to which this node itself gives its producer ids."""
        self._refresh()
        return self._guard.admit(principal, source, message)

    def know(self, grants: Grants) -> None:
        """Check and assign grants of producer ids from now on."""
        self._guard.grants = grants

    def allows(self, principal: str, need: Requirement) -> bool:
        """Whether the policy in force gives *principal* a permission; any thread may call this."""
        return self._guard.allows(principal, need)

    @property
    def refused(self) -> int:
        """The number of refusals since the node started."""
        return self._audit.refused

    def fetch_wait_ms(self, principal: str) -> int:
        """Return the milliseconds until *principal* may get more records; 0 means now."""
        return self._guard.fetch_wait_ms(principal)

    def produce_wait_ms(self, principal: str) -> int:
        """Return the milliseconds until more may be written for *principal*; 0 means now."""
        return self._guard.produce_wait_ms(principal)

    def produced(self, principal: str, size: int) -> None:
        """Count bytes written for *principal* in addition to the bytes that it has sent."""
        self._guard.produced(principal, size)

    def refuse(self, principal: str, source: str) -> None:
        """Note a refused connection."""
        self._audit.refuse(
            AuditedRequest(principal, source, "connect", "authenticate", ""), self._clock()
        )

    def refuse_token(self, address: str) -> None:
        """Note an HTTP token that is unknown or was throttled; any thread may call this."""
        self._audit.refuse(AuditedRequest("", address, "http", "authenticate", ""), self._clock())

    def close(self) -> None:
        """Close the audit log."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked_at >= RELOAD_MS:
            self._looked_at = now
            self._reload()

    def _reload(self) -> None:
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return
            # Retry each second until the policy can be read, but log the problem only once.
            with lent():
                found: Policy = load_policy(self._path)
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the old policy stays in use: %s", error)
            return
        self._stamp, self._complaint = stamp, ""
        self._guard.replace(found)
        log.info("the policy was read again: %d rules", len(found.rules))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _write(self, line: str) -> None:
        if self._file < 0:
            fields = json.loads(line)
            log.warning(fields.pop("event"), extra={"fields": fields})
            return
        try:
            # Use one write per line, in append mode, so that lines of several nodes do not mix.
            os.write(self._file, line.encode() + b"\n")
        except OSError as error:
            log.error("the audit log cannot be written: %s", error)


def _open_audit(path: str | os.PathLike[str]) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"the audit log {path} cannot be opened: {error.strerror}") from error
