"""How often the page's snapshots are taken, for how many users, and how much they keep in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pymq
from pymq.errors import AuthorizationFailed, Closed, InvalidRequest
from pymq.web import views
from pymq.web.browse import LIMIT_MAX, browse
from pymq.web.snapshots import DESKS_MAX, EVERY_S, SHARE, ClusterSnapshot, ClusterSnapshots


class Clock:
    """A clock that advances by *step* with each reading."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as client:
        client.create_topic("orders")
        yield client


def test_all_who_look_share_a_look(mq: pymq.Client) -> None:
    clock = Clock()
    desk = ClusterSnapshot(mq, clock)
    first = desk.state()
    clock.now += EVERY_S / 2
    assert desk.state() is first
    clock.now += EVERY_S
    assert desk.state() is not first


def test_a_large_cluster_is_looked_at_less_often(mq: pymq.Client) -> None:
    """The page spends at most a fifth of its time on snapshots, even if a snapshot takes long."""
    clock = Clock()
    clock.step = 10.0
    desk = ClusterSnapshot(mq, clock)
    first = desk.state()
    clock.step = 0.0
    clock.now += SHARE * 10.0 - 1
    assert desk.state() is first
    clock.now += 1_000
    assert desk.state() is not first


def test_a_look_that_waited_for_what_fails_is_soon_followed_by_another(mq: pymq.Client) -> None:
    """A failed snapshot is repeated soon, so that the page does not show old data just after a
    failure.
    """
    clock = Clock()
    desk = ClusterSnapshot(mq, clock)
    desk.state()
    clock.now += EVERY_S
    clock.step = 5.0
    slow = desk.state()
    clock.step = 0.0
    assert desk.age_s > 0
    clock.now += EVERY_S
    assert desk.state() is not slow
    assert desk.age_s == 0


def test_what_is_gone_is_forgotten(mq: pymq.Client) -> None:
    clock = Clock()
    desk = ClusterSnapshot(mq, clock)
    for number in range(5):
        mq.create_topic(f"t{number}")
        clock.now += 10
        desk.state()
        mq.delete_topic(f"t{number}")
    clock.now += 10
    assert [topic["name"] for topic in desk.state()["topics"]] == ["orders"]
    assert desk._topics_known.names == ["orders"]


def test_who_was_not_here_for_long_is_let_go() -> None:
    """An unused client of a principal is closed, with its threads and sockets."""
    opened: dict[str, pymq.Client] = {}

    def open_client(principal: str) -> pymq.Client:
        opened[principal] = pymq.open("memory:")
        return opened[principal]

    desks = ClusterSnapshots(open_client)
    first = desks.of("first")
    for number in range(DESKS_MAX + 2):
        desks.of(str(number))
        assert desks.of("first") is first
    gone = [principal for principal, client in opened.items() if _is_closed(client)]
    assert gone == ["0", "1", "2"]
    desks.close()
    assert all(map(_is_closed, opened.values()))
    with pytest.raises(Closed):
        desks.of("first")


def _is_closed(client: pymq.Client) -> bool:
    try:
        client.topics()
    except Closed:
        return True
    return False


def test_clients_of_others_are_theirs_to_close(mq: pymq.Client) -> None:
    desks = ClusterSnapshots(lambda principal: mq, is_ours=False)
    for number in range(DESKS_MAX + 2):
        desks.of(str(number))
    desks.close()
    assert not _is_closed(mq)


def test_so_many_records_are_shown_and_none_of_our_own(mq: pymq.Client) -> None:
    with mq.producer() as producer:
        producer.send_many("orders", [b"x"] * 2 * LIMIT_MAX)
    assert len(browse(mq, {"topic": "orders", "limit": "1000000"})["records"]) == LIMIT_MAX
    mq.reset_group("billing", "orders", 0)
    with pytest.raises(AuthorizationFailed, match="pymq's own"):
        browse(mq, {"topic": "__consumer_offsets"})
    for odd in ({"limit": "-1"}, {"offset": "1e3"}, {"time_ms": "9" * 30}, {"offset": "\u00b2"}):
        with pytest.raises(InvalidRequest, match="whole number"):
            browse(mq, {"topic": "orders", **odd})


def test_so_many_blocks_are_shown_and_the_others_counted(
    mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "BLOCKS_MAX", 2)
    for acks in ("raft", "leader", "raft"):
        with mq.producer() as producer:
            producer.send("orders", b"x").result()
        mq.set_partition_state("orders", "0", acks)
    (partition,) = ClusterSnapshot(mq).topic("orders")["partitions"]
    whole = mq.describe_topic("orders").partitions[0].blocks
    assert [block["name"] for block in partition["blocks"]] == [b.name for b in whole[-2:]]
    assert partition["older"] == len(whole) - 2 > 0
