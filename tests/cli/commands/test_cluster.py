"""``pymq cluster`` and ``pymq bench``."""

from __future__ import annotations

import pytest

from pymq.cli.commands import cluster as command
from pymq.cli.diagnosis.health import copies_check
from pymq.cli.show import Show
from pymq.client.admin.requests import Requests
from pymq.core.metadata.descriptions import BrokerDescription, ClusterDescription
from pymq.core.metadata.nodes import Loss
from tests.cli.conftest import BROKERS, Queue


def test_the_status(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    told = queue.run("cluster", "status")
    assert told.out.startswith("active zkserver ")
    assert told.rows[1] == "broker state leads blocks rack endpoint".split()
    names = [row[0] for row in told.rows[3:]]
    found = queue.json("cluster", "status")
    assert [broker["name"] for broker in found["brokers"]] == names
    assert found["leaderless"] == []
    assert found["brokers"][0]["alive"]


def test_the_status_of_a_cluster_in_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    found = ClusterDescription("zk", 3, (), leaderless=("orders/0", "orders/1"))
    command.tell(found, Show(is_json=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("no broker has registered yet")
    assert lines[-1] == "orders/0, orders/1: no leader; 'pymq topic describe' says why"


def test_the_state_of_a_broker() -> None:
    def told(alive: bool, is_draining: bool) -> str:
        return command.state(BrokerDescription("b", "", None, alive, 0, is_draining))

    assert [told(True, False), told(True, True), told(False, True)] == ["alive", "draining", "dead"]


def test_a_partition_moves(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic, "--replicas", 2)
    before = remote.json("topic", "describe", topic)["partitions"][0]["replicas"]
    (other,) = set(BROKERS) - set(before)
    told = remote.run("cluster", "reassign", topic, 0, other, before[0])
    assert told.out == (
        f"{topic}/0 is from now on on {other}, {before[0]}; no older records are copied\n"
    )
    found = remote.json("cluster", "reassign", topic, 0, other, before[0])
    assert (found["changed"], found["replicas"]) == (False, [other, before[0]])
    assert remote.fails("cluster", "reassign", topic, 0, "nobody")["code"] == "NOT_ENOUGH_BROKERS"
    assert remote.fails("cluster", "reassign", topic, 9, other)["code"] == "UNKNOWN_PARTITION"


def test_a_folder_has_nowhere_to_move_to(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    assert queue.fails("cluster", "reassign", topic, 0, "broker-9")["code"] == "NOT_ENOUGH_BROKERS"


def test_a_broker_is_taken_out_and_back(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    (leader,) = remote.json("topic", "describe", topic)["partitions"][0]["replicas"]
    told = remote.run("cluster", "decommission", leader)
    assert told.out.startswith(f"{leader} gets no new blocks; ")
    assert [leader, "draining"] in [row[:2] for row in remote.run("cluster", "status").rows]
    assert remote.json("cluster", "recommission", leader) == {"broker": leader, "changed": True}
    told = remote.run("cluster", "recommission", leader)
    assert told.out == f"{leader} gets new blocks as before\n"
    assert remote.json("cluster", "decommission", leader)["broker"] == leader
    assert remote.run("cluster", "recommission", leader).out.endswith(" new blocks again\n")
    for word in ("decommission", "recommission"):
        error = remote.fails("cluster", word, "nobody")
        assert "there is no broker 'nobody'; there are broker-" in error["message"]


def test_when_a_broker_may_be_stopped(remote: Queue, topic: str) -> None:
    """The command waits until the broker is empty; by then older records have been copied."""
    remote.run("topic", "create", topic)
    (leader,) = remote.json("topic", "describe", topic)["partitions"][0]["replicas"]
    remote.put(topic, range(3))
    told = remote.run("cluster", "decommission", leader, "--wait")
    given, may = told.out.splitlines()
    assert given.startswith(f"{leader} gets no new blocks; ")
    assert may == "it may be stopped: other brokers have all of its records"
    found = remote.json("cluster", "decommission", leader, "--wait")
    assert (found["blocks"], found["kept_by"]) == (0, [])
    blocks = remote.json("topic", "describe", topic)["partitions"][0]["blocks"]
    assert len(blocks) == 2
    assert all(leader not in block["replicas"] for block in blocks)
    remote.run("cluster", "recommission", leader)
    remote.run("topic", "delete", "--yes", topic)


def test_older_records_follow_if_they_are_to(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    (before,) = remote.json("topic", "describe", topic)["partitions"][0]["replicas"]
    other = next(name for name in BROKERS if name != before)
    remote.put(topic, range(3))
    told = remote.run("cluster", "reassign", topic, 0, other, "--move-sealed")
    assert told.out == f"{topic}/0 is from now on on {other}; older records are being copied\n"
    remote.run("topic", "delete", "--yes", topic)


def test_the_status_tells_of_copies(capsys: pytest.CaptureFixture[str]) -> None:
    broker = BrokerDescription("b", "", None, True, 1, blocks=9)
    found = ClusterDescription("zk", 3, (broker,), under_replicated_blocks=7, moving_blocks=2)
    command.tell(found, Show(is_json=False))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "too few copies of 7 sealed blocks; 2 are being copied"
    check = copies_check(found)
    assert (check.state, check.found) == (
        "warn",
        "too few of 7 sealed blocks, 2 of which are being copied",
    )


def test_the_status_tells_of_one_copy(capsys: pytest.CaptureFixture[str]) -> None:
    broker = BrokerDescription("b", "", None, True, 1, blocks=9)
    found = ClusterDescription("zk", 3, (broker,), under_replicated_blocks=1, moving_blocks=1)
    command.tell(found, Show(is_json=False))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "too few copies of 1 sealed block; 1 is being copied"
    assert copies_check(found).found == "too few of 1 sealed block, 1 of which is being copied"
    found = ClusterDescription("zk", 3, (broker,), moving_blocks=1)
    command.tell(found, Show(is_json=False))
    assert capsys.readouterr().out.splitlines()[-1] == "1 sealed block is being copied"


def test_a_recovery_is_meant(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    argv = ("cluster", "recover", topic, 0)
    assert "--accept-loss" in queue.fails(*argv)["message"]
    assert queue.run(*argv, "--accept-loss").out.startswith("nothing to recover")
    assert queue.json(*argv, "--accept-loss") == {"topic": topic, "partition": "0", "loss": None}
    assert queue.fails("cluster", "recover", topic, "7", "--accept-loss")["code"] == (
        "UNKNOWN_PARTITION"
    )


def test_what_a_recovery_loses(capsys: pytest.CaptureFixture[str]) -> None:
    command.tell_loss(Loss(2, 77, 0, "broker-1", 1_000), Show(is_json=False))
    assert capsys.readouterr().out == (
        "it continues with the records of broker-1; "
        "records from offset 77 on may have been lost at 1970-01-01T00:00:01.000Z\n"
    )


def test_nobody_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the nodes that did not answer, and a command that finds out more."""
    defaults = Requests.ask.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.2)  # a shorter timeout instead of ten seconds
    queue = Queue("zmq+tcp://127.0.0.1:1", capsys)
    error = queue.fails("cluster", "status")
    assert error["code"] == "REQUEST_TIMEOUT"
    assert error["retriable"]
    assert "tcp://127.0.0.1:1" in error["message"]
    assert error["hints"] == ["'pymq doctor' finds the reason"]


# --- bench --------------------------------------------------------------------------------------

SMALL = ("bench", "--records", 500, "--samples", 5, "--size", 10)


def test_a_bench(queue: Queue) -> None:
    told = queue.run(*SMALL, "--partitions", 2)
    assert told.out.startswith(
        "500 records of 10 bytes, 2 partitions, 1 replica, acks=leader; one producer"
    )
    heads = [line.split("  ")[0] for line in told.out.splitlines()]
    assert {"many at a time", "produce", "consume", "one by one, ms", "send to answer"} < set(heads)
    assert not [name for name in queue.json("topic", "list")["topics"] if "bench" in name["topic"]]


def test_a_bench_for_programs(queue: Queue) -> None:
    found = queue.json(*SMALL, "--keep", "--config", "fsync=always")
    assert found["rates"].keys() == {"produce", "consume"}
    assert all(rate["records_per_second"] > 0 for rate in found["rates"].values())
    for latency in found["latency_ms"].values():
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    described = queue.json("topic", "describe", found["topic"])
    assert described["config"]["fsync"] == "always"
    assert described["partitions"][0]["end_offset"] == 500 + 1 + 6 + 6
    queue.run("topic", "delete", "--yes", found["topic"])


def test_a_bench_that_cannot_be(queue: Queue) -> None:
    for argv, code in (
        (["--records", "0"], "CONFIG_ERROR"),
        (["--replicas", "9"], "NOT_ENOUGH_BROKERS"),
        (["--config", "nonsense=1"], "CONFIG_ERROR"),
    ):
        assert queue.fails("bench", *argv)["code"] == code
