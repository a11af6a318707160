"""A controlled shutdown: other brokers lead a broker's partitions before that broker ends."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.nodes.assembly import Broker, ZkServer

SESSION_MS = 60_000  # This session is longer than the test, so that no timeout reveals the stop.


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_what_it_leads_is_led_by_others(acks: Acks) -> None:
    with ExitStack() as nodes:
        zk = nodes.enter_context(ZkServer(session_ms=SESSION_MS).start())
        brokers = {
            name: nodes.enter_context(Broker(name, zkservers=[zk.endpoint]).start())
            for name in ("b0", "b1", "b2")
        }
        with pymq.open("zmq+" + zk.endpoint) as mq, mq.producer() as producer:
            mq.create_topic("t", partitions=3, replicas=3, acks=acks)
            for partition in range(3):
                producer.send("t", b"before", partition=partition).result()
            led = {part.leader for part in mq.describe_topic("t").partitions}
            gone = min(map(str, led))
            began = time.monotonic()
            brokers[gone].close()
            assert time.monotonic() - began < 20
            for partition in range(3):
                producer.send("t", b"after", partition=partition).result(timeout=30)
            leaders = [part.leader for part in mq.describe_topic("t").partitions]
            assert gone not in leaders
