"""A cluster with keys and a policy: unknown and unauthorized clients can do nothing."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import zmq

import pymq
from pymq.access.requirements import requirements
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import AckMode
from pymq.errors import (
    AuthorizationFailed,
    ClusterAuthorizationFailed,
    ConfigError,
    DeliveryTimeout,
)
from pymq.nodes import service
from pymq.nodes.node import Node
from pymq.nodes.security import NodeSecurity
from pymq.transport.curve.key_files import revoke
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.wire import FRAME_BYTES_MAX
from pymq.transport.zeromq.transport import ZmqTransport
from tests.transport.keys import make_keys
from tests.transport.samples import sample

WAIT_S = 30.0
NODES = ("zkserver", "broker-0", "broker-1", "broker-2")
POLICY = """
superusers = ["root"]
[[rule]]
principal = ["zkserver", "broker-0", "broker-1", "broker-2"]
operations = ["ClusterAction"]
resources = ["cluster"]
[[rule]]
principal = "alice"
operations = ["Read", "Write"]
resources = ["topic:orders*", "group:orders*"]
"""


class Secured:
    """A cluster in this process, over sockets, with all keys in one folder."""

    def __init__(self, folder: Path, brokers: int, policy: str = POLICY) -> None:
        self.keys = folder / "keys"
        make_keys(self.keys, "root", "alice", "bob", nodes=NODES)
        self.policy = self.keys / "policy.toml"
        self.policy.write_text(policy)
        self.nodes: list[Node] = []
        self.zkserver = self.start(pymq.ZkServer(**self.options("zkserver")))
        self.brokers = [
            self.start(pymq.Broker(name, zkservers=[self.zkserver.endpoint], **self.options(name)))
            for name in NODES[1 : 1 + brokers]
        ]

    def options(self, name: str) -> dict[str, Any]:
        return {"curve_dir": self.keys, "audit": self.keys.parent / f"{name}.audit"}

    def start(self, node: Node) -> Node:
        self.nodes.append(node)
        return node.start()

    def open(self, principal: str) -> pymq.Client:
        return pymq.open(f"zmq+{self.zkserver.endpoint}", curve_dir=self.keys, principal=principal)

    def audit(self, name: str) -> list[dict[str, Any]]:
        lines = (self.keys.parent / f"{name}.audit").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    cluster = Secured(tmp_path, 1)
    try:
        yield cluster
    finally:
        cluster.close()


class Talker:
    """A principal with a raw socket that can send any message."""

    def __init__(self, to: Node, keys: KeyRing | None, node: str = "client-1") -> None:
        self.to = to
        self.transport = ZmqTransport(node, keys=keys)
        self.transport.learn(to.name, to.endpoint)

    def __enter__(self) -> Talker:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()

    def tell(self, message: Message, machine: str = "") -> None:
        to = f"{self.to.name}.{machine}" if machine else self.to.name
        self.transport.send(to, self.transport.node, message)
        self.transport.flush()

    def answer(self, request: int) -> Message:
        return self.hear(lambda found: getattr(found, "id", None) == request)

    def hear(self, is_it: Callable[[Message], object]) -> Message:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for _, _, message in self.transport.poll():
                if is_it(message):
                    return message
            zmq.select([self.transport.fileno()], [], [], timeout=0.05)
        raise AssertionError(f"no answer; {self.transport.problem}")


def messages() -> list[Message]:
    """Return some random messages of each kind, except those that any client may send."""
    found = [sample(cls, Random(seed)) for cls in get_args(Message) for seed in range(5)]
    return [message for message in found if requirements(message)]


def state(cluster: Secured) -> Any:
    """Return everything that an administrator can see."""
    with cluster.open("root") as mq:
        topics = {name: mq.describe_topic(name) for name in sorted(mq.topics())}
        return topics, mq.cluster(), sorted(mq.groups())


def test_who_is_allowed_does_everything(tmp_path: Path) -> None:
    """An authorized client can administrate, produce with raft, and consume in a group, all of it
    encrypted.
    """
    cluster = Secured(tmp_path, 3)
    try:
        with cluster.open("root") as mq:
            until = time.monotonic() + WAIT_S
            while len(mq.cluster().brokers) < 3:
                assert time.monotonic() < until
            mq.create_topic("orders", 3, 3, "raft")
        with cluster.open("alice") as mq:
            with mq.producer() as producer:
                for number in range(300):
                    producer.send("orders", str(number).encode(), key=str(number % 7).encode())
            with mq.consumer("orders", group="orders-1") as consumer:
                seen = []
                for record in consumer.until_end():
                    seen.append(int(record.value))
                    consumer.ack(record)
                consumer.commit()
            assert sorted(seen) == list(range(300))
            with mq.consumer("orders", mode="psb", offset="begin") as reader:
                assert sum(1 for _ in reader.until_end()) == 300
            with pytest.raises(AuthorizationFailed, match="alice may not Delete topic:orders"):
                mq.delete_topic("orders")
        with cluster.open("root") as mq:
            assert mq.groups() == ["orders-1"]
            mq.delete_topic("orders")
        assert {name for name in NODES if (tmp_path / f"{name}.audit").stat().st_size} == {
            "zkserver"
        }
    finally:
        cluster.close()


def steal(mq: pymq.Client, producer_id: int, epoch: int, grant: bytes) -> None:
    """Send a batch with a producer's next sequence; raises the leader's error."""
    batch = EncodedBatch.encode(
        [b"stolen"],
        timestamp_ms=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=1,
    )
    mq.questions.ask_leader(
        "shared",
        "0",
        lambda r: msg.Produce(r, "shared", "0", AckMode.LEADER, batch, grant=grant),
    )


def test_nobody_writes_as_another_producer(tmp_path: Path) -> None:
    """A principal cannot write as another producer, even if it knows all fields of a batch's
    header.
    """
    allow = """
[[rule]]
principal = ["alice", "bob"]
operations = ["Read", "Write"]
resources = ["topic:shared"]
[[rule]]
principal = "alice"
operations = ["Write"]
resources = ["producer:teller"]
"""
    cluster = Secured(tmp_path, 1, POLICY + allow)
    try:
        with cluster.open("root") as mq:
            mq.create_topic("shared", 1)
        with cluster.open("alice") as mq, cluster.open("bob") as foreign:
            places = []
            for name in (None, "teller"):
                producer = mq.producer(producer_id=name, linger_ms=0)
                producer.send("shared", b"before").result()
                sender = producer._config
                with pytest.raises(AuthorizationFailed, match=r"was not given|teller"):
                    steal(foreign, sender.producer_id, sender.producer_epoch, sender.grant)
                with pytest.raises(AuthorizationFailed, match="was not given"):
                    steal(foreign, sender.producer_id, sender.producer_epoch, b"")
                places.append(producer.send("shared", b"after").result().offset)
            assert places == [1, 3]
            with pytest.raises(AuthorizationFailed):
                foreign.producer(producer_id="teller")
            with foreign.producer() as producer:
                producer.send("shared", b"of my own").result()
    finally:
        cluster.close()


@pytest.mark.parametrize("at", ["zkserver", "broker-0"])
def test_who_has_no_rule_can_do_nothing(secured: Secured, at: str) -> None:
    """Each message to the node, or to another machine on it, is refused without effect."""
    node = secured.zkserver if at == "zkserver" else secured.brokers[0]
    with secured.open("root") as mq:
        mq.create_topic("orders")
        mq.create_topic("t")
    before = state(secured)
    with Talker(node, KeyRing(secured.keys, "bob")) as bob:
        for number, message in enumerate(messages()):
            bob.tell(message, "directory" if number % 2 else "")
            # Some messages have no answer: the refusal of a later request shows that they were
            # handled, without effect.
            bob.tell(msg.DeleteTopic(1_000_000 + number, "orders"))
            refused = bob.answer(1_000_000 + number)
            assert isinstance(refused, msg.Answer)
            assert isinstance(refused.error, AuthorizationFailed)
    assert state(secured) == before
    refused_there = {(line["principal"], line["request"]) for line in secured.audit(at)}
    kinds = {type(message).__name__ for message in messages()}
    assert refused_there == {("bob", kind) for kind in kinds}


@pytest.mark.parametrize("at", ["zkserver", "broker-0"])
def test_who_is_not_known_can_do_nothing(secured: Secured, at: str, tmp_path: Path) -> None:
    """Messages of a client with an unknown key, or without a key, are not even decoded."""
    node = secured.zkserver if at == "zkserver" else secured.brokers[0]
    make_keys(tmp_path / "own", "mallory")
    for path in secured.keys.glob("*.pub"):
        (tmp_path / "own" / path.name).write_bytes(path.read_bytes())
    before = state(secured)
    for keys in (KeyRing(tmp_path / "own", "mallory"), None):
        with Talker(node, keys) as mallory:
            until = time.monotonic() + 1.5
            for message in messages():
                mallory.tell(message)
            while time.monotonic() < until:
                assert mallory.transport.poll() == []
                zmq.select([mallory.transport.fileno()], [], [], timeout=0.05)
    assert state(secured) == before
    assert {(line["principal"], line["request"]) for line in secured.audit(at)} == {("", "connect")}


def test_a_client_cannot_say_who_leads(secured: Secured) -> None:
    """A LeaderAndIsr from outside the cluster is refused for each of its partitions."""
    with Talker(secured.brokers[0], KeyRing(secured.keys, "alice")) as alice:
        for seed in range(20):
            message = sample(msg.LeaderAndIsr, Random(seed))
            alice.tell(message)
            answer = alice.answer(message.id)
            assert isinstance(answer, msg.LeaderAndIsrAnswer)
            assert [each[:2] for each in answer.errors] == [
                (each.topic, each.partition) for each in message.partitions
            ]
            assert all(isinstance(each[2], AuthorizationFailed) for each in answer.errors)


def test_a_stolen_brokers_key_does_no_harm_to_what_others_lead(secured: Secured) -> None:
    """With one broker's key a client cannot delete other brokers' blocks or move their
    partitions.
    """
    broker = secured.brokers[0]
    with secured.open("root") as mq:
        mq.create_topic("orders")
        with mq.producer() as producer:
            producer.send_many("orders", [b"x"] * 40).result(WAIT_S)
    before = state(secured)
    with Talker(secured.zkserver, KeyRing(secured.keys, "alice")) as alice:
        alice.tell(msg.GetMetadata(1, "orders"))
        metadata = alice.answer(1)
        assert isinstance(metadata, msg.Answer)
        found = metadata.result
        assert isinstance(found, TopicMetadata)
    keys = KeyRing(secured.keys, "broker-2")
    with Talker(broker, keys, "broker-2") as thief:
        high = 1 << 61
        thief.tell(msg.StopReplica(1, high, "orders", found.topic_id, "", high, True))
        thief.tell(msg.Seal(high, "orders", "0", 0, high, takeover=True))
        thief.tell(msg.LeaderAndIsr(2, "broker-2", high, ()))
        refused = thief.answer(2)
        assert isinstance(refused, msg.LeaderAndIsrAnswer)
        assert isinstance(refused.error, ClusterAuthorizationFailed)
    with Talker(secured.zkserver, keys, "broker-2") as thief:
        orders: list[Message] = [
            msg.ControlledShutdown(0, "broker-0", 1),
            msg.RegisterBroker(1, "broker-0", "tcp://thief", None, 1, "disk", high),
        ]
        for request, message in enumerate(orders):
            thief.tell(message)
            answer = thief.answer(request)
            assert isinstance(answer, msg.Answer)
            assert isinstance(answer.error, ClusterAuthorizationFailed)
    assert state(secured) == before
    with (
        secured.open("alice") as mq,
        mq.consumer("orders", mode="psb", offset="begin") as reader,
    ):
        assert sum(1 for _ in reader.until_end()) == 40


def test_a_policy_that_everybody_can_write_is_not_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('superusers = ["alice"]\n')
    for where, mode in [(path, 0o666), (tmp_path, 0o777)]:
        before = where.stat().st_mode & 0o7777
        where.chmod(mode)
        with pytest.raises(ConfigError, match="written by everybody"):
            NodeSecurity(path)
        where.chmod(before)
    NodeSecurity(path).close()


def send_for_five_seconds(producer: pymq.Producer) -> None:
    began = time.monotonic()
    while time.monotonic() - began < 5:
        producer.send("orders", b"x").result(WAIT_S)


def test_a_policy_that_changes_holds_soon_and_a_broken_one_does_not(secured: Secured) -> None:
    with secured.open("root") as mq:
        mq.create_topic("orders")
    with secured.open("bob") as mq, mq.producer() as producer:
        with pytest.raises(AuthorizationFailed, match="bob may not"):
            producer.send("orders", b"1").result(WAIT_S)
        rule = '[[rule]]\nprincipal = "bob"\noperations = ["Write"]\nresources = ["topic:orders"]\n'
        secured.policy.write_text(POLICY + rule)
        began = time.monotonic()
        while True:
            try:
                producer.send("orders", b"2").result(WAIT_S)
                break
            except AuthorizationFailed:
                assert time.monotonic() - began < 5
        secured.policy.write_text("[[rule]]\nprincipal = 7\n")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            producer.send("orders", b"3").result(WAIT_S)
        secured.policy.write_text(POLICY)
        with pytest.raises(AuthorizationFailed):
            send_for_five_seconds(producer)


def test_the_audit_log_is_for_nobody_else(tmp_path: Path) -> None:
    policy, audit = tmp_path / "policy.toml", tmp_path / "audit.log"
    policy.write_text('superusers = ["alice"]\n')
    before = os.umask(0)
    try:
        NodeSecurity(policy, audit).close()
    finally:
        os.umask(before)
    assert audit.stat().st_mode & 0o777 == 0o600


def test_a_policy_that_could_not_be_read_once_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy is read again after an error, even if the file's times and size are the same."""
    path, now = tmp_path / "policy.toml", 0
    path.write_text('superusers = ["alice"]\n')
    door = NodeSecurity(path, clock=lambda: now)
    try:
        whole = 'superusers = ["carol"]\n'
        path.write_text("?" * len(whole))
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        for _ in range(3):
            now += 10_000
            assert door("alice", "client-1", msg.ListTopics(1)) is None
        assert len(caplog.records) == 1
        path.write_text(whole)
        os.utime(path, ns=times)
        now = 40_000
        assert door("carol", "client-1", msg.ListTopics(1)) is None
        path.write_text("a = " + "[" * 20_000)
        now = 50_000
        assert door("carol", "client-1", msg.ListTopics(1)) is None
    finally:
        door.close()


@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_a_consumer_that_is_not_allowed_any_more_says_so(secured: Secured, mode: Any) -> None:
    with secured.open("root") as mq:
        mq.create_topic("orders")
    group = "orders-1" if mode == "ptp" else None
    with secured.open("alice") as mq, mq.consumer("orders", mode=mode, group=group) as consumer:
        assert consumer.poll(timeout=0.1) == []
        assert consumer.status().idle == "it has reached the end of all its partitions"
        secured.policy.write_text(POLICY.replace('"alice"', '"carol"'))
        until = time.monotonic() + WAIT_S
        while "alice may not Read" not in str(consumer.status().idle):
            assert time.monotonic() < until, consumer.status()
        with pytest.raises(AuthorizationFailed, match="alice may not Read"):
            consumer.poll(timeout=WAIT_S)


def test_a_revoked_client_is_out_within_five_seconds(secured: Secured) -> None:
    with secured.open("root") as mq:
        mq.create_topic("orders")
    with secured.open("alice") as mq, mq.producer(delivery_timeout_s=2.0) as producer:
        producer.send("orders", b"1").result(WAIT_S)
        revoke(secured.keys, "alice")
        with pytest.raises(DeliveryTimeout):
            send_for_five_seconds(producer)
    with pytest.raises(ConfigError, match="cannot be read"):
        secured.open("alice")


def test_a_node_without_a_policy_does_not_start(tmp_path: Path) -> None:
    make_keys(tmp_path, nodes=("zkserver", "broker-0"))
    with pytest.raises(ConfigError, match="'pymq keys policy' writes a first one"):
        pymq.ZkServer(curve_dir=tmp_path)
    with pytest.raises(ConfigError, match="without curve_dir clients have no names"):
        pymq.ZkServer(policy=tmp_path / "policy.toml")
    with pytest.raises(ConfigError, match="exclude each other"):
        pymq.ZkServer(curve_dir=tmp_path, insecure=True)
    with pytest.raises(ConfigError, match="open to the network"):
        pymq.Broker("broker-0", zkservers=["tcp://127.0.0.1:1"], listen="tcp://0.0.0.0:0")
    (tmp_path / "policy.toml").write_text("")
    with pytest.raises(ConfigError, match="there are those of broker-0, zkserver"):
        pymq.Broker("broker-1", zkservers=["tcp://127.0.0.1:1"], curve_dir=tmp_path)
    # a broker's machine does not have the zkserver's secret
    (tmp_path / "zkserver.secret").unlink()
    with pytest.raises(ConfigError, match=r"broker-1 at .* a key that is missing"):
        pymq.Broker("broker-1", zkservers=["tcp://127.0.0.1:1"], curve_dir=tmp_path)


def test_how_many_connections_an_address_may_have_is_said(tmp_path: Path) -> None:
    make_keys(tmp_path, "alice", nodes=("zkserver",))
    (tmp_path / "policy.toml").write_text("")
    with pytest.raises(ConfigError, match="must be at least 1"):
        pymq.ZkServer(curve_dir=tmp_path, connections_per_address=0)
    with pytest.raises(ConfigError, match="needs keys or certificates"):
        pymq.ZkServer(connections_per_address=5)
    config = tmp_path / "zkserver.toml"
    config.write_text("connections-per-address = 1\n")
    found = []
    for argv in (["--config", str(config)], ["--connections-per-address", "7"]):
        parser = argparse.ArgumentParser()
        service.secure(parser)
        found.append(service.parse(parser, argv).connections_per_address)
    assert found == [1, 7]
    most = found[0]
    audit = tmp_path / "audit"
    node = pymq.ZkServer(curve_dir=tmp_path, audit=audit, connections_per_address=most).start()
    try:
        keys = KeyRing(tmp_path, "alice")
        with Talker(node, keys, "client-1") as first, Talker(node, keys, "client-2") as second:
            first.tell(msg.ListTopics(1))
            first.answer(1)
            until = time.monotonic() + WAIT_S
            while "connect" not in audit.read_text():
                assert time.monotonic() < until
                second.tell(msg.ListTopics(2))
                assert second.transport.poll() == []
                time.sleep(0.05)  # The audit log is a file, and nothing signals that it has grown.
    finally:
        node.close()


def test_urls_name_keys(secured: Secured) -> None:
    url = f"zmq+{secured.zkserver.endpoint}"
    with pymq.open(f"{url}?curve_dir={secured.keys}&principal=root") as mq:
        assert len(mq.cluster().brokers) == 1
    for query, complaint in (
        ("curve_dir=a&curve_dir=b", "once each"),
        ("password=x", "there are curve_dir, principal"),
        ("x", "is not NAME=VALUE"),
        ("principal=root", "a principal needs keys"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            pymq.open(f"{url}?{query}")
    with pytest.raises(ConfigError, match="in this process"):
        pymq.open("memory:", curve_dir=secured.keys)


# --- what is too much ---------------------------------------------------------------------------


def test_a_frame_that_is_too_large_ends_the_connection_and_nothing_else(secured: Secured) -> None:
    """A frame that is too large ends its connection before the node reads the body, and has no
    other effect.
    """
    node = secured.brokers[0]
    lost: list[bool] = []
    with Talker(node, KeyRing(secured.keys, "bob"), "client-2") as bob:
        bob.transport.on_lost = lambda _, is_lost: lost.append(is_lost)
        bob.tell(msg.DeleteTopic(1, "orders"))
        bob.hear(lambda found: getattr(found, "id", 0) == 1)
        link = bob.transport._peers.by_name[node.name].link
        assert link is not None
        memory = resident()
        link.socket.send(bytes(FRAME_BYTES_MAX + 1), zmq.NOBLOCK)
        until = time.monotonic() + WAIT_S
        while True not in lost:
            assert time.monotonic() < until, "the connection still stands"
            assert bob.transport.poll() == []
            zmq.select([bob.transport.fileno()], [], [], timeout=0.05)
        with secured.open("root") as mq:
            mq.create_topic("after")
            with mq.producer() as producer:
                assert producer.send("after", b"x").result(WAIT_S).offset == 0
        # Memory grew by one frame at most, on the sending side.
        assert resident() - memory < 3 * FRAME_BYTES_MAX


def test_clients_wait_as_long_as_their_quota_says(tmp_path: Path) -> None:
    """Above its quota a client only waits, in either direction: nothing fails and nothing
    is lost.
    """
    quota = "[quota.alice]\nproduce_bytes_per_second = 100_000\nfetch_bytes_per_second = 100_000\n"
    secured = Secured(tmp_path, 1, POLICY + quota)
    try:
        with secured.open("root") as mq:
            mq.create_topic("orders")
        with secured.open("alice") as mq, mq.producer(batch_bytes=20_000) as producer:
            began = time.monotonic()
            for _ in range(300):
                producer.send("orders", bytes(1_000))
            producer.flush()
            # The first 100 kB use saved budget, and the cost of the last batch delays only later
            # requests.
            assert 1.5 < time.monotonic() - began < 20
            with mq.consumer("orders", mode="psb", offset="begin") as reader:
                assert sum(1 for _ in reader.until_end()) == 300
            with mq.consumer("orders", group="orders-1") as consumer:
                # The cost of the last read delays only later requests.
                assert next(consumer.until_end()).offset == 0
        (line, *_) = [line for line in secured.audit("broker-0") if line["operation"] == "quota"]
        assert line["principal"] == "alice"
    finally:
        secured.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_group_is_described_without_what_one_may_not_see(tmp_path: Path) -> None:
    """A description of a group omits the topics that the principal may not describe."""
    rule = '[[rule]]\nprincipal = "bob"\noperations = ["Read"]\nresources = '
    cluster = Secured(tmp_path, 1, POLICY + rule + '["topic:orders", "group:orders*"]\n')
    try:
        with cluster.open("root") as mq, cluster.open("bob") as bob:
            for topic in ("orders", "orders-secret"):
                mq.create_topic(topic)
                mq.reset_group("orders", topic, 0)
            with mq.consumer("orders-secret", group="orders"):
                seen = bob.describe_group("orders")
                assert (set(seen.committed), seen.consumers) == ({("orders", "0")}, ())
                assert bob.describe_leases("orders", "orders", 0).committed == 0
                with pytest.raises(AuthorizationFailed):
                    ask_leases(bob, "orders-secret")
                assert len(mq.describe_group("orders").committed) == 2
    finally:
        cluster.close()


def ask_leases(mq: pymq.Client, topic: str) -> None:
    """Request the leases directly, without the earlier requests, which would also be refused."""
    mq.questions.ask_group("orders", lambda r: msg.GetLeases(r, "orders", topic, "0"))
