"""``pymq doctor``: the name of each problem that it can find, and the next step."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import zmq

import pymq
from pymq.cli.commands import doctor
from pymq.cli.commands.topic import states
from pymq.cli.diagnosis import connectivity
from pymq.cli.diagnosis.checks import Finding
from pymq.cli.diagnosis.health import dead_brokers, delayed, topic_checks, trouble
from pymq.cli.diagnosis.kafka import kafka_check
from pymq.core.message import ListTopics
from pymq.core.metadata.descriptions import PartitionDescription, TopicDescription
from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import NotController, RequestTimeout, StoreFull
from pymq.testing import Cluster
from pymq.web.snapshots import ClusterSnapshot
from tests.cli.conftest import Queue
from tests.client.helpers import polled, wait_until
from tests.transport.keys import make_keys

WAIT_S = 60  # time limit of any wait


def checks(queue: Queue, *argv: str, code: int = 0) -> dict[str, Finding]:
    """Return the findings, with the worst one for each name."""
    told = queue.json("doctor", *argv, code=code)
    found: dict[str, Finding] = {}
    for row in told["checks"]:
        check = Finding(**row)
        assert (check.state == "ok") == (check.next_step is None)
        before = found.get(check.name)
        if before is None or before.state == "ok":
            found[check.name] = check
    assert told["ok"] == (code == 0) == all(c.state != "fail" for c in found.values())
    return found


def test_all_is_well(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--partitions", 2)
    queue.put(topic, range(3))
    group = f"{topic}.g"
    queue.run("consume", topic, "--group", group)
    argv = ("--topic", topic, "--group", group)
    lines = queue.run("doctor", *argv).out.splitlines()
    assert lines[0].startswith(f"ok    pymq: version {pymq.__version__}, protocol ")
    assert f"ok    topic {topic}: 2 partitions of 1 topic, all with a leader and in sync" in lines
    assert lines[-1].endswith(" checks, all passed")
    found = checks(queue, "--topic", topic)
    assert found[f"group {group}"].found == "it has no consumer, and no record waits"
    assert found["leaders"].state == found["brokers"].state == "ok"


def test_of_a_group_that_is_asked_for(queue: Queue, topic: str) -> None:
    """If the requested group has no consumer, the doctor reports that."""
    queue.run("topic", "create", topic)
    queue.put(topic, range(3))
    group = f"{topic}.g"
    queue.run("consume", topic, "--group", group, "--max", 1)
    found = checks(queue, "--topic", topic)[f"group {group}"]
    assert (found.state, found.found) == ("warn", "it has no consumer, and 2 records wait")
    told = queue.call("doctor", "--group", group)
    assert told.code == 1
    assert f"fail  group {group}: it has no consumer, and 2 records wait" in told.out
    assert "      next: start a consumer" in told.out
    assert told.out.splitlines()[-1].split(", ")[1] == "1 failed"
    assert checks(queue, "--group", "nobody", code=1)["group nobody"].state == "fail"
    found = checks(queue, "--topic", f"{topic}x", code=1)[f"topic {topic}x"]
    assert (found.state, found.next_step) == ("fail", f"did you mean '{topic}'?")


def test_dead_letters_and_partitions_without_a_mode(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--acks", "unset")
    queue.run("topic", "create", f"{topic}.dlq")
    queue.put(f"{topic}.dlq", range(2))
    found = checks(queue, "--topic", topic)
    unset = found[f"partition {topic}/0"]
    assert (unset.state, "no ack mode" in unset.found) == ("warn", True)
    assert unset.next_step is not None
    assert f"set-state {topic} 0 leader" in unset.next_step
    dead = found[f"dead letters {topic}.dlq"]
    assert (dead.state, dead.found.split(" were ")[0]) == ("warn", "2 records")
    queue.run("topic", "create", f"{topic}x.dlq")
    queue.put(f"{topic}x.dlq", [1])
    one = checks(queue, "--topic", f"{topic}x", code=1)[f"dead letters {topic}x.dlq"]
    assert one.found == "1 record was delivered too often and moved here"


# --- what a partition can have ------------------------------------------------------------------


def test_partitions_in_trouble() -> None:
    part = PartitionDescription(
        *("0", 0, pymq.AckMode.LEADER, "a", 1, ("a", "b", "c"), ("a", "b"), 0, 5, 5, ())
    )
    topic = TopicDescription("t", TopicConfig(min_in_sync=2), (part,))

    def told(**changes: Any) -> tuple[str, str]:
        found = trouble(topic, attrs.evolve(part, **changes))
        assert found is not None
        return found[0], found[1]

    assert told() == ("warn", "c not in sync: fewer copies than 3")
    state, found = told(in_sync=("a",))
    assert (state, "producers are refused" in found) == ("fail", True)
    assert told(leader=None) == ("fail", "it has no leader")
    assert told(problem="no space left") == ("fail", "no space left")
    assert trouble(topic, attrs.evolve(part, in_sync=("a", "b", "c"))) is None


@pytest.mark.parametrize("is_wiped", [True, False], ids=["disk replaced", "dead"])
def test_sealed_blocks_that_nobody_can_be_read_from(is_wiped: bool) -> None:
    """The partition continues on other brokers, with a leader, and is in sync.

    Readers wait for the older records.
    """
    with Cluster(brokers=2, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, acks="leader")
        first = ""
        with mq.producer() as producer:
            for _ in range(3):  # the first broker has the first and the last block
                first = mq.describe_topic("t").partitions[0].replicas[0]
                producer.send("t", b"a record").result()
                mq.reassign("t", "0", ["broker-0" if first == "broker-1" else "broker-1"])
            producer.send("t", b"one more").result()
        assert [check.state for check in topic_checks(mq, "t")] == ["ok"]
        cluster.crash(first)
        if is_wiped:
            cluster.wipe(first)
            cluster.restart(first)
        cluster.run(seconds=15)
        (found,) = topic_checks(mq, "t")
        assert (found.name, found.state) == ("partition t/0", "fail")
        if is_wiped:
            assert found.found == "no broker holds 2 records any more, from offset 0 on (2 blocks)"
        else:
            where = "from offset 0 on (2 blocks)"
            assert found.found == f"2 records are on {first} alone, which is dead, {where}"
        # Other commands show the problem as well.
        assert states(mq.describe_topic("t"), dead_brokers(mq)) == "1 partly unreadable"
        desk = ClusterSnapshot(mq)
        (line,) = desk.state()["topics"]
        assert (line["unreadable"], line["problems"]) == (1, 0)
        (shown,) = desk.topic("t")["partitions"]
        assert shown["unreadable"] == {"blocks": 2, "records": 2, "from": 0}


# --- folders ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Queue:
    return Queue(str(tmp_path / "data"), capsys)


def test_a_folder_that_is_not_there(folder: Queue) -> None:
    (found,) = [c for c in checks(folder, code=1).values() if c.state == "fail"]
    assert found.found == "there is no such folder"
    assert not Path(folder.url).exists()


def test_a_folder_of_something_else(folder: Queue) -> None:
    Path(folder.url).mkdir()
    assert "it holds no queue" in checks(folder, code=1)[f"folder {folder.url}"].found
    (Path(folder.url) / "broker.cbor").write_bytes(b"")
    assert "of a broker" in checks(folder, code=1)[f"folder {folder.url}"].found


def test_a_folder_that_is_in_use(folder: Queue) -> None:
    with folder.open():
        found = checks(folder, code=1)[f"folder {folder.url}"]
    assert "has" in found.found
    assert "(STORE_LOCKED)" in found.found
    assert found.next_step is not None
    assert "one process at a time" in found.next_step


def test_a_folder_that_is_damaged(folder: Queue) -> None:
    folder.open().close()
    (Path(folder.url) / "metadata.db").write_bytes(b"nonsense" * 1_000)
    found = checks(folder, code=1)[f"folder {folder.url}"]
    assert found.next_step == f"'pymq verify {folder.url}' says what is damaged"


def test_a_disk_that_is_nearly_full(folder: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.open().close()
    assert checks(folder)["disk"].state == "ok"
    monkeypatch.setattr(connectivity, "FREE_MIN", 1 << 80)
    monkeypatch.setattr(connectivity, "FREE_SHARE", 1.01)
    assert checks(folder)["disk"].state == "warn"


# --- why can I not connect ----------------------------------------------------------------------


def first_failure(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> Finding:
    found = checks(Queue(url, capsys), *argv, code=1)
    return next(check for check in found.values() if check.state == "fail")


@pytest.mark.parametrize(
    ("url", "name", "found"),
    [
        ("http://x", "url", "is no URL of a cluster"),
        ("zmq+tcp://host", "url", "'host' is not HOST:PORT"),
        ("zmq+tcp://127.0.0.1:1", "zkserver tcp://127.0.0.1:1", "no program listens there"),
        (
            "zmq+tcp://none.invalid:7",
            "zkserver tcp://none.invalid:7",
            "'none.invalid' cannot be resolved",
        ),
        ("zmq+ipc:///nowhere/at/all", "zkserver ipc:///nowhere/at/all", "no program listens there"),
        ("zmq+tcp://h:1?principal=x", "url", "give curve_dir, too"),
        ("zmq+tcp://h:1?curve_dir=/nowhere", "keys", "no keys can be read in /nowhere"),
    ],
)
def test_what_cannot_be_reached(
    capsys: pytest.CaptureFixture[str], url: str, name: str, found: str
) -> None:
    failure = first_failure(capsys, url)
    assert failure.name == name
    assert found in failure.found


@contextmanager
def listening(says: bytes) -> Iterator[str]:
    """Start a server that speaks another protocol, for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64), b""])
def test_a_port_of_another_program(capsys: pytest.CaptureFixture[str], says: bytes) -> None:
    with listening(says) as address:
        told = Queue(f"zmq+tcp://{address}", capsys).call("doctor")
    assert told.code == 1
    assert "does not speak ZeroMQ" in told.out
    assert ("HTTP" in told.out) == (says != b"")


def test_a_zkserver_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWER_S", 0.3)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        found = first_failure(capsys, f"zmq+tcp://127.0.0.1:{port}")
    assert "accepts connections and does not answer" in found.found


def test_answers_of_zkservers() -> None:
    standing_by = connectivity.answer_check("e", NotController("", controller="f"), "")
    assert (standing_by.state, "f is the active zkserver" in standing_by.found) == ("ok", True)
    lost = connectivity.answer_check("e", NotController("", controller=None), "")
    assert "knows no active zkserver" in lost.found
    version = "protocol version 9 is not spoken here"
    assert version in connectivity.answer_check("e", RequestTimeout(""), version).found
    assert connectivity.answer_check("e", StoreFull("full"), "").found == "full (STORE_FULL)"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[pymq.ZkServer]:
    """A zkserver with keys and a policy: root may do anything, and bob may connect."""
    keys = tmp_path / "keys"
    make_keys(keys, "root", "bob", nodes=("zkserver",))
    (keys / "policy.toml").write_text('superusers = ["root"]\n')
    with pymq.ZkServer(curve_dir=keys).start() as zkserver:
        yield zkserver


def test_keys(secured: pymq.ZkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, keys = f"zmq+{secured.endpoint}", str(tmp_path / "keys")
    assert "none were given" in first_failure(capsys, url).found
    assert "which secret key" in first_failure(capsys, url, "--curve-dir", keys).found
    argv = ("--curve-dir", keys, "--principal", "root")
    found = checks(Queue(url, capsys), *argv, code=1)
    assert found["keys"].found == f"our name is root, from the secret key in {keys}"
    assert found[f"zkserver {secured.endpoint}"].state == "ok"
    assert found["brokers"].found == "no broker has registered"
    bob = checks(Queue(url, capsys), "--curve-dir", keys, "--principal", "bob", code=1)
    refused = bob[f"zkserver {secured.endpoint}"]
    assert (refused.state, "refuses to describe" in refused.found) == ("warn", True)
    error = Queue(url, capsys).fails("topic", "list", "--curve-dir", keys, "--principal", "bob")
    assert error["code"] == "CLUSTER_AUTHORIZATION_FAILED"
    assert "policy.toml" in error["hints"][0]


def test_a_key_that_nobody_knows(
    secured: pymq.ZkServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    make_keys(other, "mallory")
    url = f"zmq+{secured.endpoint}"
    assert (
        "has no public key for the zkserver"
        in first_failure(capsys, url, "--curve-dir", str(other)).found
    )
    (other / "zkserver.pub").write_bytes((tmp_path / "keys" / "zkserver.pub").read_bytes())
    found = first_failure(capsys, url, "--curve-dir", str(other))
    assert "refuses our key" in found.found
    # An ordinary client gets the problem as an error.
    with pymq.open(url, curve_dir=other) as mq:
        wait_until(lambda: "does not know our key" in _refusal(mq), WAIT_S)


def _refusal(mq: pymq.Client) -> str:
    with pytest.raises(RequestTimeout) as raised:
        mq.questions.ask(ListTopics, timeout=0.5)
    return str(raised.value)


def test_keys_for_a_cluster_without(
    remote: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(tmp_path, "root", nodes=("zkserver",))
    argv = ("--curve-dir", str(tmp_path), "--principal", "root")
    found = first_failure(capsys, remote.url, *argv)
    assert "uses none (NULL)" in found.found


# --- why is nothing delivered -------------------------------------------------------------------


def test_records_that_are_held(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(3))
    group, place = f"{topic}.g", f"group {topic}.g, {topic}/0"
    with remote.open() as mq, mq.consumer(topic, group=group, ack_wait_s=600) as consumer:
        records = polled(consumer, 3)
        before = mq.describe_group(group)
        found = checks(remote, "--group", group)[place]
        assert found.found.startswith("all 3 records are delivered and not acknowledged; those of ")
        consumer.ack(records)
        consumer.commit()
        assert checks(remote, "--group", group)[f"group {group}"].found == "1 consumer, lag 0"
        # The group was described while the consumer held the records; its leases were described
        # afterwards.
        assert before.in_flight[topic, "0"] == 3
        assert delayed(mq, before, topic, "0") is None


def test_a_partition_that_is_paused(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    group, place = f"{topic}.g", f"group {topic}.g, {topic}/0"
    with remote.open() as mq, mq.consumer(topic, group=group) as consumer:
        consumer.pause("0")
        waiting = threading.Thread(target=consumer.poll, kwargs={"timeout": 60})
        waiting.start()
        remote.put(topic, range(3))
        try:
            wait_until(
                lambda: "has paused it" in getattr(_look(remote, group, place), "found", ""), WAIT_S
            )
        finally:
            consumer.resume("0")
            waiting.join()


def _look(queue: Queue, group: str, place: str) -> Finding | None:
    return checks(queue, "--group", group).get(place)


def test_records_that_come_again_and_again(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(3))
    group, place = f"{topic}.g", f"group {topic}.g, {topic}/0"
    with remote.open() as mq, mq.consumer(topic, group=group, ack_wait_s=600) as consumer:
        for _ in range(2):
            consumer.nack(polled(consumer, 3))
        polled(consumer, 3)
        found = checks(remote, "--group", group)[place]
    assert found.found == (
        "3 records were delivered 3 times and not acknowledged, the first at offset 0"
    )
    assert found.next_step is not None
    assert f"'pymq explain {topic} 0 0'" in found.next_step


def test_one_record_that_comes_again(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(1))
    group, place = f"{topic}.g", f"group {topic}.g, {topic}/0"
    with remote.open() as mq, mq.consumer(topic, group=group, ack_wait_s=600) as consumer:
        consumer.nack(polled(consumer, 1))
        polled(consumer, 1)
        found = checks(remote, "--group", group)[place]
    assert found.found == "1 record was delivered 2 times and not acknowledged, at offset 0"


# --- a cluster in trouble -----------------------------------------------------------------------


def test_a_broker_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor names the dead broker and the affected partitions."""
    with pymq.ZkServer(offsets_partitions=1, offsets_replicas=1).start() as zkserver:
        first = pymq.Broker("broker-0", zkservers=[zkserver.endpoint])
        second = pymq.Broker("broker-1", zkservers=[zkserver.endpoint])
        queue = Queue(f"zmq+{zkserver.endpoint}", capsys)
        with first.start():
            with second.start():
                queue.run("topic", "create", "both", "--replicas", 2, "--acks", "leader")
                queue.run("topic", "create", "most", "--replicas", 2, "--acks", "raft")
                queue.put("both", range(3))
                wait_until(lambda: _brokers(queue).found == "broker-0, broker-1 alive", WAIT_S)
            wait_until(lambda: _brokers(queue).state == "warn", WAIT_S)
            assert _brokers(queue).found == "broker-1 is dead, 1 alive"
            wait_until(lambda: _all(queue).get("partition both/0") is not None, WAIT_S)
            both = _all(queue)["partition both/0"]
            assert (both.state, both.found) == (
                "warn",
                "broker-1 not in sync: fewer copies than 2",
            )
            wait_until(lambda: _all(queue).get("partition most/0") is not None, WAIT_S)
        wait_until(lambda: _brokers(queue).state == "fail", WAIT_S)
        assert _brokers(queue).found == "all are dead: broker-0, broker-1"


def _all(queue: Queue) -> dict[str, Finding]:
    rows = queue.call("doctor", "--json")
    return {row["name"]: Finding(**row) for row in json.loads(rows.out)["checks"]}


def _brokers(queue: Queue) -> Finding:
    return _all(queue)["brokers"]


def test_what_a_broker_advertises_to_kafkas_clients() -> None:
    pytest.importorskip("crc32c", reason="crc32c is not installed")
    with (
        pymq.ZkServer().start() as zkserver,
        pymq.Broker("b", zkservers=[zkserver.endpoint], kafka="127.0.0.1:0").start() as broker,
    ):
        good = kafka_check("broker b", broker.kafka)
        assert (good.state, good.name) == ("ok", f"broker b {broker.kafka}")
        assert "APIs" in good.found
        other = kafka_check("broker b", zkserver.endpoint.removeprefix("tcp://"))
        assert other.state == "fail"
        assert "--kafka-advertise" in str(other.next_step)
    gone = kafka_check("broker b", broker.kafka)
    assert (gone.state, gone.found) == ("fail", "no connection: Connection refused")
    assert kafka_check("broker b", "nowhere").state == "fail"
