"""Draws the operations of work queues: redrives, cancelled delays, routes, requests.

Each kind has its own random numbers, so plans without a kind do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from pymq.testing.faults.kinds import Step, log_uniform
from pymq.testing.faults.limits import draw_redrive
from pymq.testing.simulation.world import SECOND, mix

if TYPE_CHECKING:
    from pymq.testing.faults.plan import Plan

SHARE = 1 / 3  # share of the runs with each of redrives, routes and requests
SLOTS = 2  # processes of each kind that redrive, cancel, answer or ask
RULES = ("0%", "30%", "50%", "100%", "key=3", "key=1*", "header.tag=a")


def draw_queues(plan: Plan) -> None:
    """Add topics, groups and operations to a plan whose other operations were drawn."""
    for name, draw in (
        ("cancels", _draw_cancels),
        ("redrives", _draw_redrives),
        ("routes", _draw_routes),
        ("requests", _draw_requests),
    ):
        draw(plan, Random(mix(plan.seed, name)))


def _times(plan: Plan, rng: Random, pause_s: float) -> list[int]:
    """Draw times from the first second to the end, *pause_s* apart on average."""
    found, at = list[int](), SECOND
    while (at := at + round(rng.expovariate(1 / pause_s) * SECOND)) < plan.duration_us:
        found.append(at)
    return found


def _add(plan: Plan, rng: Random, pause_s: float, make: Callable[[], Step]) -> None:
    plan.ops += [[at, *make()] for at in _times(plan, rng, pause_s)]


def _lasting_topics(plan: Plan) -> list[dict[str, Any]]:
    """The topics that keep all their records: those that are not compacted."""
    return [topic for topic in plan.topics if "cleanup_policy" not in topic["config"]]


def _draw_cancels(plan: Plan, rng: Random) -> None:
    """Draw cancellations of delayed records, in half of the runs with delays."""
    if not any(app.get("delayed") for app in plan.apps) or rng.random() < 0.5:
        return
    _add(
        plan,
        rng,
        log_uniform(rng, 0.05, 1),
        lambda: ["cancel", rng.randrange(SLOTS), rng.choice([0, 0, 1, 5])],
    )


def _draw_redrives(plan: Plan, rng: Random) -> None:
    """Draw a dead-letter topic for one of the topics, letters, and redrives that may be killed."""
    topics = _lasting_topics(plan)
    if rng.random() >= SHARE or not topics:
        return
    topic = rng.choice(topics)
    name, partitions = f"{topic['name']}.dlq", rng.choice([1, 1, 2])
    plan.topics.append(
        {
            "name": name,
            "partitions": partitions,
            "replicas": topic["replicas"],
            "acks": rng.choice(["raft", "raft", "raft", "leader"]),
            "config": {"block_bytes": round(log_uniform(rng, 4096, 1 << 16))},
        }
    )
    plan.limits.update(draw_redrive(rng))
    size = round(log_uniform(rng, 1, 500))

    def letters() -> Step:
        app, partition = rng.randrange(len(plan.apps)), str(rng.randrange(partitions))
        home = str(rng.randrange(topic["partitions"]))
        return ["send", app, name, partition, rng.choice([1, 2, 5]), size, home]

    def redrive() -> Step:
        mode, limit = rng.choice(["all", "all", "odd", "dry"]), rng.choice([None, None, 1, 5])
        kill_us = round(log_uniform(rng, 1_000, 0.3 * SECOND)) if rng.random() < 0.7 else 0
        times = rng.choice([1, 1, 2])
        return ["redrive", rng.randrange(SLOTS), name, mode, limit, times, kill_us]

    _add(plan, rng, log_uniform(rng, 0.05, 1), letters)
    _add(plan, rng, log_uniform(rng, 0.1, 1), redrive)


def _draw_routes(plan: Plan, rng: Random) -> None:
    """Give one topic a route that changes during the run; all its routes name the same group."""
    topics = [topic for topic in _lasting_topics(plan) if "." not in topic["name"]]
    if rng.random() >= SHARE or not topics:
        return
    topic = rng.choice(topics)
    topic["config"]["route"] = f"canary:{rng.choice(RULES)}"
    for app in rng.sample(plan.apps, rng.randint(1, len(plan.apps))):
        app["groups"] = [*app["groups"], [topic["name"], "canary"]]
    _add(
        plan,
        rng,
        log_uniform(rng, 0.3, 5),
        lambda: ["alter", topic["name"], {"route": f"canary:{rng.choice(RULES)}"}],
    )


def _draw_requests(plan: Plan, rng: Random) -> None:
    """Draw processes that answer requests for a while, and others that send requests."""
    if rng.random() >= SHARE:
        return

    def serve() -> Step:
        lasts_us = round(log_uniform(rng, 0.1 * SECOND, 5 * SECOND))
        return ["serve", rng.randrange(SLOTS), lasts_us, rng.choice(["close", "die"])]

    def ask() -> Step:
        timeout_ms = round(log_uniform(rng, 50, 5_000))
        return ["ask", rng.randrange(SLOTS), rng.choice([1, 1, 2, 3]), timeout_ms]

    _add(plan, rng, log_uniform(rng, 0.3, 3), serve)
    _add(plan, rng, log_uniform(rng, 0.1, 1), ask)
