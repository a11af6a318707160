"""Bugs that are planted in the code: the simulator finds each within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from pymq.core import leases
from pymq.core.header import Header
from pymq.core.leases import Leases
from pymq.core.message import Lease, Produced, Sealed
from pymq.core.partition import Partition
from pymq.core.producers import ProducerTable
from pymq.core.sealing import Sealing
from pymq.errors import OutOfOrderSequence
from pymq.replication.leadership import Leadership
from pymq.testing.disk import SimDisk
from pymq.testing.plan import generate
from pymq.testing.swarm import LIVENESS, run_plan

Patch = pytest.MonkeyPatch


def forget_repeats(patch: Patch) -> None:
    """A batch that is sent again is written again."""
    patch.setattr(ProducerTable, "check", lambda self, header: None)


def forget_producers(patch: Patch) -> None:
    """Recovery does not read what producers had written."""
    patch.setattr(ProducerTable, "replay", lambda self, header: None)
    patch.setattr(ProducerTable, "restore", classmethod(lambda cls, data: cls()))


def accept_gaps(patch: Patch) -> None:
    """What should go on at a sequence goes on anywhere."""
    check = ProducerTable.check

    def checked(self: ProducerTable, header: Header) -> Any:
        found = check(self, header)
        return None if isinstance(found, OutOfOrderSequence) else found

    patch.setattr(ProducerTable, "check", checked)


def believe_too_early(patch: Patch) -> None:
    """The high watermark rises before the disk has answered."""
    flush = Partition.flush

    def flushed(self: Partition, ready: Any, now: int) -> None:
        if self.replicator is not None and self.log is not None:
            before, self.log.stable_end = self.log.stable_end, self.end
            self.replicator.stable(self.end, now)
            self._look(now)
            self.log.stable_end = before
        flush(self, ready, now)

    patch.setattr(Partition, "flush", flushed)


def never_sync(patch: Patch) -> None:
    """The disk says it has synced."""
    patch.setattr(SimDisk, "sync", lambda self, handle: None)


def seal_too_short(patch: Patch) -> None:
    """A block is said to end before its last record."""
    done = Sealing.done

    def sealed(self: Sealing, *arguments: Any) -> Sealed | None:
        answer = done(self, *arguments)
        return attrs.evolve(answer, end=answer.end - 1) if answer is not None else None

    patch.setattr(Sealing, "done", sealed)


def lease_twice(patch: Patch) -> None:
    """A lease is for everybody who asks."""
    acquire = Leases.acquire

    def acquired(self: Leases, *arguments: Any, **named: Any) -> list[Lease]:
        for span in self._spans:
            if span.state == leases.LEASED:
                span.state, span.due = leases.AVAILABLE, 0
        return acquire(self, *arguments, **named)

    patch.setattr(Leases, "acquire", acquired)


def lose_acks(patch: Patch) -> None:
    """An acknowledgement is confirmed and not counted."""
    patch.setattr(Leases, "acknowledge", lambda self, *arguments: 0)


def answer_at_once(patch: Patch) -> None:
    """A producer is told that its record is safe before anything is done for it."""
    produce = Partition.produce

    def produced(self: Partition, source: str, m: Any, now: int) -> None:
        end = self.end
        produce(self, source, m, now)
        if self.end > end:
            answer = Produced(m.id, end, self.state.epoch)
            self._host.reply(source, answer, now)

    patch.setattr(Partition, "produce", produced)


def count_what_was_sent(patch: Patch) -> None:
    """A Raft leader takes what it has for what everybody has on disk."""
    patch.setattr(Leadership, "_counted", lambda self, name: self._log.end)


# What finds it: a profile, and the rules of which one is broken.
BUGS: dict[Callable[[Patch], None], tuple[str, str]] = {
    forget_repeats: ("network", "written-once"),
    forget_producers: ("crash", "written-once sequences-are-kept"),
    accept_gaps: ("network", "written-once send-order"),
    believe_too_early: ("calm", "synced-before-acked acked-is-written"),
    never_sync: ("crash", "synced-survives"),
    seal_too_short: ("calm", "seal-keeps-what-is-visible crash-AssertionError no-broken-machine"),
    lease_twice: ("calm", "ptp-exclusive"),
    lose_acks: ("calm", "acked-not-delivered-again groups-reach-the-end"),
    answer_at_once: ("calm", "synced-before-acked acked-is-written"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug.__name__))
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    profile, rules = BUGS[bug]
    bug(monkeypatch)
    found: dict[str, int] = {}
    for seed in range(30):
        result = run_plan(generate(seed, brokers=1, profile=profile, seconds=8))
        if result.violation is not None:
            found[result.violation] = found.get(result.violation, 0) + 1
            if result.violation in rules.split():
                return
    raise AssertionError(f"not found in 30 seeds; instead {found}")


# Among several brokers: likewise.
AMONG_SEVERAL: dict[Callable[[Patch], None], tuple[str, str]] = {
    count_what_was_sent: ("calm", "durable-before-visible no-broken-machine"),
}


@pytest.mark.parametrize("bug", AMONG_SEVERAL, ids=lambda bug: str(bug.__name__))
def test_a_planted_bug_is_found_among_several(
    bug: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    profile, rules = AMONG_SEVERAL[bug]
    bug(monkeypatch)
    found = {
        run_plan(generate(seed, brokers=3, profile=profile, seconds=4), waive=LIVENESS).violation
        for seed in range(6)
    }
    assert found & set(rules.split()), f"not found in 6 seeds; instead {found}"
