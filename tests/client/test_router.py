"""The requests of a client to zkservers and brokers, and their retries."""

from __future__ import annotations

import pytest

from pymq.client.router import LOST_MS, REFRESH_LOST_MS, REFRESH_MS, Call, Router
from pymq.core.message import Answer, DeleteTopic, GetMetadata, Message, UnderWay
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import NotController, QuotaExceeded, RequestTimeout


class Bench:
    """A router with one zkserver, and the messages that it sends."""

    def __init__(self) -> None:
        self.router = Router("client", ["zk"], lambda: None)

    def call(self, peer: str | None = None, timeout_ms: int = 5_000) -> Call:
        return self.router.call(lambda r: DeleteTopic(r, "t"), 0, timeout_ms, peer)

    def sent(self, now: int) -> list[tuple[str, Message]]:
        self.router.tick(now)
        ready = self.router.ready(now)
        return list(ready.send) if ready is not None else []

    def refuse(self, source: str, wait_ms: int, now: int) -> None:
        self.router.step(source, Answer(1, error=QuotaExceeded("no", retry_ms=wait_ms)), now)


@pytest.mark.parametrize("peer", [None, "broker-0"])
def test_who_is_over_a_quota_asks_again_when_he_was_told(peer: str | None) -> None:
    bench = Bench()
    call = bench.call(peer)
    ((asked, _),) = bench.sent(0)
    bench.refuse(asked, 700, 10)
    assert bench.sent(709) == []
    assert bench.router.deadline == 710
    ((again, _),) = bench.sent(710)
    assert again == asked
    bench.refuse(asked, 0, 720)
    assert bench.sent(720 + REFRESH_MS - 1) == []
    assert len(bench.sent(720 + REFRESH_MS)) == 1
    bench.router.step(asked, Answer(1, True), 800)
    assert (call.is_done, call.error) == (True, None)
    assert not call.is_repeated  # A refused request was not carried out.


def test_who_would_have_to_wait_for_too_long_is_told() -> None:
    bench = Bench()
    call = bench.call()
    bench.sent(0)
    bench.refuse("zk", 6_000, 10)
    assert call.is_done
    assert isinstance(call.error, QuotaExceeded)


def test_who_waits_is_given_up_in_time() -> None:
    bench = Bench()
    call = bench.call(timeout_ms=1_000)
    bench.sent(0)
    bench.refuse("zk", 900, 10)
    bench.sent(910)
    bench.sent(1_000)
    assert isinstance(call.error, RequestTimeout)


def test_what_is_under_way_is_waited_for() -> None:
    """Each sign of progress extends the wait by the call's full timeout."""
    bench = Bench()
    call = bench.call(timeout_ms=5_000)
    bench.sent(0)
    now = 0
    while now < 60_000:
        bench.router.step("zk", UnderWay(1), now)
        assert bench.sent(now + 2_499) == []
        now += 2_500
        # the router asks whether a zkserver still works on the request
        ((again, _),) = bench.sent(now)
        assert again == "zk"
    assert not call.is_done
    bench.router.step("zk", Answer(1, True), now)
    assert (call.is_done, call.error) == (True, None)


def test_what_nobody_says_any_more_to_be_under_way_is_given_up() -> None:
    bench = Bench()
    call = bench.call(timeout_ms=5_000)
    bench.sent(0)
    bench.router.step("zk", UnderWay(1), 4_000)
    for now in range(4_000, 9_000, 100):
        bench.sent(now)
    assert not call.is_done
    bench.sent(9_000)
    assert isinstance(call.error, RequestTimeout)


def test_an_active_zkserver_that_does_not_answer_is_named() -> None:
    """The error names the silent active zkserver, although the other one has refused."""
    router = Router("client", ["zk-0", "zk-1"], lambda: None)
    call = router.call(lambda r: DeleteTopic(r, "t"), 0, 3_000)
    for now in range(0, 3_001, 50):
        router.tick(now)
        ready = router.ready(now)
        for peer, _ in ready.send if ready is not None else ():
            if peer == "zk-1":
                hint = NotController("no", controller="zk-0", endpoint="zk-0")
                router.step("zk-1", Answer(1, error=hint), now)
    assert isinstance(call.error, RequestTimeout)
    assert "no answer from zk-0, which is the active zkserver of zk-0, zk-1" in str(call.error)


def metadata(request: int, leader: str | None, epoch: int = 1) -> Answer:
    led = PartitionLeader("0", 0, AckMode.RAFT, epoch, leader, None)
    return Answer(request, TopicMetadata("t", "id", TopicConfig(), (led,)))


def test_a_leader_that_is_lost_is_asked_about_until_there_is_another() -> None:
    """The router asks repeatedly for the successor of a lost leader, instead of once after a
    timeout.
    """
    bench = Bench()
    router = bench.router
    router.refresh("t")
    bench.sent(0)
    router.step("zk", metadata(1, "broker-0"), 0)
    assert bench.sent(10_000) == []
    router.lost("broker-0", True, 10_000)
    told: list[int] = []
    router.metadata.listen("reader", lambda: told.append(1))
    now = 10_000
    for request in range(2, 7):
        ((_, message),) = bench.sent(now)
        assert isinstance(message, GetMetadata)
        # The zkserver does not know yet that the leader is lost.
        router.step("zk", metadata(request, "broker-0"), now)
        now = router.deadline
    assert now <= 10_000 + 50 + 4 * REFRESH_LOST_MS
    assert told == []
    bench.sent(now)
    router.step("zk", metadata(7, "broker-1", 2), now)
    assert told == [1]
    assert router.metadata.find("t", "0") == "broker-1"
    assert bench.sent(now + 10_000) == []


@pytest.mark.parametrize("is_back", [True, False])
def test_a_leader_that_is_there_again_is_asked_about_no_more(is_back: bool) -> None:
    """The router stops asking about a leader that is back, or that has been away so long that
    requests may be sent to it again.
    """
    bench = Bench()
    router = bench.router
    router.refresh("t")
    bench.sent(0)
    router.step("zk", metadata(1, "broker-0"), 0)
    router.lost("broker-0", True, 100)
    assert len(bench.sent(100)) == 1
    if is_back:
        router.lost("broker-0", False, 110)
    router.step("zk", metadata(2, "broker-0"), 110 if is_back else 100 + LOST_MS)
    assert bench.sent(100_000) == []


def test_what_a_lost_zkserver_was_asked_another_one_is_asked() -> None:
    router = Router("client", ["zk", "other"], lambda: None)
    call = router.call(lambda r: DeleteTopic(r, "t"), 0, 5_000)
    assert router.ready(0) is not None
    router.lost("zk", True, 10)
    assert router.deadline == 10
    router.tick(10)
    ready = router.ready(10)
    assert ready is not None
    assert [peer for peer, _ in ready.send] == ["other"]
    assert call.is_repeated


def test_who_led_a_topic_that_was_deleted_does_not_lead_the_next_one_of_its_name() -> None:
    """The old topic's leader is not used for the new topic, although the old leader's epoch is
    higher.
    """
    bench = Bench()
    for topic_id, epoch, leader in (("id-1", 5, "broker-1"), ("id-2", 1, "broker-0")):
        bench.router.refresh("t")
        ((_, asked),) = bench.sent(0)
        assert isinstance(asked, GetMetadata)
        led = PartitionLeader("0", 0, AckMode.LEADER, epoch, leader, "")
        found = TopicMetadata("t", topic_id, TopicConfig(), (led,))
        bench.router.step("zk", Answer(asked.id, found), 0)
        assert bench.router.metadata.find("t", "0") == leader
        bench.router.metadata.forget("t")  # as in a client that deletes the topic
        assert bench.router.metadata.find("t", "0") is None
