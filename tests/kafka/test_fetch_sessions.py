"""Fetch sessions: a client names its partitions once, and hears of those with news."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pymq.kafka.codes import Code
from pymq.kafka.shared import fetch_sessions
from pymq.kafka.shared.fetch_sessions import EVICT_MS, FetchSession, FetchSessions
from pymq.kafka.wire import messages as m
from tests.kafka.test_gate import Bench, batch, produce

pytest.importorskip("crc32c", reason="crc32c is not installed")


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    for topic in ("a", "b"):
        found.mq.create_topic(topic)
    yield found
    assert found.failures == []
    found.mq.close()


def fetch(number: int, epoch: int, *places: tuple[str, int], forget: str = "") -> m.FetchRequest:
    topics = [
        m.FetchRequestFetchTopic(
            topic,
            m.NO_ID,
            [m.FetchRequestFetchPartition(0, fetch_offset=at, partition_max_bytes=1 << 20)],
        )
        for topic, at in places
    ]
    forgotten = [m.FetchRequestForgottenTopic(forget, m.NO_ID, [0])] if forget else []
    return m.FetchRequest(
        min_bytes=1,
        session_id=number,
        session_epoch=epoch,
        topics=topics,
        forgotten_topics_data=forgotten,
    )


def heard(answer: Any) -> dict[str, tuple[int, int, int]]:
    """Return code, high watermark and bytes of each partition of an answer."""
    return {
        topic.topic: (each.error_code, each.high_watermark, len(bytes(each.records or b"")))
        for topic in answer.responses
        for each in topic.partitions
    }


def test_only_partitions_with_news_are_in_an_answer(bench: Bench) -> None:
    first = bench.ask("Fetch", 12, fetch(0, 0, ("a", 0), ("b", 0)))
    number = first.session_id
    assert number > 0
    assert heard(first) == {"a": (0, 0, 0), "b": (0, 0, 0)}
    assert heard(bench.ask("Fetch", 12, fetch(number, 1))) == {}
    bench.ask("Produce", 9, produce(batch(b"x"), "b"))
    again = bench.ask("Fetch", 12, fetch(number, 2))
    assert again.session_id == number
    ((topic, (code, high, size)),) = heard(again).items()
    assert (topic, code, high) == ("b", 0, 1)
    assert size > 0
    # The client goes on after the record: only this partition is named again.
    assert heard(bench.ask("Fetch", 12, fetch(number, 3, ("b", 1)))) == {}
    assert heard(bench.ask("Fetch", 12, fetch(number, 4, ("b", 0), forget="a"))).keys() == {"b"}
    bench.ask("Produce", 9, produce(batch(b"y"), "a"))
    assert heard(bench.ask("Fetch", 12, fetch(number, 5, ("b", 1)))) == {}


def test_an_error_is_told_until_it_is_over(bench: Bench) -> None:
    number = bench.ask("Fetch", 12, fetch(0, 0, ("a", 0), ("b", 7))).session_id
    assert heard(bench.ask("Fetch", 12, fetch(number, 1)))["b"][0] == Code.OFFSET_OUT_OF_RANGE
    assert heard(bench.ask("Fetch", 12, fetch(number, 2, ("b", 0)))) == {"b": (0, 0, 0)}
    assert heard(bench.ask("Fetch", 12, fetch(number, 3))) == {}


def test_wrong_sessions_are_refused_and_begun_anew(bench: Bench) -> None:
    number = bench.ask("Fetch", 12, fetch(0, 0, ("a", 0))).session_id
    refused = bench.ask("Fetch", 12, fetch(number + 1, 1))
    assert refused.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    refused = bench.ask("Fetch", 12, fetch(number, 5))
    assert refused.error_code == Code.INVALID_FETCH_SESSION_EPOCH
    other = bench.ask("Fetch", 12, fetch(number, 0, ("a", 0))).session_id
    assert other not in (0, number)
    assert bench.ask("Fetch", 12, fetch(number, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    closing = bench.ask("Fetch", 12, fetch(other, -1, ("a", 0)))
    assert (closing.session_id, heard(closing)) == (0, {"a": (0, 0, 0)})
    assert bench.ask("Fetch", 12, fetch(other, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_old_clients_have_no_sessions(bench: Bench) -> None:
    assert bench.ask("Fetch", 6, fetch(0, -1, ("a", 0))).session_id == 0


def sessions() -> FetchSessions:
    ids = map("{:032x}".format, range(1, 1_000_000))
    return FetchSessions(lambda: next(ids))


def test_sessions_are_bounded_and_unused_ones_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 2)
    here = sessions()
    first, second = (here.turn(fetch(0, 0, ("a", 0)), 0) for _ in range(2))
    assert isinstance(first, FetchSession)
    assert isinstance(second, FetchSession)
    assert here.turn(fetch(0, 0, ("a", 0)), EVICT_MS - 1) is None
    assert here.turn(fetch(first.id, 1), EVICT_MS - 1) is first
    assert isinstance(here.turn(fetch(0, 0, ("a", 0)), EVICT_MS), FetchSession)
    assert here.turn(fetch(second.id, 1), EVICT_MS) is Code.FETCH_SESSION_ID_NOT_FOUND
    assert here.turn(fetch(first.id, 2), EVICT_MS) is first


def test_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 2)
    here = sessions()
    assert here.turn(fetch(0, 0, ("a", 0), ("b", 0), ("c", 0)), 0) is None
    found = here.turn(fetch(0, 0, ("a", 0), ("b", 0)), 0)
    assert isinstance(found, FetchSession)
    assert here.turn(fetch(found.id, 1, ("c", 0)), 0) is Code.FETCH_SESSION_ID_NOT_FOUND
    assert len(here) == 0
    assert isinstance(here.turn(fetch(0, 0, ("a", 0), ("b", 0)), 0), FetchSession)


def test_the_epoch_begins_again_at_1() -> None:
    here = sessions()
    found = here.turn(fetch(0, 0, ("a", 0)), 0)
    assert isinstance(found, FetchSession)
    found.epoch = (1 << 31) - 1
    assert here.turn(fetch(found.id, (1 << 31) - 1), 0) is found
    assert here.turn(fetch(found.id, 1), 0) is found
