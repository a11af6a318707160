"""Checks what a broker advertises to Kafka's clients."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

from pymq.cli.diagnosis.checks import Finding, fail, ok
from pymq.errors import ConfigError
from pymq.kafka.addresses import parse_address

ANSWER_S = 5.0
# ApiVersions, version 0, with the correlation id 7, of a client without a name.
_ASK = struct.pack(">ihhih", 10, 18, 0, 7, 0)
_HEAD = struct.Struct(">iihi")  # length, correlation id, code, number of APIs


def kafka_check(name: str, address: str) -> Finding:
    """Check that a broker speaks Kafka's protocol at the address that clients connect to."""
    name = f"{name} {address}"
    advertise = "clients connect to what a broker advertises: start it with a --kafka-advertise"
    advertise += " HOST:PORT that works from here"
    head = b""
    try:
        host, port = parse_address(address, "the address")
        with socket.create_connection((host, port), ANSWER_S) as connection:
            connection.sendall(_ASK)
            with suppress(ConnectionError):
                head = connection.recv(_HEAD.size, socket.MSG_WAITALL)
        if len(head) < _HEAD.size and (found := _tls_check(name, host, port)) is not None:
            return found
    except ConfigError as error:
        return fail(name, error.message, advertise)
    except TimeoutError:
        return fail(name, f"no answer in {ANSWER_S:g} s", advertise)
    except OSError as error:
        return fail(name, f"no connection: {error.strerror or error}", advertise)
    if len(head) < _HEAD.size:
        return fail(name, "the connection was closed", f"{advertise}; see the broker's log")
    _, correlation, code, count = _HEAD.unpack(head)
    if (correlation, code) != (7, 0):
        return fail(name, "what answers does not speak Kafka's protocol", advertise)
    return ok(name, f"it answers, with {count} APIs")


def _tls_check(name: str, host: str, port: int) -> Finding | None:
    """Check a port as a client of TLS without a certificate; None if it does not speak TLS.

    The doctor does not know which authorities the clients trust, so it checks no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    head, is_open = b"", False
    with (
        suppress(ssl.SSLError, ConnectionError),
        socket.create_connection((host, port), ANSWER_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as encrypted,
    ):
        is_open = True
        encrypted.sendall(_ASK)
        head = encrypted.recv(_HEAD.size)
    if not is_open:
        return None
    if len(head) < _HEAD.size:
        return ok(name, "it speaks TLS, and clients have to prove a certificate")
    return ok(name, f"it answers over TLS, with {_HEAD.unpack(head)[-1]} APIs")
