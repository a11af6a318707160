"""Addresses at which Kafka's clients connect: ``HOST:PORT``."""

from __future__ import annotations

import ipaddress

from pymq.errors import ConfigError


def is_of_this_machine(host: str) -> bool:
    """Whether only this machine reaches *host*."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``.

    Raises:
        ConfigError: *text* has another form; the message names the *option*.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{option}={text!r} must be HOST:PORT, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)
