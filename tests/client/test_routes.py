"""Routes: a share of a topic's records goes to one group, the rest to all others."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest

import pymq
from pymq.client.producer.delivery import ColumnBuffer
from pymq.client.producer.producer_topic import Routing
from pymq.core.batch.header import ROUTED
from pymq.core.metadata.route import ROUTE, Route, parse_route
from pymq.errors import ConfigError
from pymq.testing import Cluster
from tests.client.helpers import wait_until

WAIT_S = 30.0


def drained(mq: pymq.Client, group: str, topic: str = "t") -> list[pymq.Record]:
    """Consume and acknowledge all records of a group, until it has no lag."""
    found: list[pymq.Record] = []
    with mq.consumer(topic, group=group) as consumer:
        while True:
            records = consumer.poll(timeout=0.2)
            found += records
            consumer.ack(records)
            consumer.commit()
            described = mq.describe_group(group)
            if described.committed and not sum(described.lag.values()) and not records:
                return found


def seen(mq: pymq.Client, topic: str) -> list[pymq.Record]:
    """All records of a topic, as readers see them."""
    if topic not in mq.topics():
        return []
    with mq.consumer(topic, mode="reader") as reader:
        return list(reader.until_end())


def values(records: list[pymq.Record]) -> list[bytes]:
    return [record.value for record in records]


# --- what a route says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("canary:5%", Route("canary", 500)),
        ("canary:0.25%", Route("canary", 25)),
        ("canary:0.5%", Route("canary", 50)),
        ("canary:100%", Route("canary", 10_000)),
        ("canary:0%", Route("canary", 0)),
        ("canary:key=eu-*", Route("canary", 0, b"eu-", True)),
        ("canary:key=k", Route("canary", 0, b"k")),
        ("canary:header.tier=beta", Route("canary", 0, b"beta", False, "tier")),
        ("canary:header.a=b=c:*", Route("canary", 0, b"b=c:", True, "a")),
    ],
)
def test_routes_are_read(text: str, route: Route) -> None:
    assert parse_route(text) == route


@pytest.mark.parametrize(
    "text",
    [
        *("", "canary", "5%", "canary:", "canary:5", "canary:101%", "canary:-1%", "canary:0.125%"),
        *("a b:5%", ":5%", "canary:value=x", "canary:header.=x", "canary:key", "c:5% ", 5, True),
        "canary:key=" + "x" * 1_000,
    ],
)
def test_wrong_routes_are_refused(mq: pymq.Client, text: object) -> None:
    with pytest.raises(ConfigError, match="route="):
        mq.create_topic("t", route=text)  # type: ignore[arg-type] # an invalid one
    mq.create_topic("t")
    with pytest.raises(ConfigError, match="route="):
        mq.alter_topic("t", route=text)  # type: ignore[arg-type] # an invalid one


# --- who gets what ------------------------------------------------------------------------------


def test_a_share_goes_to_one_group(mq: pymq.Client) -> None:
    mq.create_topic("t", 3, route="canary:5%")
    with mq.producer() as producer:
        for number in range(1_000):
            producer.send("t", b"%d" % number)
    canary, others, audit = (drained(mq, group) for group in ("canary", "workers", "audit"))
    assert len(canary) == 50
    assert sorted(values(canary) + values(others), key=int) == [b"%d" % n for n in range(1_000)]
    assert sorted(values(audit)) == sorted(values(others))
    assert all((ROUTE, b"canary") in record.headers for record in canary)
    assert all(record.headers == () for record in others)


def test_a_share_of_bulk_sends(mq: pymq.Client) -> None:
    mq.create_topic("t", 2, route="canary:20%")
    with mq.producer() as producer:
        for start in range(0, 1_000, 100):
            producer.send_many("t", [b"%d" % n for n in range(start, start + 100)])
        keys = [b"key-%d" % n if n % 2 else None for n in range(1_000)]
        producer.send_many("t", [b"%d" % n for n in range(1_000, 2_000)], keys)
    canary, others = drained(mq, "canary"), drained(mq, "workers")
    assert sorted(values(canary) + values(others), key=int) == [b"%d" % n for n in range(2_000)]
    keyless = [record for record in canary if record.key is None]
    assert len(keyless) == 300
    # the share is not exact: 500 keys by their hashes
    assert 60 <= len(canary) - len(keyless) <= 140


def test_a_key_is_routed_as_a_whole(mq: pymq.Client) -> None:
    mq.create_topic("t", 4, route="canary:25%")
    with mq.producer() as producer:
        for number in range(1_600):
            producer.send("t", b"v", key=b"user-%d" % (number % 400))
    canary, others = drained(mq, "canary"), drained(mq, "workers")
    mine, theirs = Counter(r.key for r in canary), Counter(r.key for r in others)
    assert not mine.keys() & theirs.keys()
    assert {*mine.values(), *theirs.values()} == {4}
    assert 70 <= len(mine) <= 130
    by_partition = Counter(record.partition for record in canary)
    assert min(by_partition.values()) >= 4 * 10  # each partition gets some of the records


@pytest.mark.parametrize("route", ["canary:key=eu-*", "canary:header.region=eu"])
def test_records_that_match_go_to_one_group(mq: pymq.Client, route: str) -> None:
    mq.create_topic("t", route=route)
    with mq.producer() as producer:
        for number, region in enumerate([b"eu", b"us", b"eu", b"asia"]):
            headers = [("region", region), ("n", b"1")]
            producer.send("t", b"%d" % number, key=region + b"-1", headers=headers)
        producer.send("t", b"without")
    canary = drained(mq, "canary")
    assert values(canary) == [b"0", b"2"]
    expected = (("region", b"eu"), ("n", b"1"), (ROUTE, b"canary"))
    assert [record.headers for record in canary] == [expected] * 2
    assert values(drained(mq, "workers")) == [b"1", b"3", b"without"]


def test_readers_see_all_records(mq: pymq.Client) -> None:
    mq.create_topic("t", route="canary:50%")
    with mq.producer() as producer:
        producer.send_many("t", [b"%d" % n for n in range(10)])
    assert values(seen(mq, "t")) == [b"%d" % n for n in range(10)]


def all_came(got: dict[str, list[pymq.Record]], count: int) -> bool:
    return sum(map(len, got.values())) == count


def test_a_route_changes_while_it_runs(mq: pymq.Client) -> None:
    """While the route changes, each record goes to exactly one of the two groups, according to the
    route at that time.
    """
    mq.create_topic("t", 2, route="canary:0%")
    got: dict[str, list[pymq.Record]] = {"canary": [], "workers": []}
    is_over = threading.Event()

    def work(group: str) -> None:
        with mq.consumer("t", group=group) as consumer:
            while not is_over.is_set():
                records = consumer.poll(timeout=0.05)
                consumer.ack(records)
                got[group] += records

    threads = [threading.Thread(target=work, args=(group,)) for group in got]
    for thread in threads:
        thread.start()
    sent = 0
    shares = list[int]()
    with mq.producer(linger_ms=0) as producer:
        for share in (0, 50, 100, 10, 0):
            mq.alter_topic("t", route=f"canary:{share}%")
            before = len(got["canary"])
            for _ in range(100):
                producer.send("t", b"%d" % sent)
                sent += 1
            producer.flush()
            wait_until(partial(all_came, got, sent), WAIT_S)
            shares.append(len(got["canary"]) - before)
    is_over.set()
    for thread in threads:
        thread.join()
    both = sorted(int(record.value) for records in got.values() for record in records)
    assert both == list(range(sent))
    assert shares == [0, 50, 100, 10, 0]


def test_without_a_route_again_both_groups_get_all_new_records(mq: pymq.Client) -> None:
    mq.create_topic("t", route="canary:100%")
    with mq.producer() as producer:
        producer.send("t", b"routed").result(WAIT_S)
        mq.alter_topic("t", route=None)
        producer.send("t", b"for all").result(WAIT_S)
    assert values(drained(mq, "canary")) == [b"routed", b"for all"]
    assert values(drained(mq, "workers")) == [b"for all"]


def test_a_delayed_record_keeps_its_route(mq: pymq.Client) -> None:
    mq.create_topic("t", route="canary:key=c")
    with mq.producer() as producer:
        producer.send("t", b"routed", key=b"c", delay_s=0.1)
        producer.send("t", b"other", key=b"w", delay_s=0.1)
    with mq.consumer("t", group="canary") as canary, mq.consumer("t", group="workers") as workers:
        mine, theirs = canary.poll(1, WAIT_S), workers.poll(1, WAIT_S)
    assert (values(mine), values(theirs)) == ([b"routed"], [b"other"])
    # the closed consumer has returned this record
    assert values(drained(mq, "canary")) == [b"routed"]
    assert values(drained(mq, "workers")) == [b"other"]


def test_a_dead_letter_that_goes_back_keeps_its_route(mq: pymq.Client) -> None:
    mq.create_topic("t", route="canary:50%")
    with mq.producer() as producer:
        producer.send_many("t", [b"0", b"1", b"2", b"3"])
    with mq.consumer("t", group="canary", max_deliver=1, dead_letter="t.dlq") as consumer:
        while len(letters := values(seen(mq, "t.dlq"))) < 2:
            consumer.nack(consumer.poll(2, 0.05))
    # a group of the dead-letter topic has no route
    assert values(drained(mq, "audit", "t.dlq")) == letters
    assert mq.redrive("t.dlq").count == 2
    assert sorted(values(drained(mq, "canary"))) == sorted(letters)
    assert not {*values(drained(mq, "workers"))} & {*letters}


def test_the_largest_record_can_be_routed(mq: pymq.Client) -> None:
    group = "g" * 249
    mq.create_topic("t", max_record_bytes=10_000, route=f"{group}:100%")
    with mq.producer() as producer:
        producer.send("t", b"x" * 10_000).result(WAIT_S)
    assert len(drained(mq, group)) == 1


def test_groups_tell_the_routes_of_their_topics(mq: pymq.Client) -> None:
    mq.create_topic("t", route="canary:5%")
    mq.create_topic("u")
    for topic in "tu":
        with mq.producer() as producer:
            producer.send(topic, b"v")
        drained(mq, "workers", topic)
    assert mq.describe_group("workers").routes == {"t": "canary:5%"}
    assert mq.describe_topic("t").config.route == "canary:5%"


def test_on_three_brokers_when_a_leader_dies() -> None:
    with Cluster(brokers=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 2, 3, acks="raft", route="canary:30%")
        with mq.producer() as producer:
            for number in range(200):
                producer.send("t", b"%d" % number)
            producer.flush()
            cluster.crash(str(mq.describe_topic("t").partitions[0].leader))
            for number in range(200, 400):
                producer.send("t", b"%d" % number)
            producer.flush()
        canary, others = drained(mq, "canary"), drained(mq, "workers")
        assert len({*values(canary)}) == 120
        assert {*values(canary)} | {*values(others)} == {b"%d" % n for n in range(400)}
        assert not {*values(canary)} & {*values(others)}


# --- the share ----------------------------------------------------------------------------------


def test_producers_of_one_record_share_fairly() -> None:
    """If many producers send a single record each, the share applies to all of these records
    together.
    """
    route = parse_route("canary:5%")
    routed = 0
    for producer_id in range(1_000):
        stamped = Routing("canary:5%", route, producer_id).stamp(ColumnBuffer([b"v"]))
        routed += stamped.attributes == ROUTED
    assert 45 <= routed <= 55


def test_records_without_a_route_stay_as_they_are() -> None:
    routing = Routing("canary:0%", parse_route("canary:0%"), 0)
    columns = ColumnBuffer([b"v"], [b"k"])
    assert routing.stamp(columns) is columns
    chosen = ColumnBuffer([b"v"], headers=[((ROUTE, b"audit"),)])
    assert routing.stamp(chosen).attributes == ROUTED
    assert routing.stamp(chosen).headers == [((ROUTE, b"audit"),)]
