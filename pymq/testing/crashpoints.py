"""Every place where a broker can die, one after the other.

A script is run once to count the effects of the broker: each message that leaves, each operation of
its disk. Then it is run once more for each of them, and for each state that the disk may be in, and
the broker dies there. It is started again, and the script goes on; in the end everything must be as
it should, and nothing that was promised may be missing.

>>> def script(cluster):
...     mq = cluster.client()
...     mq.create_topic("t", acks="raft", exist_ok=True)
...     with mq.producer() as producer:
...         producer.send("t", b"hello").result()
>>> enumerate_crashes(script, brokers=1, states=["none"]).runs > 5
True
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.testing.cluster import Cluster
from pymq.testing.world import Violation

Script = Callable[[Cluster], None]

STATES = ("none", "all", "random")  # what the disk keeps of what was not synced


@define
class CrashRun:
    """One place, and what came of a crash there."""

    boundary: int
    what: str  # the effect that did not happen any more
    disk: str
    problem: str


@define
class Crashes:
    """What came of all of them."""

    boundaries: int = 0  # effects of the script
    runs: int = 0
    events: int = 0
    failed: list[CrashRun] = Factory(list)


def enumerate_crashes(
    script: Script,
    *,
    node: str = "broker-0",
    states: Sequence[str] = STATES,
    every: int = 1,
    then: Script | None = None,
    again: int | None = None,
    seed: int = 0,
    **cluster: Any,
) -> Crashes:
    """Crash *node* at each of its effects while *script* runs.

    Args:
        script: what is done; it must be able to live with a crash, as an application is.
        node: who dies.
        states: what the disk keeps: ``"none"``, ``"all"``, ``"random"``; or several of the last,
            each with dice of its own, as ``"random-2"``.
        every: try only every so manieth effect.
        then: what is checked afterwards, when the node is up again.
        again: let it die a second time, so many effects after its restart.
        seed: of all runs.
        cluster: arguments of :class:`Cluster`.
    """
    options = {"restart_ms": 50, **cluster}
    found = Crashes()
    with Cluster(seed=seed, **options) as calm:
        host = calm.host(node)
        host.trail = []
        first = host.boundaries
        script(calm)
        trail = host.trail
        found.boundaries = len(trail)
    for number in range(0, len(trail), every):
        for state in states:
            problem = _crash(script, then, node, first, number, state, again, seed, options, found)
            if problem is not None:
                found.failed.append(CrashRun(number, trail[number], state, problem))
    return found


def _crash(
    script: Script,
    then: Script | None,
    node: str,
    first: int,
    number: int,
    state: str,
    again: int | None,
    seed: int,
    options: dict[str, Any],
    found: Crashes,
) -> str | None:
    disk, _, dice = state.partition("-")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with Cluster(seed=seed, **options) as cluster:
            host = cluster.host(node)
            host.keep, host.keep_dice = disk, int(dice or 0)
            host.crash_at = first + number + 1
            host.crash_again = again
            script(cluster)
            cluster.run(1.0)  # In case it was the last thing to happen.
            if not host.is_up:
                host.start()
            if then is not None:
                then(cluster)
            cluster.check()
            found.events += cluster.world.events
    except Violation as violation:
        return str(violation)
    except (AssertionError, PymqError) as error:
        return "".join(traceback.format_exception(error)[-4:])
    finally:
        found.runs += 1
        if was_enabled:
            gc.enable()
    return None
