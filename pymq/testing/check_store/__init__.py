"""Checks that a block store keeps the contract of :mod:`pymq.store.base`.

A store's own test is one call::

    def test_contract(tmp_path):
        check_store(lambda: FileStore(str(tmp_path / "store")))
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pymq.testing.check_store import blocks, logs
from pymq.testing.check_store.chance import Random
from pymq.testing.check_store.suite import Make, StoreSuite, named

__all__ = ["check_store"]


def check_store(make: Make, *, durable: bool = True, steps: int = 400, seed: int = 0) -> None:
    """Raise :class:`AssertionError` with the broken rule if the store breaks a rule.

    *make()* opens the store; it must be empty at first. The function closes the store before it
    calls *make* again; if the store is *durable*, the next store must find the same content.

    The function compares *steps* random operations, drawn from *seed*, with a plain list.
    """
    suite = StoreSuite(make, durable)
    for check in _CHECKS:
        with named(check.__name__.removeprefix("check_")):
            check(suite)
            suite.store.close()
        suite.open()
    with named("random"):
        Random(suite, random.Random(seed)).run(steps)
    suite.store.close()


_CHECKS: tuple[Callable[[StoreSuite], None], ...] = (
    logs.check_append_and_read,
    logs.check_order_within_a_turn,
    logs.check_buffers_are_copied,
    logs.check_many_batches,
    logs.check_refuses_what_does_not_follow,
    logs.check_failures_stay_alone,
    logs.check_create_twice,
    logs.check_recover,
    logs.check_checkpoint,
    logs.check_truncate,
    logs.check_a_follower_cuts_its_log,
    blocks.check_states,
    blocks.check_many_states,
    blocks.check_seal,
    blocks.check_unsealed,
    blocks.check_blocks_and_remove,
    blocks.check_find_time,
    blocks.check_find_time_in_a_batch_that_came_so,
    blocks.check_compact,
    blocks.check_close,
)
