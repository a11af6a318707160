"""The command line options of a broker and of a zkserver, and their conversion to arguments.

``pymq broker``, ``pymq zkserver`` and the programs in ``examples/`` share these options. Parse the
options with :func:`pymq.nodes.service.parse`, which also reads a configuration file, and pass the
result of :func:`broker_arguments` or :func:`zkserver_arguments` to the node.
"""

from __future__ import annotations

import argparse
from typing import Any

from pymq.nodes.service import common, endpoints, limits, secure, web


def broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a broker."""
    parser.add_argument("--name", required=True, help="the broker's own name; it never changes")
    _addresses(parser)
    parser.add_argument(
        "--zkserver", required=True, type=endpoints, help="tcp://HOST:PORT, or several, with commas"
    )
    parser.add_argument("--data", required=True, help="the broker's folder, or memory:")
    parser.add_argument("--rack", help="brokers of one rack fail together")
    parser.add_argument(
        "--copy-bytes-s",
        type=int,
        default=50 << 20,
        help="limit of bytes a second for blocks copied to the broker; 0: none (%(default)s)",
    )
    secure(parser)
    limits(parser)
    web(parser)
    _kafka(parser)


def broker_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`pymq.Broker` for parsed options."""
    names = "name data rack copy_bytes_s fetch_max_bytes fetch_memory_bytes group_max_members"
    own = {name: getattr(args, name) for name in names.split()}
    # Only what was given: without an address for Kafka's clients there are no other options.
    kafka = {name: found for name in _KAFKA if (found := getattr(args, name)) is not None}
    if args.kafka_no_auto_create:
        kafka["kafka_auto_create"] = False
    return {**own, "zkservers": args.zkserver, **common(args), **kafka}


_KAFKA = (
    "kafka",
    "kafka_advertise",
    "kafka_partitions",
    "kafka_replicas",
    "kafka_batch_records_max",
    "kafka_tls_dir",
    "kafka_users",
)


def _kafka(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", metavar="HOST:PORT", help="listen for Kafka's clients there")
    parser.add_argument(
        "--kafka-advertise", metavar="HOST:PORT", help="where they reach it, if not at --kafka"
    )
    parser.add_argument(
        "--kafka-partitions",
        type=int,
        metavar="N",
        help="of a topic that a Kafka client creates without a number (1)",
    )
    parser.add_argument(
        "--kafka-replicas",
        type=int,
        metavar="N",
        help="of such a partition, as far as there are brokers (3)",
    )
    parser.add_argument(
        "--kafka-no-auto-create",
        action="store_true",
        help="do not create a topic that a Kafka client asks for",
    )
    parser.add_argument(
        "--kafka-batch-records-max",
        type=int,
        metavar="N",
        help="records in a batch of a Kafka client (100000)",
    )
    parser.add_argument(
        "--kafka-tls-dir",
        metavar="DIR",
        help="certificates: Kafka's clients use TLS, and prove a certificate or ...",
    )
    parser.add_argument(
        "--kafka-users",
        metavar="FILE",
        help="... log in by SASL as a user in this file; see pymq keys kafka-user",
    )


def zkserver_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a zkserver."""
    _addresses(parser)
    parser.add_argument(
        "--coordinator",
        default="memory:",
        help="memory:, sqlite:PATH or zookeeper://HOSTS/ROOT (%(default)s)",
    )
    parser.add_argument(
        "--session-ms",
        type=int,
        default=2_000,
        help="a broker that is silent for this long counts as dead (%(default)s)",
    )
    parser.add_argument(
        "--replica-lost-s",
        type=float,
        default=600.0,
        help="copy the sealed blocks of a broker that is dead for this long (%(default)s)",
    )
    parser.add_argument(
        "--copies-at-once",
        type=int,
        default=8,
        help="most sealed blocks that are copied at the same time (%(default)s)",
    )
    parser.add_argument(
        "--leader-balance-s",
        type=float,
        default=300.0,
        help="interval of leader balances; 0: only on request (%(default)s)",
    )
    secure(parser)
    web(parser, has_page=True)


def zkserver_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`pymq.ZkServer` for parsed options."""
    names = "coordinator session_ms replica_lost_s copies_at_once leader_balance_s http_writable"
    return {**{name: getattr(args, name) for name in names.split()}, **common(args)}


def _addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", required=True, help="tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--advertise", help="the endpoint for other nodes, if not --listen")
