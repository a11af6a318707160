"""Opens an embedded queue for Kafka's clients: a gate and a port for each of its brokers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pymq.core.batch.kafka.batch import RECORDS_MAX, crc32c_function
from pymq.core.batch.kafka.codecs import check_installed
from pymq.core.observe.metrics import Metrics
from pymq.errors import ConfigError
from pymq.kafka.addresses import is_of_this_machine
from pymq.kafka.codes import Code
from pymq.kafka.door import KafkaListener
from pymq.kafka.door_thread import DoorDriver, DoorThread
from pymq.kafka.gate import KafkaGate
from pymq.kafka.metrics import measure
from pymq.kafka.security.sasl import Sasl
from pymq.kafka.shared.conversation import Endpoint

BACKLOG = 128


class KafkaEndpoint:
    """The addresses at which Kafka's clients connect to a queue; ``with`` closes them."""

    def __init__(
        self, door: DoorThread, gates: Sequence[KafkaGate], addresses: Sequence[tuple[str, int]]
    ) -> None:
        self._door = door
        self._gates = gates
        self.addresses = tuple(addresses)
        """Host and port of each broker."""

    @property
    def bootstrap(self) -> str:
        """The option ``bootstrap.servers`` for clients."""
        return ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.addresses)

    def fail(self, topic: str, code: Code, times: int) -> None:
        """Refuse the next batches for a topic; for tests. The caller holds the driver's lock."""
        for gate in self._gates:
            gate.refuse(topic, code, times)

    def metrics(self) -> Metrics:
        """Return the metrics of Kafka's clients; the driver's lock is held."""
        found = Metrics()
        measure(self._door.door, found)
        return found

    def close(self) -> None:
        """Close all connections and stop listening; closing twice is allowed."""
        self._door.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KafkaEndpoint {self.bootstrap}>"


def open_endpoint(
    driver: DoorDriver,
    controller: str,
    brokers: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    partitions: int = 1,
    auto_create: bool = True,
    records_max: int = RECORDS_MAX,
) -> KafkaEndpoint:
    """Listen for Kafka's clients.

    Args:
        driver: of the loop that drives the brokers.
        controller: the name of the zkserver.
        brokers: the names of the brokers.
        host: the address to listen on, and to announce to clients.
        port: of the first broker; the next brokers get the next ports. 0: any free ports.
        partitions: for new topics, if a request names no number.
        auto_create: whether a client that asks for an unknown topic creates it.
        records_max: of a batch.

    Raises:
        MissingExtra: a package is not installed.
        ConfigError: *host* is not of this machine alone.
        OSError: the address is in use.
    """
    _check_host(host)
    with ExitStack() as stack:
        sockets = []
        for number in range(len(brokers)):
            found = _listen(host, port + number if port else 0)
            stack.callback(found.close)
            sockets.append(found)
        ports = [each.getsockname()[1] for each in sockets]
        endpoints = {
            name: Endpoint(number, host, ports[number]) for number, name in enumerate(brokers)
        }
        listeners = [
            KafkaListener(
                f"kafka-{ports[number]}",  # unlike those of another endpoint
                make_gate(
                    name,
                    [controller],
                    endpoints,
                    partitions=partitions,
                    auto_create=auto_create,
                    records_max=records_max,
                ),
                sockets[number],
            )
            for number, name in enumerate(brokers)
        ]
        door = DoorThread(driver, listeners)
        stack.pop_all()
    gates = [listener.gate for listener in listeners]
    return KafkaEndpoint(door, gates, [(host, number) for number in ports])


def make_gate(
    broker: str,
    controllers: Sequence[str],
    endpoints: dict[str, Endpoint],
    *,
    partitions: int,
    auto_create: bool,
    records_max: int,
    replicas: int = 1,
    asks_brokers: bool = False,
    sasl: Sasl | None = None,
) -> KafkaGate:
    """Return the gate of a broker in this process.

    Raises:
        MissingExtra: a package is not installed.
    """
    crc32c = crc32c_function()
    check_installed()
    return KafkaGate(
        broker,
        controllers,
        endpoints,
        crc32c,
        _wall_ms,
        _new_id,
        default_partitions=partitions,
        auto_create=auto_create,
        records_max=records_max,
        default_replicas=replicas,
        asks_brokers=asks_brokers,
        sasl=sasl,
    )


def _check_host(host: str) -> None:
    """Check that only this machine can reach *host*: this endpoint has no TLS.

    Raises:
        ConfigError: other machines can reach *host*, too.
    """
    if not is_of_this_machine(host):
        raise ConfigError(
            f"host={host!r}: Kafka's clients are neither authenticated nor encrypted, so the host "
            "must be one of this machine alone, such as 127.0.0.1"
        )


def _listen(host: str, port: int) -> socket.socket:
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _new_id() -> str:
    return os.urandom(16).hex()
