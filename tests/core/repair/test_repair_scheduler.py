"""Which repair may request parts of sealed blocks next."""

from __future__ import annotations

from itertools import pairwise

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.repair.repair_scheduler import PATIENCE, PATIENCE_MAX, RepairScheduler
from pymq.core.types import NEVER

CONFIG = ReplicationConfig(retry_ms=10, repairs=2)
PATIENCE_MS = PATIENCE * CONFIG.retry_ms
MOST_MS = PATIENCE_MAX * CONFIG.retry_ms


class Repair:
    """A repair that records the brokers it has asked."""

    def __init__(self, *holders: str, is_begun: bool = False) -> None:
        self.holders = holders
        self.is_begun = is_begun
        self.paced_bytes = 0
        self.asked: list[str] = []

    def ask(self, holder: str) -> None:
        self.asked.append(holder)


def want(slots: RepairScheduler, *repairs: Repair) -> None:
    for repair in repairs:
        slots.want(repair)
    slots.fill(0)


def go_on(slots: RepairScheduler, now: int) -> None:
    if now >= slots.deadline:
        slots.tick(now)
    slots.fill(now)


def test_the_others_wait_for_a_slot_in_their_order() -> None:
    slots = RepairScheduler(CONFIG)
    one, two, three, four = repairs = [Repair("a") for _ in range(4)]
    want(slots, *repairs, *repairs)
    assert [len(r.asked) for r in repairs] == [1, 1, 0, 0]
    slots.answered(one, "a", 1)
    slots.fill(1)
    assert [len(r.asked) for r in repairs] == [1, 1, 0, 0]  # the holder is still writing the answer
    slots.want(one)
    slots.fill(1)
    assert [len(r.asked) for r in repairs] == [2, 1, 0, 0]
    slots.leave(one)
    slots.fill(1)
    assert [len(r.asked) for r in repairs] == [2, 1, 1, 0]
    slots.leave(four)
    slots.leave(two)
    slots.leave(three)
    slots.fill(1)
    while slots.deadline != NEVER:
        go_on(slots, slots.deadline)
    assert [len(r.asked) for r in repairs] == [2, 1, 1, 0]
    assert not four.asked


def test_copies_that_move_here_are_asked_for_at_a_bounded_rate() -> None:
    """The number of repairs of moved blocks is limited, and repairs of the broker's own copies do
    not wait for them.
    """
    slots = RepairScheduler(ReplicationConfig(retry_ms=10, repairs=2, copy_bytes_s=1_000))
    moving, rolled = Repair("a"), Repair("a")
    moving.paced_bytes = 50
    asked_at: list[int] = []
    want(slots, moving)
    for now in range(1_000):
        if len(moving.asked) > len(asked_at):
            asked_at.append(now)
            slots.answered(moving, "a", now)
            slots.want(moving)
        if now == 500:
            slots.want(rolled)
        go_on(slots, now)
        assert bool(rolled.asked) is (now >= 500)
        if rolled.asked and now == 500:
            slots.leave(rolled)
    assert 19 <= len(asked_at) <= 21  # requests for 50 bytes each, in one second
    assert all(later - one >= 49 for one, later in pairwise(asked_at))


def test_what_was_begun_goes_first() -> None:
    """The repair of a block that was just rolled does not wait for the repair of a whole lost
    disk.
    """
    slots = RepairScheduler(CONFIG)
    repairs = [*(Repair("a") for _ in range(3)),
                                             Repair("a", is_begun=True)]  # fmt: skip
    want(slots, *repairs, *repairs)
    assert [len(r.asked) for r in repairs] == [1, 0, 0, 1]


def test_who_does_not_answer_is_asked_by_one_at_a_time_and_less_and_less_often() -> None:
    """One repair at a time asks a silent broker, with growing pauses; the others keep the slots."""
    slots = RepairScheduler(CONFIG)
    away = [Repair("a") for _ in range(20)]
    sound = Repair("b")
    want(slots, *away, sound)
    at: list[int] = []
    now = 0
    while now < 20 * MOST_MS:
        before = sum(len(r.asked) for r in away)
        now = slots.deadline
        go_on(slots, now)
        asked = sum(len(r.asked) for r in away) - before
        assert asked <= 1
        at += [now] * asked
        if sound.asked and slots._slots.get(sound) is not None:
            slots.answered(sound, "b", now)
            slots.want(sound)
    assert sound.asked[0] == "b"
    assert len(sound.asked) > 50  # this repair had a slot all the time
    between = [later - earlier for earlier, later in pairwise(at)]
    assert between == sorted(between)
    assert max(between) == 2 * MOST_MS  # the timeout, then a pause


def test_whoever_else_holds_it_is_asked_when_one_does_not_answer() -> None:
    slots = RepairScheduler(CONFIG)
    repair, other = Repair("a", "b"), Repair("a", "b")
    want(slots, repair)
    go_on(slots, PATIENCE_MS)
    assert repair.asked == ["a", "b"]
    slots.want(other)
    slots.fill(PATIENCE_MS)
    assert other.asked == ["b"]  # this repair need not wait for its own timeout
    slots.answered(repair, "a", PATIENCE_MS)  # a late answer
    third = Repair("a", "b")
    slots.leave(other)
    slots.want(third)
    slots.fill(PATIENCE_MS)
    assert third.asked == ["a"]


def test_who_is_slow_is_given_the_time_that_it_needs() -> None:
    """The timeout grows with the time of a slow broker's answers, so that the same parts are not
    requested forever.
    """
    slots = RepairScheduler(CONFIG)
    repair = Repair("a")
    want(slots, repair)
    now, takes = 0, 5 * PATIENCE_MS
    in_time = 0
    while in_time < 20:
        asked_at, asks = now, len(repair.asked)
        while now < asked_at + takes:
            now = min(max(now + 1, slots.deadline), asked_at + takes)
            go_on(slots, now)
            if len(repair.asked) > asks:
                break
        else:
            in_time += 1
            slots.answered(repair, "a", now)
            slots.want(repair)
            slots.fill(now)
    assert len(repair.asked) - in_time < 6


def test_what_is_of_no_use_is_asked_for_less_and_less_often() -> None:
    slots = RepairScheduler(CONFIG)
    repair, other = Repair("a"), Repair("a")
    want(slots, repair, other)
    now, rests = 0, []
    for times in range(1, 10):
        slots.answered(repair, "a", now)
        slots.rest(repair, times, now)
        slots.want(repair)
        asks = len(repair.asked)
        began = now
        while len(repair.asked) == asks:
            now = slots.deadline
            slots.answered(other, "a", now)
            slots.want(other)
            go_on(slots, now)
        rests.append(now - began)
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (PATIENCE_MS, MOST_MS)


def test_who_has_nobody_to_ask_takes_no_slot() -> None:
    slots = RepairScheduler(CONFIG)
    alone = [Repair() for _ in range(3)]
    want(slots, *alone)
    assert slots.deadline == NEVER
    other = Repair("a")
    want(slots, other)
    assert other.asked == ["a"]
    alone[0].holders = ("a",)
    want(slots, alone[0])
    assert alone[0].asked == ["a"]
