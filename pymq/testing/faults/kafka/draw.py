"""Draws clients of Kafka and their operations.

They use the topics of the plan together with pymq's own clients. They have random numbers of their
own, so a plan without them is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from pymq.testing.faults.kinds import Step, log_uniform
from pymq.testing.faults.limits import draw_kafka_limits
from pymq.testing.simulation.world import SECOND, mix

if TYPE_CHECKING:
    from pymq.testing.faults.plan import Plan

NAME = "kafka"
SHARES_SHARE = 0.25  # of the plans have workers of share groups


def draw_kafka(plan: Plan) -> None:
    """Add clients of Kafka to a plan, if it has a topic for them."""
    rng = Random(mix(plan.seed, NAME))
    topics = _topics(plan)
    if not topics:
        return
    plan.knobs["kafka"] = True
    plan.knobs["stream_bytes"] = rng.choice([100, 4_096, 1 << 16])
    plan.limits.update(draw_kafka_limits(rng))
    names = [str(topic["name"]) for topic in topics]
    compacted = [str(t["name"]) for t in topics if t["config"].get("cleanup_policy") == "compact"]
    plan.kafka = [_client(rng, names, compacted) for _ in range(rng.choice([1, 2, 3]))]
    _draw_ops(plan, rng, topics, compacted)
    _draw_shares(plan, names)
    plan.ops.sort(key=lambda step: int(step[0]))


def _topics(plan: Plan) -> list[dict[str, Any]]:
    """The topics to which no redrive sends letters back; these would look like strangers'."""
    names = {str(topic["name"]) for topic in plan.topics}
    return [
        topic
        for topic in plan.topics
        if "." not in str(topic["name"]) and f"{topic['name']}.dlq" not in names
    ]


def _client(rng: Random, topics: list[str], compacted: list[str]) -> dict[str, Any]:
    kinds = ("classic", "reconciled")
    return {
        "versions": rng.choice(["new", "new", "old"]),
        "topics": topics,
        "compacted": compacted,
        "keys": bool(compacted),
        "acks": rng.choice([-1, -1, -1, 1]),
        "idempotent": rng.random() < 0.8,
        "max_in_flight": rng.choice([1, 2, 5, 5]),
        "delivery_timeout_ms": rng.choice([2_000, 20_000, 20_000]),
        "packed": rng.random() < 0.3,
        "sessions": rng.random() < 0.7,
        "shared": rng.random() < 0.5,  # one connection for all requests to a broker
        "slow": rng.choice([0, 0, 0, 50, 1_000]),
        "fetch_bytes": rng.choice([1, 500, 65_536, 65_536]),
        "readers": [name for name in topics if rng.random() < 0.7],
        "groups": [
            [name, f"k-{kind}-{name}", kind]
            for name in topics
            for kind in kinds
            if rng.random() < 0.4
        ],
    }


def _draw_shares(plan: Plan, topics: list[str]) -> None:
    """Add workers of share groups to some plans; the rest of the plan stays as it was."""
    rng = Random(mix(plan.seed, "kafka shares"))
    if rng.random() >= SHARES_SHARE:
        return
    for client in plan.kafka:
        client["shares"] = [
            [name, f"k-share-{name}"] for name in topics for _ in range(2) if rng.random() < 0.5
        ]


def _draw_ops(plan: Plan, rng: Random, topics: list[dict[str, Any]], compacted: list[str]) -> None:
    size = round(log_uniform(rng, 1, 2_000))
    has_deletes, slots = rng.random() < 0.4, len(plan.kafka)

    def place() -> tuple[str, int]:
        topic = rng.choice(topics)
        return str(topic["name"]), rng.randrange(int(topic["partitions"]))

    def client(*what: object) -> Step:
        return [NAME, rng.randrange(slots), *what]

    def often(pause_s: float, make: Callable[[], Step]) -> None:
        at = SECOND
        while (at := at + round(rng.expovariate(1 / pause_s) * SECOND)) < plan.duration_us:
            plan.ops.append([at, *make()])

    often(
        1 / log_uniform(rng, 2, 50),
        lambda: client("send", *place(), rng.choice([1, 1, 2, 10]), size),
    )
    often(
        log_uniform(rng, 0.1, 1),
        lambda: client("forge", rng.choice(["gap", "zombie", "repeat"]), *place()),
    )
    often(log_uniform(rng, 0.3, 3), lambda: client("bump"))
    often(log_uniform(rng, 0.2, 2), lambda: client("odd"))
    often(log_uniform(rng, 0.2, 2), lambda: client("stale", rng.random() < 0.5))
    if rng.random() < 0.5:
        often(
            log_uniform(rng, 1, 10),
            lambda: client("crash", round(log_uniform(rng, 10_000, 3 * SECOND))),
        )
    if rng.random() < 0.5:
        kinds = ("classic", "reconciled")

        def join() -> Step:
            kind = rng.choice(kinds)
            topic = place()[0]
            return client("join", topic, f"k-{kind}-{topic}", kind)

        often(log_uniform(rng, 0.5, 5), join)
        often(log_uniform(rng, 0.5, 5), lambda: client("leave"))
    if has_deletes:
        plain = [topic for topic in topics if topic["name"] not in compacted]
        for topic in plain[:1]:
            name = str(topic["name"])

            def delete(name: str = name, count: int = int(topic["partitions"])) -> Step:
                where, dice = (name, rng.randrange(count)), rng.random()
                if dice < 0.3:
                    return ["delete_native", *where, rng.choice([0.3, 0.7, 1.0])]
                return client("delete", *where, rng.choice([0.3, 0.7, 1.0, 1.2]))

            often(log_uniform(rng, 1, 5), delete)
