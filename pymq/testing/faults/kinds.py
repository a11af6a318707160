"""The kinds of faults, and how a seed draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from pymq.core.values import value
from pymq.errors import ConfigError
from pymq.testing.simulation.world import SECOND, mix

Step = list[Any]

# Faults of processes, of the network, disks, clocks and the coordinator, in this order.
FAULTS = """crash boundary crash_loop pause crash_zk crash_app crash_all wipe
    isolate cut one_way split bridge swizzle clog slow_link reset loss duplicate late reorder tail
    slow_disk full_disk fail_disk flip
    clock jump skew
    expire suspend slow_coordinator uncertain""".split()
# Faults that have a rate (lowest, highest) instead of single times.
RATES = {
    "loss": (0.0005, 0.1),
    "duplicate": (0.001, 0.2),
    "late": (0.001, 0.05),
    "reorder": (0.001, 0.3),
    "tail": (0.0005, 0.02),
    "uncertain": (0.01, 0.3),
}

PROFILES: dict[str, list[str]] = {
    "calm": [],
    "reference": [kind for kind in FAULTS if kind not in ("crash_app", "flip", "wipe")],
    "swarm": FAULTS,
    "crash": "crash boundary crash_loop crash_app".split(),
    "network": """isolate cut one_way split bridge swizzle clog slow_link reset loss duplicate late
        reorder tail crash_app""".split(),
    # For topics with ack mode leader: logs that diverge, and followers that fall behind.
    "fetch": "crash boundary pause isolate cut one_way split clog slow_link slow_disk".split(),
    "disk": "crash boundary slow_disk full_disk fail_disk flip".split(),
    "time": "pause clock jump skew slow_link tail".split(),
    "rolls": "crash pause isolate cut expire uncertain".split(),
    "wipe": "wipe crash isolate flip".split(),
    "coordinator": "expire suspend slow_coordinator uncertain crash_zk crash_all pause".split(),
    # A hostile client is not among the kinds: see pymq.testing.faults.hostile.
    "hostile": "crash boundary pause isolate cut reset late duplicate".split(),
    # Clients of Kafka are not among the kinds: see pymq.testing.faults.kafka.
    "kafka": """crash boundary crash_loop pause crash_zk isolate cut one_way clog slow_link reset
        loss duplicate late reorder slow_disk expire""".split(),
}
HOSTILE_SHARE = 0.15  # the share of runs of profile "all" with a hostile client
KAFKA_SHARE = 0.15  # the share of those with clients of Kafka


# The profiles of a soak run, seed by seed; each profile concentrates on one way of failing.
ROTATION = """swarm network swarm crash swarm fetch swarm disk swarm rolls swarm time swarm wipe
    swarm coordinator""".split()


@value
class Faults:
    """Faults for a cluster: all of *kinds* (names in ``FAULTS``), for *seconds*."""

    kinds: tuple[str, ...]
    seconds: float = 600.0


def check_kinds(faults: object) -> None:
    """Check that *faults* is None, the name of a profile, or :class:`Faults`.

    Raises:
        ConfigError: *faults* is something else.
    """
    if isinstance(faults, str) and faults in PROFILES:
        return
    if isinstance(faults, Faults) and set(faults.kinds) <= set(FAULTS):
        return
    raise ConfigError(
        f"faults={faults!r} must be None, one of {', '.join(sorted(PROFILES))}, or Faults(...) "
        f"with some of {', '.join(FAULTS)}"
    )


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Draw between *low* and *high*; each order of magnitude is equally likely."""
    return low * math.pow(high / low, rng.random())


def draw_kinds(rng: Random, profile: str) -> list[str]:
    """Draw the kinds of fault of a run; leave some out, so that others take effect.

    If everything crashes all the time, logs never diverge for long (Groce et al., Swarm Testing,
    ISSTA 2012).
    """
    share = rng.choice((0.15, 0.3, 0.5, 0.5, 0.8))
    return [kind for kind in PROFILES[profile] if rng.random() < share]


def draw_rates(rng: Random, kinds: Sequence[str]) -> dict[str, float]:
    """Draw the rates of the kinds that have one."""
    found = {}
    for kind, (low, high) in RATES.items():
        if kind in kinds:
            found[kind] = round(log_uniform(rng, low, high), 5)
    return found


class FaultSchedule:
    """Draws the times of faults.

    Each kind has its own random numbers, so any kind can be left out.
    """

    def __init__(
        self, seed: int, brokers: list[str], zkservers: list[str], apps: int, duration_us: int
    ) -> None:
        self._seed = seed
        self._brokers = brokers
        self._zkservers = zkservers
        self._apps = [f"app-{i}" for i in range(apps)]
        self._duration = duration_us

    def draw(self, kinds: Sequence[str]) -> list[Step]:
        """Return all faults of these kinds, ``[time, kind, ...]`` in the order of their times."""
        steps: list[Step] = []
        for kind in FAULTS:
            if kind in kinds and kind not in RATES:
                steps += self._of(kind, Random(mix(self._seed, "faults", kind)))
        return sorted(steps, key=lambda step: int(step[0]))

    def _of(self, kind: str, rng: Random) -> list[Step]:
        """Draw the faults of one kind, from the first second to the end."""
        found: list[Step] = []
        at, pause = SECOND, log_uniform(rng, 0.3, 20)
        while True:
            at += round(rng.expovariate(1 / pause) * SECOND)
            if at >= self._duration:
                return found
            duration = round(log_uniform(rng, 10_000, 5 * SECOND))
            found.append([at, *self._one(kind, rng, duration)])

    def _one(self, kind: str, rng: Random, duration: int) -> Step:
        nodes = self._brokers + self._zkservers
        broker, node = rng.choice(self._brokers), rng.choice(nodes)
        a, b = rng.sample([*nodes, *self._apps], 2)
        keep = rng.choice(["random", "random", "none", "all"])
        factor = round(log_uniform(rng, 2, 100))
        everybody = [*nodes, *self._apps]
        some = rng.sample(everybody, rng.randint(1, len(everybody) - 1))
        rest = [name for name in everybody if name not in some]
        steps: dict[str, Step] = {
            "crash": ["crash", broker, keep, duration],
            "crash_zk": ["crash", rng.choice(self._zkservers), keep, duration],
            "crash_all": ["crash_all", keep, duration],
            "boundary": ["boundary", broker, rng.randrange(40), keep, duration],
            "crash_loop": [
                "crash_loop",
                broker,
                [rng.randrange(60) for _ in "abc"],
                keep,
                duration,
            ],
            "pause": ["pause", node, duration],
            "isolate": ["isolate", node, duration],
            "cut": ["cut", a, b, duration, False],
            "one_way": ["cut", a, b, duration, True],
            "split": ["split", some, duration],
            "bridge": ["bridge", some, rest[1:], duration],
            "swizzle": ["swizzle", some, duration // 4, duration],
            "clog": ["clog", a, b, duration],
            "slow_link": ["slow_link", a, b, duration, factor],
            "reset": ["reset", a, b],
            "slow_disk": ["slow_disk", broker, duration, factor],
            "full_disk": ["full_disk", broker, duration, rng.choice([0, 100, 5_000])],
            "fail_disk": ["fail_disk", broker, rng.choice(FAILING), duration, rng.randint(1, 3)],
            "flip": ["flip", broker, rng.getrandbits(32), duration],
            "clock": ["clock", node, duration, round(log_uniform(rng, 300_000, 3_000_000))],
            "jump": ["jump", node, duration * (1_000 if duration % 4 == 0 else 1)],
            "skew": ["skew", node, rng.choice([-1, 1]) * round(log_uniform(rng, 10, 1e8))],
            "expire": ["expire", rng.choice(self._zkservers)],
            "suspend": ["suspend", rng.choice(self._zkservers), duration],
            "slow_coordinator": ["slow_coordinator", duration, factor * 10],
            "wipe": ["wipe", broker, duration],
            "crash_app": ["crash_app", rng.choice(self._apps or ["nobody"]), duration],
        }
        return steps[kind]


FAILING = """sync sync write write read read rename create truncate unlink sync_dir""".split()
