"""Clients of a cluster in other processes: forks, restarts, brokers that move."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import pymq
from pymq.core.message import Message, Produce, Produced
from pymq.core.types import NEVER
from pymq.errors import (
    AuthorizationFailed,
    Closed,
    ConfigError,
    CorruptMetadata,
    ForkedError,
    PymqError,
)
from pymq.nodes.directory import ASK_MS, KEEP_ASKING_MS, Directory
from pymq.nodes.identity import next_identity
from tests.transport.keys import make_keys


@pytest.fixture
def zkserver() -> Iterator[pymq.ZkServer]:
    with pymq.ZkServer(offsets_partitions=1, offsets_replicas=1).start() as started:
        yield started


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_open_its_own(zkserver: pymq.ZkServer) -> None:
    """A forked child must open its own client: every inherited handle raises, and the parent can
    continue.
    """
    with (
        pymq.Broker("broker-0", zkservers=[zkserver.endpoint]).start(),
        pymq.open("zmq+" + zkserver.endpoint) as mq,
    ):
        mq.create_topic("t")
        with mq.producer() as producer, mq.consumer("t", mode="psb") as consumer:
            producer.send("t", b"1").result(20)
            child = os.fork()
            if not child:
                os._exit(_in_the_child(mq, producer, consumer, zkserver.endpoint))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            producer.send("t", b"3").result(20)
            assert [record.value for record in consumer.until_end()] == [b"1", b"2", b"3"]


def _in_the_child(
    mq: pymq.Client, producer: pymq.Producer, consumer: pymq.Consumer, endpoint: str
) -> int:
    try:
        for number, call in enumerate(
            (
                mq.topics,
                lambda: producer.send("t", b"x").result(5),
                # one record may have been fetched already
                lambda: [consumer.poll(timeout=1) for _ in range(3)],
                mq.close,
            )
        ):
            try:
                call()
            except ForkedError:
                continue
            return 10 + number
        with pymq.open("zmq+" + endpoint) as own, own.producer() as its:
            its.send("t", b"2").result(20)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def test_a_broker_comes_back_elsewhere(zkserver: pymq.ZkServer, tmp_path: Path) -> None:
    """Connected clients find a broker that has its name and disk at another endpoint."""
    with pymq.open("zmq+" + zkserver.endpoint) as mq, mq.producer() as producer:
        sent = 0
        for turn in range(3):
            broker = pymq.Broker("broker-0", zkservers=[zkserver.endpoint], data=tmp_path)
            with broker.start():
                if not turn:
                    mq.create_topic("t")
                for _ in range(10):
                    producer.send("t", b"%d" % sent).result(30)
                    sent += 1
                with mq.consumer("t", mode="psb") as consumer:
                    found = [int(record.value) for record in consumer.until_end()]
                    assert found == list(range(sent))


def test_nobody_is_asked_where_a_client_is() -> None:
    """The broker asks no zkserver for the endpoint of a client that left before its answer."""
    directory = Directory("d", ["tcp://127.0.0.1:1"], lambda node, endpoint: None, lambda: 7)
    directory.stranger("client-0123456789abcdef")
    assert directory.due == NEVER
    directory.stranger("broker-1")
    assert directory.due == 7


def test_a_node_that_nobody_needs_any_more_is_asked_for_no_more() -> None:
    now = 0
    directory = Directory("d", ["tcp://z:1"], lambda node, endpoint: None, lambda: now)
    directory.stranger("broker-1")
    asked = 0
    while directory.due < NEVER:
        now = directory.due
        directory.tick(now)
        asked += len(directory.out.send)
        directory.out.send.clear()
        assert now <= 2 * KEEP_ASKING_MS
    assert asked == KEEP_ASKING_MS // ASK_MS
    directory.stranger("broker-1")
    assert directory.due == now


def test_brokers_find_each_other(zkserver: pymq.ZkServer) -> None:
    """A broker gets only the names of the other brokers, and finds their endpoints itself."""
    url, servers = "zmq+" + zkserver.endpoint, [zkserver.endpoint]
    brokers = [pymq.Broker(f"dc1.rack.{i}", zkservers=servers).start() for i in range(3)]
    try:
        with pymq.open(url) as mq:
            mq.create_topic("t", partitions=3, replicas=3, acks="raft")
            with mq.producer() as producer:
                for partition in range(3):
                    producer.send("t", b"x", partition=partition).result(30)
            until = time.monotonic() + 30
            while any(len(p.in_sync) < 3 for p in mq.describe_topic("t").partitions):
                assert time.monotonic() < until
    finally:
        for broker in brokers:
            broker.close()


def test_a_gate_refuses_for_the_broker(zkserver: pymq.ZkServer) -> None:
    """A broker's gate refuses a request with a reason and without effect, and admits other
    requests.
    """

    def gate(principal: str, source: str, message: Message) -> Sequence[Message] | None:
        if isinstance(message, Produce) and message.topic == "secret":
            return [Produced(message.id, error=AuthorizationFailed("not for you"))]
        return None

    with (
        pymq.Broker("broker-0", zkservers=[zkserver.endpoint], gate=gate).start(),
        pymq.open("zmq+" + zkserver.endpoint) as mq,
    ):
        mq.create_topic("secret")
        mq.create_topic("open")
        with mq.producer() as producer:
            assert producer.send("open", b"x").result(20).offset == 0
            with pytest.raises(AuthorizationFailed, match="not for you"):
                producer.send("secret", b"x").result(20)
        assert mq.describe_topic("secret").partitions[0].end_offset == 0


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_cluster_without_tcp(tmp_path: Path, has_keys: bool) -> None:
    """A whole cluster works without TCP: zkserver, brokers and clients connect inside this
    machine.
    """
    names = ("zkserver", "broker-0", "broker-1")
    at = {name: f"ipc://@pymq-{uuid4().hex}" for name in names}
    keys: dict[str, Any] = {}
    if has_keys:
        make_keys(tmp_path, "alice", nodes=names)
        listed = ", ".join(f'"{name}"' for name in names)
        (tmp_path / "policy.toml").write_text(
            f'superusers = ["alice"]\n[[rule]]\nprincipal = [{listed}]\n'
            'operations = ["ClusterAction"]\nresources = ["cluster"]\n'
        )
        keys = {"curve_dir": tmp_path}
    who = {**keys, "principal": "alice"} if has_keys else {}
    with ExitStack() as stack:
        zkserver = pymq.ZkServer(listen=at["zkserver"], **keys)
        stack.enter_context(zkserver.start())
        for name in names[1:]:
            node = pymq.Broker(name, listen=at[name], zkservers=[zkserver.endpoint], **keys)
            stack.enter_context(node.start())
        mq = stack.enter_context(pymq.open(f"zmq+{zkserver.endpoint}", **who))
        mq.create_topic("t", replicas=2, acks="raft")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % n for n in range(100)]).result()
        with mq.consumer("t", group="g") as consumer:
            assert [int(record.value) for record in consumer.until_end()] == list(range(100))


def test_closing(zkserver: pymq.ZkServer) -> None:
    mq = pymq.open("zmq+" + zkserver.endpoint)
    mq.close()
    mq.close()
    with pytest.raises(Closed):
        mq.topics()


@pytest.mark.parametrize(
    "url",
    [
        "zmq+tcp://",
        "zmq+tcp://host",
        "zmq+tcp://host:port",
        "zmq+tcp://:5",
        "zmq+tcp://a:1,,b:2",
        "zmq+tcp://a:99999",
        "zmq+tcp://a:\N{SUPERSCRIPT TWO}",
        "zmq+ipc://",
        "amqp://a:1",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError):
        pymq.open(url)


# --- who a broker is ----------------------------------------------------------------------------


def test_a_brokers_identity(tmp_path: Path) -> None:
    """A disk keeps its broker's name and raises the incarnation.

    The identity of another broker, or a damaged one, raises.
    """
    first = next_identity(tmp_path, "broker-0")
    second = next_identity(tmp_path, "broker-0")
    assert second.storage_id == first.storage_id
    assert second.incarnation > first.incarnation
    with pytest.raises(ConfigError, match="belongs to broker-0"):
        next_identity(tmp_path, "broker-1")
    (tmp_path / "broker.cbor").write_bytes(b"\xa1\x61v\x01")
    with pytest.raises(CorruptMetadata):
        next_identity(tmp_path, "broker-0")


def test_what_cannot_start_lets_go_of_everything(tmp_path: Path) -> None:
    """A failed start releases everything: a second try on the same folder and port works."""
    with pymq.ZkServer() as zkserver:
        with pytest.raises(PymqError):
            pymq.Broker(
                "broker-0",
                zkservers=[zkserver.endpoint],
                data=tmp_path,
                listen=zkserver.endpoint,
            )
        pymq.Broker("broker-0", zkservers=[zkserver.endpoint], data=tmp_path).close()
