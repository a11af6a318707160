"""Opens the address at which a broker's process listens for Kafka's clients."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from pymq.core.observe.metrics import Metrics
from pymq.errors import ConfigError
from pymq.kafka.addresses import parse_address
from pymq.kafka.door import KafkaDoor, KafkaListener
from pymq.kafka.endpoint import BACKLOG, make_gate
from pymq.kafka.metrics import measure
from pymq.kafka.security.caller import DoorGuard
from pymq.kafka.security.sasl import Sasl
from pymq.kafka.security.tls import DoorTls
from pymq.kafka.security.users import UsersFile
from pymq.nodes.kafka.options import KafkaPort


class BrokerKafka:
    """A broker's gate and door, and the address that its clients connect to."""

    def __init__(self, port: KafkaPort, broker: str, zkservers: Sequence[str]) -> None:
        self.gate = make_gate(
            broker,
            zkservers,
            {},
            partitions=port.partitions,
            auto_create=port.auto_create,
            records_max=port.batch_records_max,
            replicas=port.replicas,
            asks_brokers=True,
            sasl=None if port.users is None else Sasl(UsersFile(port.users, os.urandom(32))),
        )
        tls = None
        if port.tls_dir is not None:
            tls = DoorTls(port.tls_dir, asks_certificates=port.users is None)
        host, number = parse_address(port.listen, "kafka")
        try:
            self._socket = _listen(host, number)
        except OSError as error:
            raise ConfigError(f"kafka={port.listen!r}: {os.strerror(error.errno or 0)}") from None
        bound = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.advertised = port.advertise or f"{shown}:{bound}"
        self.name = f"{broker}.kafka"  # a machine of the broker's node, so answers come back
        self.listener = KafkaListener(self.name, self.gate, self._socket, tls)
        self.door = KafkaDoor([self.listener], lambda: None)  # for the node's thread

    def obey(self, guard: DoorGuard) -> None:
        """Let Kafka's clients do what *guard* allows, from the first connection on."""
        self.gate.guard = guard

    def measure(self, out: Metrics) -> None:
        """Add the metrics of Kafka's clients."""
        measure(self.door, out)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    (family, _, _, _, address), *_ = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)
