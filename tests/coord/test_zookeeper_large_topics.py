"""A topic that is too large for one ZooKeeper request is created and deleted as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pymq.coord import paths
from pymq.core.message import CreateTopic, DeleteTopic
from pymq.core.metadata.nodes import TopicNode, decode_node
from pymq.core.types import AckMode
from pymq.testing.zookeeper import ZooKeeper
from tests.coord.sessions import expire, session
from tests.coord.test_zookeeper_zkservers import Pair, Zkserver

pytestmark = pytest.mark.zookeeper

COUNT = 1_000
NAMES = tuple(f"a-partition-{index}" for index in range(COUNT))
BYTES = 100_000  # limit of a request, at the server and the client


@pytest.fixture(scope="module")
def small(needs_zookeeper: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Return a server with a tenth of the usual limit, so that few partitions are many."""
    java = (f"-Djute.maxbuffer={BYTES}",)
    with ZooKeeper(tmp_path_factory.mktemp("small"), java=java) as running:
        yield running


@contextmanager
def zkservers(hosts: str, root: str) -> Iterator[Pair]:
    options = f"&max_request_bytes={BYTES * 9 // 10}"
    with session(hosts, root, options) as one, session(hosts, root, options) as two:
        yield Pair(Zkserver("zk-0", one), Zkserver("zk-1", two))


def ask_for(zkserver: Zkserver, number: int) -> None:
    make = CreateTopic(number, "large", NAMES, 1, AckMode.UNSET, {})
    zkserver.loop.take([(zkserver.name, "client", make)])


def in_the_tree(hosts: str, root: str) -> tuple[bool | None, int]:
    """Return whether the topic is hidden (None if it is missing), and how many partitions
    it has.
    """
    with session(hosts, root) as reader:
        found = {entry.path: entry for entry in reader.load("/")}
    count = sum(isinstance(paths.parse(path), paths.PartitionPath) for path in found)
    topic = found.get(paths.topic("large"))
    return (None if topic is None else decode_node(TopicNode, topic.data).is_hidden), count


def test_a_topic_larger_than_a_request_is_made_and_deleted(small: ZooKeeper) -> None:
    with zkservers(small.hosts, "/larger") as two:
        active = two.active()
        ask_for(active, 1)
        assert two.answer(active, 1).result is True
        assert in_the_tree(small.hosts, "/larger") == (False, COUNT)
        active.loop.take([(active.name, "client", DeleteTopic(2, "large"))])
        assert two.answer(active, 2).error is None
        assert in_the_tree(small.hosts, "/larger") == (None, 0)


@pytest.mark.parametrize("is_made", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_topic_is_whole_or_gone_when_its_zkserver_is_lost_midway(
    small: ZooKeeper, is_made: bool
) -> None:
    root = f"/midway{is_made}"
    with zkservers(small.hosts, root) as two:
        old = two.active()
        ask_for(old, 1)
        if is_made:
            two.answer(old, 1)
            old.loop.take([(old.name, "client", DeleteTopic(2, "large"))])

        def is_half_way() -> bool:
            hidden = old.machine.image.hidden.get("large")
            return hidden is not None and COUNT // 4 < len(hidden.partitions) < COUNT * 3 // 4

        two.until(is_half_way, "slice")
        old.turns = False
        assert in_the_tree(small.hosts, root)[0] is True
        expire(old.one, small.hosts)
        old.turns = True
        two.resigned(old)
        new = two.active()
        two.until(lambda: not new.machine.image.hidden, "removal of what was left")
        assert in_the_tree(small.hosts, root) == (None, 0)
        ask_for(new, 3)
        assert two.answer(new, 3).result is True
        assert in_the_tree(small.hosts, root) == (False, COUNT)
