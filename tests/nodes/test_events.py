"""Nodes log their events, one line of JSON for each, with the documented fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import pymq
from pymq.core.observe.events import EVENTS
from pymq.nodes.service import JsonLines, write_event


class Lines(logging.Handler):
    """A logging handler that keeps the lines written to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        assert "\n" not in text
        self.found.append(json.loads(text))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.found if line["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    log, handler = logging.getLogger("pymq"), Lines()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def test_events_are_lines_with_their_fields(lines: Lines) -> None:
    zkserver = pymq.ZkServer(offsets_partitions=1)
    zkserver.journal.listener = write_event(zkserver.name)
    with zkserver.start():
        broker = pymq.Broker("broker-0", zkservers=[zkserver.endpoint])
        broker.journal.listener = write_event(broker.name)
        with broker.start(), pymq.open("zmq+" + zkserver.endpoint) as mq:
            mq.create_topic("orders")
            with mq.producer() as producer:
                producer.send("orders", b'"\n').result(30)
                mq.set_partition_state("orders", "0", "raft")
                producer.send("orders", b"x").result(30)
            mq.delete_topic("orders")
    for line in lines.found:
        if line["event"] in EVENTS:
            fields = [name for name in line if name not in ("time", "level", "event", "node")]
            assert tuple(fields) == EVENTS[line["event"]][1]
            assert line["time"].endswith("Z")
    assert lines.named("broker_registered")[0]["broker"] == "broker-0"
    (rolled,) = lines.named("block_rolled")
    assert rolled["node"] == zkserver.name
    assert (rolled["topic"], rolled["end"], rolled["acks"]) == ("orders", 1, "RAFT")
    assert rolled["replicas"] == ["broker-0"]
    led = lines.named("partition_led")
    assert {line["node"] for line in led} == {"broker-0"}
    assert lines.named("topic_created")[0]["topic"] == "orders"
    assert lines.named("topic_deleted")[0]["level"] == "info"


def test_what_is_bad_is_louder(lines: Lines) -> None:
    write = write_event("zk")
    for event, level in (
        ("broker_dead", "warning"),
        ("isr_shrunk", "warning"),
        ("unclean_election", "error"),
        ("partition_failed", "error"),
        ("topic_created", "info"),
    ):
        write(event, {"why": 'a "quoted"\nreason', "count": 1})
        assert lines.found[-1]["level"] == level
        assert lines.found[-1]["why"] == 'a "quoted"\nreason'
