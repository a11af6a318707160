"""HTTP of nodes: the metrics of each node, the page of a zkserver, and the usual policy."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pymq
from pymq.core.observe.metrics import METRICS
from pymq.errors import Closed, ConfigError
from pymq.transport.curve.key_files import read_public
from pymq.web.server import CONNECTIONS_MAX
from tests.transport.keys import make_keys
from tests.web.helpers import ask

NODES = ("zkserver", "broker-0")
POLICY = """
superusers = ["root"]
[[rule]]
principal = ["zkserver", "broker-0"]
operations = ["ClusterAction"]
resources = ["cluster"]
[[rule]]
principal = ["alice", "scraper"]
operations = ["Describe"]
resources = ["cluster"]
[[rule]]
principal = "alice"
operations = ["Read", "Write"]
resources = ["topic:orders", "topic:orders.redriven"]
"""


def names(text: str) -> dict[str, float]:
    """Return each metric's sum over all labels; for histograms the count."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("topic", "").startswith("__"):
                continue  # Records written by groups count, too.
            name = sample.name.removesuffix("_count")
            found[name] = found.get(name, 0) + sample.value
    return found


def test_every_metric_is_told_by_somebody(tmp_path: Path) -> None:
    """A working cluster reports every metric of the catalogue, once."""
    zkserver = pymq.ZkServer(http="127.0.0.1:0", offsets_partitions=1).start()
    brokers = [
        pymq.Broker(
            f"broker-{i}", zkservers=[zkserver.endpoint], http="127.0.0.1:0", data=tmp_path / str(i)
        ).start()
        for i in range(3)
    ]
    try:
        with pymq.open("zmq+" + zkserver.endpoint) as mq:
            mq.create_topic("t", replicas=3, acks="raft")
            mq.create_topic("u", replicas=2, acks="leader")
            with mq.producer() as producer:
                for topic in ("t", "u"):
                    producer.send_many(topic, [b"x" * 100] * 10, partition=0).wait()
            with mq.consumer("t", group="g") as consumer:
                consumer.ack(consumer.poll(timeout=30))
                consumer.commit()
                texts = [ask(node.http, "/metrics").text for node in (zkserver, *brokers)]
            with pytest.raises(pymq.errors.UnknownTopic):
                mq.describe_topic("nothing")
            found = [names(text) for text in (*texts, ask(zkserver.http, "/metrics").text)]
            client = names(str(mq.metrics()))
        told = set().union(*found, client)
        # Refusals need a policy, queries of Spark a listener, Kafka's clients a door, and a mirror
        # runs in a process of its own.
        of_spark = {"pymq_spark_offsets_behind_latest", "pymq_spark_bytes_behind_latest"}
        of_kafka = {name for name in METRICS if name.startswith("pymq_kafka_")}
        of_mirrors = {name for name in METRICS if name.startswith("pymq_mirror_")}
        assert set(METRICS) - told == {
            *("pymq_refused_total", *of_spark, *of_kafka, *of_mirrors),
        }

        def total(name: str) -> float:
            return sum(each.get(name, 0) for each in found[:-1])

        assert total("pymq_messages_in_total") == 20
        # a Raft leader may begin its term with an entry that has an offset
        assert total("pymq_log_end_offset") >= 20
        assert total("pymq_active_controller") == 1
        assert total("pymq_group_members") == 1
        assert total("pymq_replication_bytes_out_total") > 0
        assert total("pymq_bytes_out_total") > 1_000
        assert found[-1]["pymq_request_errors_total"] >= 1
        state = ask(zkserver.http, "/api/state").json
        assert [topic["name"] for topic in state["topics"]] == ["t", "u"]
        assert ask(brokers[0].http, "/api/state").status == 404
        assert "/metrics" in ask(brokers[0].http, "/").text
        assert "<script" in ask(zkserver.http, "/").text
    finally:
        for node in (*brokers, zkserver):
            node.close()


def test_a_node_that_is_busy_is_asked_all_the_same() -> None:
    with pymq.ZkServer(offsets_partitions=1).start() as zkserver:
        broker = pymq.Broker("broker-0", zkservers=[zkserver.endpoint]).start()
        over = threading.Event()

        def load() -> None:
            with pymq.open("zmq+" + zkserver.endpoint) as mq, mq.producer() as producer:
                mq.create_topic("t")
                while not over.is_set():
                    producer.send_many("t", [b"x"] * 1_000)
                    producer.flush()

        thread = threading.Thread(target=load)
        thread.start()
        try:
            before = 0.0
            until = time.monotonic() + 60
            for _ in range(20):
                while (now := broker.metrics(30)["pymq_messages_in_total"]) == before:
                    assert time.monotonic() < until
                before = now
        finally:
            over.set()
            thread.join()
            broker.close()
        with pytest.raises(Closed):
            broker.metrics()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[pymq.ZkServer, pymq.Broker]]:
    keys = tmp_path / "keys"
    make_keys(keys, "root", "alice", "bob", "scraper", nodes=NODES)
    (keys / "policy.toml").write_text(POLICY)
    for name in ("root", "alice", "bob", "scraper", "stranger"):
        path = keys / f"{name}.token"
        path.touch(0o600)
        path.write_text(f"the token of {name}\n")
    zkserver = pymq.ZkServer(
        curve_dir=keys, http="127.0.0.1:0", http_writable=True, offsets_partitions=1
    ).start()
    broker = pymq.Broker(
        "broker-0", zkservers=[zkserver.endpoint], curve_dir=keys, http="127.0.0.1:0"
    ).start()
    with pymq.open("zmq+" + zkserver.endpoint, curve_dir=keys, principal="root") as mq:
        for topic in ("orders", "secret"):
            mq.create_topic(topic)
            with mq.producer() as producer:
                producer.send(topic, b"of " + topic.encode()).result()
    yield zkserver, broker
    broker.close()
    zkserver.close()


def test_the_page_shows_what_its_viewer_may_see(
    secured: tuple[pymq.ZkServer, pymq.Broker], tmp_path: Path
) -> None:
    zkserver, broker = secured

    def see(who: str, path: str, **body: object) -> tuple[int, str]:
        method = "POST" if body else "GET"
        answer = ask(zkserver.http, path, method, token=f"the token of {who}", body=body or None)
        return answer.status, answer.text

    for node in (zkserver, broker):
        for who, status in (("root", 200), ("scraper", 200), ("alice", 200), ("bob", 403)):
            answer = ask(node.http, "/metrics", token=f"the token of {who}")
            assert answer.status == status, who
        for token in (None, "the token of nobody", "root"):
            assert ask(node.http, "/metrics", token=token).status == 401

    status, text = see("alice", "/api/state")
    assert status == 200
    assert '"orders"' in text
    assert "1 topic may not be described" in text
    assert '"principal": "alice"' in text
    assert see("alice", "/api/records?topic=orders")[0] == 200
    assert see("alice", "/api/topic?name=secret")[0] == 403
    assert see("alice", "/api/records?topic=secret")[0] == 403
    assert "of secret" in see("root", "/api/records?topic=secret")[1]
    assert "AUTHORIZATION_FAILED" in see("bob", "/api/state")[1]
    # A token without a key here identifies no principal.
    assert see("stranger", "/api/state")[0] == 400
    # An allowed principal may change things here.
    assert see("alice", "/api/create", topic="orders2")[0] == 403
    assert see("alice", "/api/send", topic="orders", value="x")[0] == 200
    assert see("alice", "/api/send", topic="secret", value="x")[0] == 403
    assert see("root", "/api/create", topic="orders2")[0] == 200
    # Dead letters are read, and sent back, with the viewer's rights.
    assert see("alice", "/api/letters?name=orders")[0] == 200
    assert see("alice", "/api/letters?name=secret")[0] == 403
    assert see("alice", "/api/redrive", topic="secret")[0] == 403
    assert "may not Create topic:orders.redriven" in see("alice", "/api/redrive", topic="orders")[1]
    assert see("root", "/api/redrive", topic="orders")[0] == 200
    # A token that other users can read is not valid, and neither is a removed one.
    (tmp_path / "keys" / "alice.token").chmod(0o644)
    (tmp_path / "keys" / "scraper.token").unlink()
    for who in ("alice", "scraper"):
        until = time.monotonic() + 30
        while see(who, "/metrics")[0] != 401:
            assert time.monotonic() < until
            time.sleep(0.05)  # The node checks the folder once a second.


def test_a_token_ends_with_the_key_of_its_principal(
    secured: tuple[pymq.ZkServer, pymq.Broker], tmp_path: Path
) -> None:
    """The token of a principal with a revoked key does not open the page."""
    zkserver, _ = secured
    keys = tmp_path / "keys"
    assert ask(zkserver.http, "/api/state", token="the token of root").status == 200
    key = read_public(keys / "root.pub").key
    # an administrator copies the file to a node like this
    (keys / "root.revoked").write_text(f"public = ['{key}']\n")
    until = time.monotonic() + 60
    while ask(zkserver.http, "/api/state", token="the token of root").status != 401:
        assert time.monotonic() < until
    assert ask(zkserver.http, "/api/state", token="the token of stranger").status != 401


def test_the_network_takes_a_certificate_and_tokens(tmp_path: Path) -> None:
    cert = tmp_path / "node.pem"
    cert.write_text("nothing")
    for options in (
        {"http": "0.0.0.0:0"},
        {"http": "0.0.0.0:0", "http_cert": cert},
        {"http": "127.0.0.1:0", "http_cert": cert},
        {"http": "127.0.0.1"},
    ):
        with pytest.raises(ConfigError):
            pymq.ZkServer(**options)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_it_speaks_tls(tmp_path: Path) -> None:
    key, cert, both = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "both.pem"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", *made, *named, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    both.write_text(cert.read_text() + key.read_text())
    with pymq.ZkServer(http="127.0.0.1:0", http_cert=both).start() as zkserver:
        assert zkserver.http.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=cert)
        url = zkserver.http.replace("127.0.0.1", "localhost") + "metrics"
        with urllib.request.urlopen(url, context=trust, timeout=60) as answer:
            assert b"pymq_active_controller 1" in answer.read()
        with pytest.raises(ConnectionError):
            ask(zkserver.http, "/metrics")  # the node refuses unencrypted HTTP
        # Silent connections do not keep other clients out.
        port = int(zkserver.http.rstrip("/").rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * CONNECTIONS_MAX)]
        try:
            with urllib.request.urlopen(url, context=trust, timeout=60) as answer:
                assert answer.status == 200
        finally:
            for connection in silent:
                connection.close()
