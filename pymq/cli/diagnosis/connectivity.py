"""Checks why a client cannot connect: checks name, port, greeting and keys of each endpoint."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence

from pymq.cli.diagnosis.checks import Finding, fail, ok, warn
from pymq.cli.units import size_text
from pymq.errors import (
    AuthorizationFailed,
    ConfigError,
    NotController,
    PymqError,
    RequestTimeout,
)
from pymq.nodes.embedded import METADATA

CONNECT_S = 3.0
ANSWER_S = 5.0
FREE_MIN = 1 << 30  # warn if a disk has less free bytes than this, ...
FREE_SHARE = 0.05  # ... or less than this share of the disk's size; the smaller limit applies

# A peer's first 64 bytes are signature, version and mechanism (ZMTP 3.1, rfc.zeromq.org/spec/37). A
# peer sends all 64 bytes once it has our version. This check never sends a mechanism, because a
# peer stops answering after a mechanism that the peer does not accept.
_SIGNATURE_AND_VERSION = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03"
_GREETING_BYTES = 64


def endpoint_checks(what: str, endpoint: str, *, has_keys: bool) -> Iterator[Finding]:
    """Check that a compatible node answers at an endpoint; stop at the first failure."""
    name = f"{what} {endpoint}"
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        addresses: list[tuple[int, object]] = [(socket.AF_UNIX, rest)]
    else:
        host, _, port = rest.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            yield fail(
                name,
                f"the name {host!r} cannot be resolved: {error}",
                "check the spelling, and this machine's name service (DNS, /etc/hosts)",
            )
            return
        addresses = [(int(family), address) for family, _, _, _, address in found]
    connection, why = _connect(addresses)
    if connection is None:
        yield fail(name, *why)
        return
    with connection:
        if scheme == "pymq":
            yield from _greet_tcp(name, connection)
        elif scheme == "tls":
            # The handshake needs certificates; the question to the zkserver shows its outcome.
            yield ok(name, "a program listens there")
        else:
            yield from _greet(name, connection, has_keys=has_keys)


def _connect(addresses: list[tuple[int, object]]) -> tuple[socket.socket | None, tuple[str, str]]:
    """Connect to the first address that accepts; if none does, return the problem and the next
    step.
    """
    why = ("no endpoint to connect to", "give an endpoint")
    for family, address in addresses:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(address)  # type: ignore[arg-type] # as getaddrinfo gave it
        except OSError as error:
            connection.close()
            why = _unconnected(error)
        else:
            return connection, why
    return None, why


def _unconnected(error: OSError) -> tuple[str, str]:
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return (
            "no program listens there",
            "start the node, or correct the address; it logs one line when it is ready",
        )
    if isinstance(error, TimeoutError):
        return (
            f"no answer within {CONNECT_S:g} s",
            "a firewall drops the packets, or the machine is down or has another address",
        )
    return f"connecting failed: {error}", "check the network route to that machine"


def _greet(name: str, connection: socket.socket, *, has_keys: bool) -> Iterator[Finding]:
    """Check that the peer speaks ZeroMQ, and whether it requires keys."""
    data = b""
    try:
        connection.sendall(_SIGNATURE_AND_VERSION)
        while len(data) < _GREETING_BYTES and (more := connection.recv(_GREETING_BYTES)):
            data += more
    except OSError:
        pass  # judge by the bytes received so far
    if len(data) < 32 or data[0] != 0xFF or data[9] & 1 == 0:
        said = f"says {data[:20]!r}" if data else "says nothing"
        yield fail(
            name,
            f"the program that listens there does not speak ZeroMQ: it {said}",
            "another program uses the port, or a proxy is in between: correct the address",
        )
        return
    mechanism = data[12:32].rstrip(b"\0").decode("ascii", "replace")
    if mechanism == "CURVE" and not has_keys:
        yield fail(
            name,
            "it requires keys (CURVE), and none were given",
            "give --curve-dir DIR with the cluster's public keys and your secret one "
            "(docs/security.md)",
        )
    elif mechanism != "CURVE" and has_keys:
        yield fail(
            name,
            f"keys were given, and it uses none ({mechanism})",
            "leave out --curve-dir, or start the nodes with keys: without them anyone may connect",
        )
    else:
        yield ok(name, f"it listens and speaks ZeroMQ {data[10]}.{data[11]} with {mechanism}")


def _greet_tcp(name: str, connection: socket.socket) -> Iterator[Finding]:
    """Check that the peer speaks pymq's protocol over TCP."""
    from pymq.transport.tcp.stream import MAGIC, greeting  # on demand, as most need no network

    data = b""
    try:
        connection.sendall(greeting(f"client-doctor/{os.urandom(8).hex()}".encode()))
        while len(data) < len(MAGIC) and (more := connection.recv(_GREETING_BYTES)):
            data += more
    except OSError:
        pass  # judge by the bytes received so far
    if data.startswith(MAGIC):
        yield ok(name, "it listens and speaks pymq's protocol over TCP")
        return
    said = f"says {data[:20]!r}" if data else "says nothing"
    yield fail(
        name,
        f"the program that listens there does not speak pymq's protocol over TCP: it {said}",
        "a node with --listen tcp://HOST:PORT speaks ZeroMQ: its URL is zmq+tcp://HOST:PORT; "
        "tls:// is needed where --listen tls:// is used",
    )


# --- keys ---------------------------------------------------------------------------------------


def key_checks(
    curve_dir: str, principal: str | None, endpoints: Sequence[str]
) -> Iterator[Finding]:
    """Check that the folder has our own key and a public key of each zkserver."""
    from pymq.transport.curve.key_ring import KeyRing  # on demand: it loads zmq

    try:
        keys = KeyRing(curve_dir, principal)
    except ConfigError as error:
        yield fail("keys", str(error), "'pymq keys list DIR' shows what is there")
        return
    yield ok("keys", f"our name is {keys.own.name}, from the secret key in {curve_dir}")
    for endpoint in endpoints:
        if keys.at(endpoint, endpoint) is None:
            yield fail(
                "keys",
                f"{curve_dir} has no public key for the zkserver at {endpoint}",
                "copy zkserver.pub into it, or the .pub file that names this endpoint",
            )


# --- zkservers ----------------------------------------------------------------------------------


def answer_check(endpoint: str, error: PymqError | None, trouble: str) -> Finding:
    """Evaluate a zkserver's description of itself."""
    name = f"zkserver {endpoint}"
    match error:
        case None:
            return ok(name, "it answers, and is the active zkserver")
        case NotController():
            active = error.details.get("controller")
            known = f"{active} is the active zkserver" if active else "it knows no active zkserver"
            return ok(name, f"it answers, and is a standby: {known}")
        case AuthorizationFailed():
            return warn(
                name,
                f"it answers, and refuses to describe the cluster: {error}",
                "topics can still be used; to see more, allow Describe on cluster in policy.toml",
            )
        case RequestTimeout() if "does not know our key" in trouble:
            return fail(
                name,
                f"it refuses our key: {trouble}",
                "copy our .pub file to its folder of keys, unless the key was revoked",
            )
        case RequestTimeout() if trouble:
            return fail(name, f"it does not answer: {trouble}", "compare keys and versions")
        case RequestTimeout():
            return fail(
                name,
                f"it accepts connections and does not answer within {ANSWER_S:g} s",
                "read its log: it may wait for its coordinator, or have another version",
            )
        case _:
            return fail(name, f"{error} ({error.code})", "read its log")


# --- folders ------------------------------------------------------------------------------------


def folder_checks(folder: str) -> Iterator[Finding]:
    """Check that a folder can be opened here, without creating one."""
    name = f"folder {folder}"
    metadata = os.path.join(folder, METADATA)
    if not os.path.isdir(folder):
        yield fail(
            name,
            "there is no such folder",
            "correct the path; 'pymq topic create' creates a queue",
        )
        return
    if not os.path.exists(metadata):
        is_brokers = os.path.exists(os.path.join(folder, "broker.cbor"))
        if is_brokers:
            yield fail(
                name,
                "it is the folder of a broker in a cluster",
                "give the URL of the cluster's zkservers: zmq+tcp://HOST:PORT",
            )
        else:
            yield fail(name, f"it holds no queue: {metadata} is missing", "name another folder")
        return
    if not os.access(folder, os.W_OK):
        yield fail(name, "this user may not write to it", "change its owner or mode")
        return
    yield ok(name, "it holds a queue and is writable")
    yield disk_check(folder)


def disk_check(folder: str) -> Finding:
    """Check the free space of a folder's disk."""
    usage = shutil.disk_usage(folder)
    found = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
    if usage.free < min(FREE_MIN, FREE_SHARE * usage.total):
        return warn(
            "disk",
            found,
            "writes stop when the disk is full: free some space, or lower retention_bytes of "
            "topics",
        )
    return ok("disk", found)
