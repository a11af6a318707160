"""The page's sums over more topics and groups than one snapshot describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pymq
from pymq.web import snapshots
from pymq.web.snapshots import TOPICS_A_VISIT, TOPICS_MAX, ClusterSnapshot
from pymq.web.summaries import FRESH_S, Rounds

TOPICS = 450


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def many() -> Iterator[pymq.Client]:
    """Two brokers in one process, and more topics than a snapshot describes."""
    with pymq.open("memory:", brokers=2) as mq:
        with mq.producer() as producer:
            for number in range(TOPICS):
                mq.create_topic(f"t{number:03}", replicas=1 + number % 2)
                producer.send_many(f"t{number:03}", [b"x" * 100] * (1 + number % 7))
        yield mq


def look(desk: ClusterSnapshot, clock: Clock) -> dict[str, Any]:
    clock.now += 1_000_000 if not clock.now else 10
    return desk.state()


def direct(mq: pymq.Client) -> dict[str, tuple[int, int]]:
    """Blocks and bytes on each broker, from descriptions of all topics at once."""
    found: dict[str, tuple[int, int]] = {}
    for name in mq.topics():
        for partition in mq.describe_topic(name).partitions:
            for block in partition.blocks:
                for broker in block.replicas:
                    blocks, size = found.get(broker, (0, 0))
                    found[broker] = (blocks + 1, size + block.size_bytes)
    return found


def shown(state: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {b["name"]: (b["blocks"], b["bytes"]) for b in state["cluster"]["brokers"]}


def test_the_sums_are_of_all_topics(many: pymq.Client) -> None:
    clock = Clock()
    desk = ClusterSnapshot(many, clock)
    covered = []
    for _ in range(3):
        state = look(desk, clock)
        covered.append((state["sums"]["topics"], state["sums"]["rated"]))
        assert state["sums"]["of"] == TOPICS
        assert len(state["topics"]) == TOPICS_MAX
        assert len(state["more_topics"]) == TOPICS - TOPICS_MAX
    first = TOPICS_MAX + TOPICS_A_VISIT
    assert covered == [(first, 0), (first + TOPICS_A_VISIT, TOPICS_MAX), (TOPICS, TOPICS_MAX + 50)]
    assert shown(state) == direct(many)
    assert sum(blocks for blocks, _ in shown(state).values()) == TOPICS + TOPICS // 2
    for _ in range(2):
        state = look(desk, clock)
    assert state["sums"]["rated"] == TOPICS
    assert state["sums"]["short"] == 0
    assert state["rates"][-1][1] == 0


def test_records_sent_to_a_topic_that_is_not_shown_count(many: pymq.Client) -> None:
    clock = Clock()
    desk = ClusterSnapshot(many, clock)
    for _ in range(5):
        look(desk, clock)
    with many.producer() as producer:
        producer.send_many("t449", [b"x"] * 1_000).wait()
    rates = [look(desk, clock)["rates"][-1][1] for _ in range(4)]
    # Each topic is described every 25 s, about in each third snapshot; until then its rate stays.
    assert {0.0, max(rates)} >= set(rates)
    assert 1_000 / 50 <= max(rates) <= 1_000 / 20


def test_what_is_deleted_or_old_is_forgotten(many: pymq.Client) -> None:
    clock = Clock()
    desk = ClusterSnapshot(many, clock)
    many.create_topic("zzz")
    for _ in range(4):
        state = look(desk, clock)
    assert state["sums"]["topics"] == TOPICS + 1
    many.delete_topic("zzz")
    state = look(desk, clock)
    assert (state["sums"]["topics"], state["sums"]["of"]) == (TOPICS, TOPICS)
    assert "zzz" not in desk._topics_known.names
    clock.now += FRESH_S
    state = look(desk, clock)
    assert state["sums"]["topics"] == TOPICS_MAX + TOPICS_A_VISIT
    assert all(rate is not None for rate in state["rates"])


def test_a_visit_is_short(many: pymq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If descriptions are slow, a snapshot describes one of the other topics."""
    monkeypatch.setattr(snapshots, "VISIT_S", -1.0)
    clock = Clock()
    desk = ClusterSnapshot(many, clock)
    for number in range(1, 4):
        assert look(desk, clock)["sums"]["topics"] == TOPICS_MAX + number


def test_the_lag_is_of_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "GROUPS_MAX", 3)
    monkeypatch.setattr(snapshots, "GROUPS_A_VISIT", 2)
    clock = Clock()
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with mq.producer() as producer:
            producer.send_many("orders", [b"x"] * 100).wait()
        for number in range(8):
            mq.reset_group(f"g{number}", "orders", number)
        desk = ClusterSnapshot(mq, clock)
        lags = [look(desk, clock)["lag"] for _ in range(4)]
        assert [lag["groups"] for lag in lags] == [5, 7, 8, 8]
        assert {lag["of"] for lag in lags} == {8}
        assert lags[-1]["records"] == sum(100 - number for number in range(8))
        state = desk.state()
        assert [group["name"] for group in state["groups"]] == ["g0", "g1", "g2"]
        assert state["more_groups"] == [f"g{number}" for number in range(3, 8)]
        mq.delete_group("g7")
        assert look(desk, clock)["lag"] == {"groups": 7, "of": 7, "records": 700 - 21}


def test_rounds_visit_each_once_before_any_again() -> None:
    rounds = Rounds()
    seen = []
    for names in ("abcde", "abcde", "abde", "abdef"):
        turn = rounds.visit(names)
        seen += [next(turn), next(turn)]
    assert seen == ["a", "b", "c", "d", "e", "a", "b", "d"]
    assert list(rounds.visit("")) == []
