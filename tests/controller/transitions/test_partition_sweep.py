"""A sweep visits all partitions of a broker, and again those that change meanwhile."""

from __future__ import annotations

import attrs
import pytest

from pymq.controller.state.image import Draft, Image
from pymq.controller.transitions.partition_sweep import Sweep
from pymq.coord import paths
from pymq.core.message import CreateTopic
from pymq.core.metadata.nodes import BlockNode
from pymq.core.types import AckMode, TopicPartition
from tests.controller.cluster import Cluster

NAMES = [TopicPartition("t", str(index)) for index in range(10)]


class Swept:
    """A sweep that changes nothing and records its visits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int = 4) -> None:
        monkeypatch.setattr("pymq.controller.transitions.partition_sweep.LOOKS_MAX", looks)
        cluster = Cluster(brokers=1)
        names = tuple(name.partition for name in NAMES)
        cluster.ask(lambda i: CreateTopic(i, "t", names, 1, AckMode.LEADER, {}))
        self.entries = cluster.tree.entries()
        self.image = Image.load(self.entries)
        self.sweep = Sweep("b0")
        self.seen: list[TopicPartition] = []

    def plan(self) -> bool:
        def look(draft: Draft, name: TopicPartition) -> bool:
            self.seen.append(name)
            return True

        self.seen.clear()
        return self.sweep.plan(Draft(self.image), look)

    def slice(self) -> bool:
        is_over = self.plan()
        self.sweep.commit()
        return is_over

    def change(self, name: TopicPartition, block: BlockNode | None = None) -> None:
        """Commit a change of a block, as another request does."""
        after = block or attrs.evolve(self.image.partition(*name).open_block, epoch=7)
        draft = Draft(self.image)
        draft.put(paths.block(*name, after.number), after)
        draft.adopt([1])


def test_each_slice_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(monkeypatch)
    assert not swept.slice()
    assert swept.seen == NAMES[:4]
    assert not swept.slice()
    assert swept.seen == NAMES[4:8]
    assert swept.slice()
    assert swept.seen == NAMES[8:]


def test_what_is_planned_again_is_the_same_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(monkeypatch)
    assert not swept.slice()
    for _ in range(2):
        assert not swept.plan()
        assert swept.seen == NAMES[4:8]


def test_what_changes_behind_it_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(monkeypatch)
    assert not swept.slice()
    swept.change(NAMES[1])
    assert not swept.slice()
    assert swept.slice()
    assert swept.seen == [NAMES[8], NAMES[9], NAMES[1]]


def test_what_changes_behind_the_last_slice_is_looked_at_by_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept = Swept(monkeypatch, looks=10)
    assert swept.slice()
    swept.change(NAMES[3])
    assert swept.slice()
    assert swept.seen == [NAMES[3]]


def test_what_changes_again_and_again_is_left_to_do_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition has one entry, however often it changes, so the number of remaining partitions
    does not grow during a sweep.
    """
    swept = Swept(monkeypatch)
    assert not swept.slice()
    assert not swept.slice()
    assert swept.plan()
    assert swept.seen == NAMES[8:]
    for _ in range(3):
        # the partition has not been visited yet, so the change has no effect
        swept.change(NAMES[9])
        swept.change(NAMES[0])
    assert swept.plan()
    assert swept.seen == [NAMES[8], NAMES[9], NAMES[0]]


@pytest.mark.parametrize("looks", [1, 4])
def test_a_sweep_ends_though_everything_changes_between_two_slices(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices grow, because another partition may change during each slice. Seed 903973."""
    swept = Swept(monkeypatch, looks)
    slices = 1
    while not swept.slice() and slices < 6:
        slices += 1
        for name in NAMES:
            swept.change(name)
    assert slices < 6  # Slices of 1, 2, 4, 8 and 16 partitions, or fewer.


def test_a_sweep_that_gets_on_looks_at_no_more_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(monkeypatch)
    for _ in range(2):
        assert not swept.slice()
        assert len(swept.seen) == 4
        swept.change(NAMES[0])


def test_a_change_of_what_others_host_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(monkeypatch)
    assert not swept.slice()
    block = swept.image.partition(*NAMES[1]).open_block
    swept.change(NAMES[1], attrs.evolve(block, replicas=("b9",)))
    assert not swept.slice()
    assert swept.slice()
    assert swept.seen == NAMES[8:]


@pytest.mark.parametrize("how", ["read anew", "changed too often"])
def test_it_begins_anew_when_it_is_not_known_what_has_changed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.controller.state.hosting_index.CHANGED_MAX", 16)
    swept = Swept(monkeypatch)
    assert not swept.slice()
    if how == "read anew":
        swept.image = Image.load(swept.entries)
    else:
        for _ in range(17):
            swept.change(NAMES[9])
    assert not swept.slice()
    assert swept.seen == NAMES[:8]  # Twice as many as before, so that the sweep ends.
