"""Clusters whose nodes listen without ZeroMQ, over TCP and over TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.core import message as msg
from pymq.errors import AuthorizationFailed, ConfigError, ForkedError, RequestTimeout
from tests.transport.tcp.authority import Authority

POLICY = """
[[rule]]
principal = ["zkserver", "broker-0", "broker-1", "broker-2"]
operations = ["ClusterAction"]
resources = ["cluster"]
[[rule]]
principal = "alice"
operations = ["All"]
resources = ["topic:orders*", "group:*"]
"""


class Cluster:
    """A zkserver and three brokers in threads of this process, with certificates or without."""

    def __init__(self, stack: ExitStack, root: Path, *, is_tls: bool) -> None:
        self.listen = "tls://127.0.0.1:0" if is_tls else "pymq://127.0.0.1:0"
        self._authority = Authority(root / "pki") if is_tls else None
        self._policy = root / "policy.toml"
        self._policy.write_text(POLICY)
        self.zkserver = pymq.ZkServer(
            offsets_partitions=1, offsets_replicas=1, **self.options("zkserver")
        )
        stack.enter_context(self.zkserver.start())
        self.brokers = [
            stack.enter_context(
                pymq.Broker(name, zkservers=[self.zkserver.endpoint], **self.options(name)).start()
            )
            for name in ("broker-0", "broker-1", "broker-2")
        ]

    def options(self, name: str) -> dict[str, Any]:
        """Return the options with which a node listens."""
        if self._authority is None:
            return {"listen": self.listen}
        folder = self._authority.folder(name, is_node=True)
        return {"listen": self.listen, "tls_dir": folder, "policy": self._policy}

    def url(self, principal: str = "alice") -> str:
        """Return the URL with which a principal opens the cluster."""
        if self._authority is None:
            return self.zkserver.endpoint.replace("pymq://", "tcp://")
        return f"{self.zkserver.endpoint}?tls_dir={self._authority.folder(principal)}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_tls", [False, True], ids=["tcp", "tls"])
def test_records_outlive_a_broker_of_a_cluster_without_zeromq(
    stack: ExitStack, tmp_path: Path, is_tls: bool
) -> None:
    cluster = Cluster(stack, tmp_path, is_tls=is_tls)
    mq = stack.enter_context(pymq.open(cluster.url()))
    mq.create_topic("orders", partitions=3, replicas=3, max_record_bytes=8 << 20)
    with mq.producer(acks=-1) as producer:
        producer.send_many("orders", [b"%d" % n for n in range(5_000)]).wait(30)
        large = bytes(3 << 20)
        producer.send("orders", large).result(30)
        child = os.fork()
        if not child:
            try:
                producer.send("orders", b"x").result(5)
            except ForkedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        cluster.brokers[0].close()  # from now on other brokers lead its partitions
        for number in range(50):
            producer.send("orders", b"later %d" % number).result(30)
    with mq.consumer("orders", group="workers") as consumer:
        found: list[bytes] = []
        while len(found) < 5_051:
            records = consumer.poll(1_000, timeout=30)
            assert records
            found += [record.value for record in records]
            for record in records:
                consumer.ack(record)
        consumer.commit(timeout=30)
    assert len(set(found)) == 5_051
    assert large in found


def test_the_policy_holds_for_certificates(stack: ExitStack, tmp_path: Path) -> None:
    cluster = Cluster(stack, tmp_path, is_tls=True)
    mq = stack.enter_context(pymq.open(cluster.url()))
    mq.create_topic("orders")
    with pytest.raises(AuthorizationFailed):
        mq.create_topic("bills")
    other = stack.enter_context(pymq.open(cluster.url("mallory")))
    with pytest.raises(AuthorizationFailed), other.producer() as producer:
        producer.send("orders", b"x").result(30)
    assert cluster.zkserver.metrics().value("pymq_refused_total") >= 1


def test_the_url_of_the_other_transport_says_so(stack: ExitStack, tmp_path: Path) -> None:
    zeromq = stack.enter_context(pymq.ZkServer().start())
    # a tcp:// endpoint, which without "zmq+" in a URL means plain TCP
    mq = stack.enter_context(pymq.open(zeromq.endpoint))
    with pytest.raises(RequestTimeout, match=r"its URL begins with zmq\+tcp://"):
        mq.questions.ask(msg.DescribeCluster, timeout=1)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("tls://127.0.0.1:1", "needs tls_dir"),
        ("tcp://127.0.0.1:1?tls_dir=x", "needs tls_dir"),
        ("tcp://127.0.0.1:1?curve_dir=x", "for ZeroMQ"),
        ("zmq+tcp://127.0.0.1:1?tls_dir=x", "with ZeroMQ give curve_dir"),
        ("tls://127.0.0.1:1?tls_dir=/nowhere", "is missing"),
        ("tcp://127.0.0.1", "is not HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_are_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pymq.open(url)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"listen": "tls://127.0.0.1:0"}, "needs certificates"),
        ({"listen": "pymq://127.0.0.1:0", "curve_dir": "x"}, "no policy|for ZeroMQ"),
        ({"listen": "zmq+tcp://127.0.0.1:0", "tls_dir": "x"}, "no policy|for tls"),
        ({"tls_dir": "x", "curve_dir": "y"}, "exclude each other"),
        ({"tls_dir": "x", "insecure": True}, "exclude each other"),
    ],
)
def test_a_node_with_options_that_do_not_go_together_does_not_start(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        pymq.ZkServer(**options)


def test_neither_zeromq_nor_keys_are_needed(tmp_path: Path) -> None:
    """A cluster over TCP and its clients work without ZeroMQ installed."""
    program = """
import sys
sys.modules["zmq"] = None
import pymq
from pymq.core import message as msg
with pymq.ZkServer(listen="pymq://127.0.0.1:0", offsets_partitions=1, offsets_replicas=1) as zk:
    zk.start()
    with pymq.Broker("b", zkservers=[zk.endpoint], listen="pymq://127.0.0.1:0").start():
        with pymq.open(zk.endpoint.replace("pymq", "tcp")) as mq, mq.producer() as producer:
            mq.create_topic("t")
            print(producer.send("t", b"x").result(30).offset)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
