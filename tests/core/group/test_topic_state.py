"""A group's state of a topic belongs to one topic id."""

from __future__ import annotations

import random

import pytest

from pymq.core.group.topic_state import TopicState
from pymq.core.message import BEGIN, END
from pymq.errors import StaleEpoch

PARTITIONS = ("0", "1", "2")


def joined(topic: TopicState, topic_id: str, offsets: set[str]) -> bool:
    """Act as a group does when a member joins for that topic.

    Returns whether the member may join.
    """
    try:
        topic.check(topic_id)
    except StaleEpoch:
        return False
    gone = {name for name in offsets if "" < topic.id_of(name) < topic_id}
    topic.forget(lambda found: "" < found < topic_id)
    offsets -= gone
    topic.grow(PARTITIONS, has_members=True)
    topic.adopt(topic_id, sorted(offsets))
    return True


@pytest.mark.parametrize("seed", range(50))
def test_once_a_member_has_joined_all_of_it_is_about_one_topic(seed: int) -> None:
    rng = random.Random(seed)
    topic, offsets = TopicState("t"), set[str]()
    latest = ""
    for _ in range(100):
        name, topic_id = rng.choice(PARTITIONS), rng.choice("abcdef")
        match rng.randrange(4):
            case 0:
                may_join = topic_id >= latest
                assert joined(topic, topic_id, offsets) == may_join
                if may_join:
                    latest = topic_id
                    assert {topic.id_of(name) for name in offsets} <= {latest}
                assert topic.topic_id == latest
            case 1 if latest:
                topic.learn(name, 0, rng.randrange(9))
                topic.begin(name, latest)
                offsets.add(name)
            case 2:
                topic.begin_anew(name, "")  # An administrator sets the offset without a topic id.
                offsets.add(name)
            case _ if rng.random() < 0.2:
                topic.forget(latest.__ge__)  # The topic was deleted.
                offsets.clear()
                latest = ""
                assert topic.is_blank


def test_who_means_an_earlier_one_has_to_ask_anew() -> None:
    topic = TopicState("t")
    topic.begin_anew("0", "b2")  # the offset as read from the log
    topic.check("b2")
    with pytest.raises(StaleEpoch):
        topic.check("a1")


def test_a_deletion_of_an_earlier_one_takes_nothing_of_the_later() -> None:
    topic = TopicState("t")
    topic.grow(("0",), has_members=False)
    topic.adopt("b2", ())
    topic.begin("0", "b2")
    topic.forget(lambda found: found <= "a1")
    assert (topic.topic_id, topic.partitions, topic.id_of("0")) == ("b2", ("0",), "b2")


def test_a_partition_is_new_to_a_group_that_has_begun_in_another() -> None:
    topic = TopicState("t")
    topic.begin_anew("0", "a1")
    assert topic.grow(("0", "1"), has_members=False)
    assert not topic.grow(("0",), has_members=True)  # Fewer partitions change nothing.
    assert [topic.is_from_start(name, END) for name in ("0", "1")] == [False, True]
    assert topic.is_from_start("0", BEGIN)
