"""Raft's promises hold under random events in random order."""

from __future__ import annotations

import pytest

from tests.replication import chaos
from tests.replication.harness import Letter, show


@pytest.mark.parametrize("batch", range(12))
def test_promises_hold(batch: int) -> None:
    """Run seeds 0 to 299; each run checks itself, see :mod:`tests.replication.chaos`."""
    committed = 0
    for seed in range(25 * batch, 25 * (batch + 1)):
        committed += len(chaos.run(seed).committed)
    assert committed > 25  # otherwise the run would prove nothing


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_promises_hold_for_long(batch: int) -> None:
    for seed in range(10_000 + 50 * batch, 10_000 + 50 * (batch + 1)):
        chaos.run(seed, steps=2_000)


def test_the_same_seed_does_the_same() -> None:
    def trace() -> list[str]:
        run, said = chaos.Chaos(4), []
        check = run.cluster.on_post

        def note(letter: Letter) -> None:
            said.append(f"{run.cluster.now} {show(letter)}")
            check(letter)

        run.cluster.on_post = note
        run.run()
        return [*said, run.show()]

    assert trace() == trace()
