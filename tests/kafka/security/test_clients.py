"""Real Kafka clients prove who they are to a broker with a policy, by each way that there is."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.cli.diagnosis.kafka import kafka_check
from pymq.kafka.security.users import new_user, write_users
from tests.transport.tcp.authority import Authority

ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
POLICY = """
[[rule]]
principal = ["zkserver", "broker-0"]
operations = ["ClusterAction"]
resources = ["cluster"]
[[rule]]
principal = "alice"
operations = ["All"]
resources = ["topic:orders*", "group:workers"]
[[rule]]
principal = "bob"
operations = ["Read"]
resources = ["topic:orders"]
"""
PASSWORDS = {"alice": "wonder, land=1", "bob": "builder"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Secured:
    """A zkserver and a broker with certificates and a policy, in threads of this process."""

    def __init__(self, stack: ExitStack, root: Path, **kafka: Any) -> None:
        self.authority = Authority(root / "pki")
        self.policy = root / "policy.toml"
        self.policy.write_text(POLICY)
        self.zkserver = stack.enter_context(pymq.ZkServer(**self._node("zkserver")).start())
        self.broker = stack.enter_context(
            pymq.Broker(
                "broker-0",
                zkservers=[self.zkserver.endpoint],
                kafka="127.0.0.1:0",
                **kafka,
                **self._node("broker-0"),
            ).start()
        )
        self.ca = root / "pki/broker-0/ca.pem"

    def _node(self, name: str) -> dict[str, Any]:
        folder = self.authority.folder(name, is_node=True)
        return {"listen": "tls://127.0.0.1:0", "tls_dir": folder, "policy": self.policy}

    def conf(self, **more: Any) -> dict[str, Any]:
        """Return options for confluent-kafka; a dot in a name is written as two underscores."""
        named = {name.replace("__", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.broker.kafka,
            "ssl.ca.location": str(self.ca),
            "log_level": 0,
            **named,
        }

    def certified(self, name: str) -> dict[str, Any]:
        """Return the options of a client with a certificate."""
        folder = self.authority.folder(name)
        return self.conf(
            security__protocol="ssl",
            ssl__certificate__location=str(folder / "cert.pem"),
            ssl__key__location=str(folder / "key.pem"),
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def with_passwords(stack: ExitStack, tmp_path: Path) -> Secured:
    """The clients of this broker use TLS, and authenticate by SASL."""
    users = tmp_path / "users.toml"
    write_users(users, {name: new_user(password) for name, password in PASSWORDS.items()})
    folder = Authority(tmp_path / "other").folder("kafka.example")
    found = Secured(stack, tmp_path, kafka_tls_dir=folder, kafka_users=users)
    found.ca = folder / "ca.pem"
    return found


def login(secured: Secured, mechanism: str, name: str, password: str = "") -> dict[str, Any]:
    return secured.conf(
        security__protocol="sasl_ssl",
        sasl__mechanism=mechanism,
        sasl__username=name,
        sasl__password=password or PASSWORDS[name],
    )


def create(conf: dict[str, Any], topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(conf)  # destroyed with its last reference
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)


def send(conf: dict[str, Any], topic: str, value: bytes = b"x") -> Any:
    """Send a record; returns the error, if there is one."""
    found: list[Any] = []
    producer = ck.Producer({**conf, "message.timeout.ms": 20_000})
    producer.produce(topic, value, on_delivery=lambda error, _: found.append(error))
    assert producer.flush(30) == 0
    return found[0]


def read(conf: dict[str, Any], topic: str, group: str = "workers") -> Any:
    """Return the value of the first record, or the error."""
    consumer = ck.Consumer({**conf, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(20)
        assert message is not None
        return message.error() or message.value()
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_name_and_a_password(with_passwords: Secured, mechanism: str) -> None:
    found = kafka_check("broker-0", with_passwords.broker.kafka)
    assert (found.state, "over TLS" in found.found) == ("ok", True)
    conf = login(with_passwords, mechanism, "alice")
    create(conf, "orders")
    assert send(conf, "orders", b"one") is None
    assert read(conf, "orders") == b"one"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_or_user_is_refused(with_passwords: Secured, mechanism: str) -> None:
    from confluent_kafka.admin import AdminClient

    for name, password in (("alice", "wrong"), ("eve", "wrong")):
        errors: list[Any] = []
        admin = AdminClient(
            {**login(with_passwords, mechanism, name, password), "error_cb": errors.append}
        )
        listed = admin.list_consumer_groups(request_timeout=20)
        while not any(error.code() == ck.KafkaError._AUTHENTICATION for error in errors):
            admin.poll(0.1)
        assert not listed.done() or listed.exception() is not None
    metrics = with_passwords.broker.metrics()
    assert metrics.value("pymq_kafka_authentication_failures_total") >= 2


def test_a_certificate(stack: ExitStack, tmp_path: Path) -> None:
    folder = Authority(tmp_path / "other").folder("kafka.example")
    secured = Secured(stack, tmp_path, kafka_tls_dir=folder)
    # The clients' certificates are of the authority that the broker's folder names.
    secured.authority = Authority(tmp_path / "unknown")
    secured.ca = folder / "ca.pem"
    with pytest.raises(ck.KafkaException):
        ck.Producer(secured.certified("alice")).list_topics(timeout=2)


def test_the_certificate_is_the_principal(stack: ExitStack, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "kafka")
    folder = authority.folder("kafka.example")
    secured = Secured(stack, tmp_path, kafka_tls_dir=folder)
    secured.authority, secured.ca = authority, folder / "ca.pem"
    alice = secured.certified("alice")
    create(alice, "orders")
    assert send(alice, "orders", b"one") is None
    assert read(alice, "orders") == b"one"
    assert send(secured.certified("bob"), "orders").code() == TOPIC_REFUSED
    found = kafka_check("broker-0", secured.broker.kafka)
    assert (found.state, "prove a certificate" in found.found) == ("ok", True)
    without = secured.conf(security__protocol="ssl")
    with pytest.raises(ck.KafkaException):
        ck.Producer(without).list_topics(timeout=2)


TOPIC_REFUSED = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ck.KafkaError.GROUP_AUTHORIZATION_FAILED


def test_the_policy_holds(with_passwords: Secured) -> None:
    from confluent_kafka.admin import AdminClient

    alice = login(with_passwords, "SCRAM-SHA-256", "alice")
    bob = login(with_passwords, "SCRAM-SHA-256", "bob")
    for topic in ("orders", "orders.secret"):
        create(alice, topic)
    assert send(alice, "orders", b"one") is None
    with pytest.raises(ck.KafkaException) as refused:
        create(alice, "bills")
    assert refused.value.args[0].code() == TOPIC_REFUSED
    assert send(bob, "orders").code() == TOPIC_REFUSED
    assert read(bob, "orders").code() == GROUP_REFUSED
    admin = AdminClient(bob)
    assert set(admin.list_topics(timeout=20).topics) == {"orders"}
    other = AdminClient(alice)
    assert set(other.list_topics(timeout=20).topics) == {"orders", "orders.secret"}
    hidden = admin.list_topics("orders.secret", timeout=20).topics["orders.secret"]
    assert hidden.error.code() == TOPIC_REFUSED
    with pytest.raises(ck.KafkaException) as refused:
        admin.delete_topics(["orders"])["orders"].result(20)
    assert refused.value.args[0].code() == TOPIC_REFUSED
    groups = admin.list_consumer_groups(request_timeout=20).result(20)
    assert (groups.valid, groups.errors) == ([], [])
    # Without a group, bob may read.
    consumer = ck.Consumer({**bob, "group.id": "none"})
    consumer.assign([ck.TopicPartition("orders", 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message.value() == b"one"


def test_a_group_gets_no_topics_that_its_members_may_not_read(with_passwords: Secured) -> None:
    """Neither by a pattern, nor do others lose theirs."""
    alice = login(with_passwords, "SCRAM-SHA-256", "alice")
    create(alice, "orders")
    assert send(alice, "orders", b"one") is None
    new = {"group.protocol": "consumer"}
    assert read({**alice, **new}, "^ord.*") == b"one"
    with_passwords.policy.write_text(POLICY.replace('"topic:orders*"', '"topic:other*"'))
    bob = login(with_passwords, "SCRAM-SHA-256", "bob")
    while send(alice, "orders") is None:
        pass  # until the new policy is in force
    consumer = ck.Consumer({**alice, **new, "group.id": "workers"})
    consumer.subscribe(["^ord.*"])
    assert consumer.poll(3) is None
    consumer.close()
    other = ck.Consumer({**bob, "group.id": "none"})
    other.assign([ck.TopicPartition("orders", 0, 0)])
    assert other.poll(20).value() == b"one"
    other.close()


def test_a_policy_that_changes_holds_for_open_connections(with_passwords: Secured) -> None:
    alice = login(with_passwords, "PLAIN", "alice")
    create(alice, "orders")
    producer = ck.Producer({**alice, "message.timeout.ms": 20_000})
    errors: list[Any] = []

    def sent() -> Any:
        producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        return errors.pop()

    assert sent() is None
    with_passwords.policy.write_text(POLICY.replace('"alice"', '"carol"'))
    while (error := sent()) is None:
        pass
    assert error.code() == TOPIC_REFUSED


def test_aiokafka(with_passwords: Secured) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")
    create(login(with_passwords, "PLAIN", "alice"), "orders")
    context = ssl.create_default_context(cafile=str(with_passwords.ca))

    async def work(mechanism: str) -> bytes:
        options = {
            "bootstrap_servers": with_passwords.broker.kafka,
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORDS["alice"],
        }
        async with aiokafka.AIOKafkaProducer(**options) as producer:
            sent = await producer.send_and_wait("orders", mechanism.encode())
        consumer = aiokafka.AIOKafkaConsumer(**options)
        async with consumer:
            place = aiokafka.TopicPartition("orders", 0)
            consumer.assign([place])
            consumer.seek(place, sent.offset)
            return bytes((await consumer.getone()).value)

    for mechanism in MECHANISMS:
        assert asyncio.run(work(mechanism)) == mechanism.encode()


def test_kafka_python(with_passwords: Secured) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    create(login(with_passwords, "PLAIN", "alice"), "orders")
    for mechanism in MECHANISMS:
        producer = kafka.KafkaProducer(
            bootstrap_servers=with_passwords.broker.kafka,
            security_protocol="SASL_SSL",
            ssl_cafile=str(with_passwords.ca),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORDS["alice"],
        )
        assert producer.send("orders", b"x").get(20).offset >= 0
        producer.close()
