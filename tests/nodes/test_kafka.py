"""A broker that listens for Kafka's clients: where it may, and what it says about it."""

from __future__ import annotations

import argparse
import logging
import socket
import struct
from typing import Any

import pytest

import pymq
from pymq.core.message import DescribeCluster
from pymq.errors import ConfigError
from pymq.nodes.command_line import broker_arguments, broker_options
from pymq.nodes.kafka.options import KafkaPort
from pymq.nodes.security import Access

pytest.importorskip("crc32c", reason="crc32c is not installed")
pytest.importorskip("zmq", reason="pyzmq is not installed")
ASK = struct.pack(">ihhih", 11, 18, 0, 7, 1) + b"x"  # ApiVersions, version 0


def names(text: str) -> dict[str, float]:
    """Return the values of metrics without labels."""
    lines = (line.split() for line in text.splitlines() if line and line[0] != "#")
    return {name: float(found) for name, found in lines if "{" not in name}


def broker(**options: Any) -> pymq.Broker:
    return pymq.Broker("broker-0", zkservers=["tcp://127.0.0.1:1"], **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kafka": "0.0.0.0:0", "kafka_advertise": "here:9092"}, "open to the network"),
        ({"kafka": "192.0.2.1:9092"}, "open to the network"),
        ({"kafka": "kafka.example:9092"}, "open to the network"),
        ({"kafka": "0.0.0.0:0"}, "kafka_advertise=HOST:PORT"),
        ({"kafka": "[::]:0", "insecure": True}, "kafka_advertise=HOST:PORT"),
        ({"kafka": "127.0.0.1:0", "kafka_advertise": "0.0.0.0:9092"}, "a host and a port"),
        ({"kafka": "127.0.0.1:0", "kafka_advertise": "here:0"}, "a host and a port"),
        ({"kafka": "9092"}, "must be HOST:PORT"),
        ({"kafka": "127.0.0.1:70000"}, "must be HOST:PORT"),
        ({"kafka": "127.0.0.1:0", "kafka_replicas": 0}, "kafka_replicas"),
        ({"kafka": "127.0.0.1:0", "kafka_partitions": 0}, "kafka_partitions"),
        ({"kafka": "127.0.0.1:0", "kafka_batch_records_max": 2_000_000}, "batch_records_max"),
        ({"kafka_replicas": 2}, "need kafka=HOST:PORT"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        broker(**options)


@pytest.mark.parametrize("access", [Access(curve_dir="keys"), Access(tls_dir="keys")])
def test_a_broker_with_keys_does_not_listen_for_clients_without_any(access: Access) -> None:
    """They would pass by the policy, which limits every principal."""
    with pytest.raises(ConfigError, match="needs kafka_tls_dir, kafka_users or both"):
        KafkaPort("127.0.0.1:9092").check(access)


def test_an_insecure_broker_listens_to_the_network_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "pymq.security"):
        found = broker(kafka="0.0.0.0:0", kafka_advertise="kafka.example:9092", insecure=True)
    found.close()
    assert found.kafka == "kafka.example:9092"
    assert "every Kafka client that can connect may do everything" in caplog.text


def test_an_address_in_use_is_refused_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match="in use"):
            broker(kafka=f"127.0.0.1:{port}")


def test_a_broker_registers_its_number_and_address_and_answers() -> None:
    with pymq.ZkServer() as zkserver:
        zkserver.start()
        with pymq.Broker("broker-7", zkservers=[zkserver.endpoint], kafka="127.0.0.1:0") as node:
            node.start()
            with pymq.open(f"zmq+{zkserver.endpoint}") as mq:
                (described,) = mq.cluster().brokers
                brief = mq.questions.ask(lambda r: DescribeCluster(r, brokers_only=True))
            assert (described.number, described.kafka) == (0, node.kafka)
            (short,) = brief.brokers
            assert (short.name, short.number, short.kafka) == ("broker-7", 0, node.kafka)
            host, _, port = node.kafka.rpartition(":")
            with socket.create_connection((host, int(port)), 20) as client:
                client.sendall(ASK)
                size, correlation, code = struct.unpack(">iih", client.recv(10, socket.MSG_WAITALL))
                assert (correlation, code) == (7, 0)
                rest = client.recv(size - 6, socket.MSG_WAITALL)
                assert len(rest) == size - 6
                seen = names(str(node.metrics()))
                assert seen["pymq_kafka_connections"] == 1
                assert seen["pymq_kafka_received_bytes_total"] == len(ASK)
                assert seen["pymq_kafka_sent_bytes_total"] == size + 4
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 20)


def test_the_command_line_has_the_options() -> None:
    parser = argparse.ArgumentParser()
    broker_options(parser)
    line = "--name b --listen tcp://127.0.0.1:0 --zkserver tcp://127.0.0.1:1 --data memory:"
    plain = broker_arguments(parser.parse_args(line.split()))
    assert not any(name.startswith("kafka") for name in plain)
    more = f"{line} --kafka 127.0.0.1:9092 --kafka-replicas 2 --kafka-no-auto-create"
    found = broker_arguments(parser.parse_args(more.split()))
    assert {name: each for name, each in found.items() if name.startswith("kafka")} == {
        "kafka": "127.0.0.1:9092",
        "kafka_replicas": 2,
        "kafka_auto_create": False,
    }
