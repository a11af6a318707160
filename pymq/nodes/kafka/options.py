"""A broker's options for Kafka's clients.

============================  ====================================================================
options                       a client
============================  ====================================================================
``kafka_tls_dir``             proves a certificate, whose common name is its principal
``kafka_users``               authenticates by SASL, with a name and a password
both                          authenticates by SASL within TLS
none                          has no principal, and may do everything
============================  ====================================================================

Where pymq's own clients have to prove a principal, Kafka's clients have to do so, too. Without TLS
a broker listens for them on its own machine only, unless its operator says *insecure*.
"""

from __future__ import annotations

import logging
import os
from typing import TypedDict

from pymq.client.options import check_range
from pymq.core.batch.batch_validation import KAFKA_RECORDS_MAX
from pymq.core.values import value
from pymq.errors import ConfigError
from pymq.kafka.addresses import is_of_this_machine, parse_address
from pymq.nodes.security import Access

log = logging.getLogger("pymq.security")

PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100
ANY_HOST = ("", "0.0.0.0", "::")


@value
class KafkaPort:
    """How a broker listens for Kafka's clients: the options of a broker that begin with ``kafka``.

    *replicas* and *partitions* are for topics whose creator gives no number; *replicas* counts only
    as far as there are brokers.
    """

    listen: str
    advertise: str | None = None
    partitions: int = 1
    replicas: int = 3
    auto_create: bool = True
    batch_records_max: int = 100_000
    tls_dir: str | os.PathLike[str] | None = None
    users: str | os.PathLike[str] | None = None

    def check(self, access: Access) -> None:
        """Check the options, and that the broker may listen there.

        Raises:
            ConfigError: an option is wrong, or Kafka's clients would get more than others.
        """
        host, _ = parse_address(self.listen, "kafka")
        if self.advertise is not None:
            advertised, port = parse_address(self.advertise, "kafka_advertise")
            if advertised in ANY_HOST or not port:
                raise ConfigError(
                    f"kafka_advertise={self.advertise!r}: clients connect to it, so it must be a "
                    "host and a port"
                )
        elif host in ANY_HOST:
            raise ConfigError(
                f"kafka={self.listen!r} listens on all addresses: kafka_advertise=HOST:PORT says "
                "which one clients connect to"
            )
        check_range("kafka_partitions", self.partitions, 1, PARTITIONS_MAX)
        check_range("kafka_replicas", self.replicas, 1, REPLICAS_MAX)
        check_range("kafka_batch_records_max", self.batch_records_max, 1, KAFKA_RECORDS_MAX)
        proves = self.tls_dir is not None or self.users is not None
        if access.folder is not None and not proves:
            which = "curve_dir" if access.curve_dir is not None else "tls_dir"
            raise ConfigError(
                f"kafka with {which} needs kafka_tls_dir, kafka_users or both: Kafka's clients "
                "have to prove a principal, as others do"
            )
        if self.tls_dir is not None or is_of_this_machine(host):
            return
        if not access.insecure:
            raise ConfigError(
                f"kafka={self.listen!r} is open to the network, and nothing is encrypted: give "
                "kafka_tls_dir, listen on 127.0.0.1, or say insecure"
            )
        if not proves:
            log.warning("insecure: every Kafka client that can connect may do everything")


class KafkaOptions(TypedDict, total=False):
    """The keyword arguments of a broker from which its :class:`KafkaPort` is made."""

    kafka: str | None
    kafka_advertise: str | None
    kafka_partitions: int
    kafka_replicas: int
    kafka_auto_create: bool
    kafka_batch_records_max: int
    kafka_tls_dir: str | os.PathLike[str] | None
    kafka_users: str | os.PathLike[str] | None


def kafka_port(options: KafkaOptions) -> KafkaPort | None:
    """Return the options of a broker for Kafka's clients; None if it does not listen for them.

    Raises:
        ConfigError: there is no address, but other options.
    """
    listen = options.get("kafka")
    if listen is None:
        if any(found is not None for found in options.values()):
            raise ConfigError("options for Kafka's clients need kafka=HOST:PORT")
        return None
    given = {name.removeprefix("kafka_"): found for name, found in options.items()}
    del given["kafka"]
    return KafkaPort(listen, **given)  # type: ignore[arg-type] # each has the type of its field
