"""What a run of the simulator is: data, made from a seed and then carried out.

So a run can be kept, sent to somebody, and made smaller until only what matters is left. Times are
in microseconds. An operation is ``[time, kind, ...]``, and so is a fault; what they mean is in
:mod:`pymq.testing.workload` and :mod:`pymq.testing.nemesis`.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import attrs

from pymq.core.values import Factory, define, value
from pymq.errors import ConfigError
from pymq.testing.world import SECOND, mix

Step = list[Any]

FAULTS = """crash boundary pause isolate cut one_way clog slow_link reset slow_disk full_disk
    fail_disk clock jump expire suspend crash_zk crash_app crash_all loss duplicate late reorder
    tail uncertain wipe""".split()
OPS = "set_state create_partition alter reassign".split()

PROFILES: dict[str, list[str]] = {
    "calm": [],
    "swarm": FAULTS,
    "crash": "crash boundary crash_app".split(),
    "network": "isolate cut one_way clog slow_link reset loss duplicate late reorder tail".split(),
    "disk": "crash boundary slow_disk full_disk fail_disk".split(),
    "time": "pause clock jump slow_link tail".split(),
    "rolls": "crash pause isolate cut expire uncertain".split(),
    "wipe": "wipe crash isolate".split(),
    "coordinator": "expire suspend uncertain crash_zk crash_all pause".split(),
}


@value
class Faults:
    """What a cluster is to suffer from: all of *kinds*, some of :data:`FAULTS`, for a while."""

    kinds: tuple[str, ...]
    seconds: float = 600.0


@define
class Plan:
    """One run."""

    seed: int
    brokers: int = 3
    zkservers: int = 1
    duration_us: int = 20 * SECOND
    knobs: dict[str, Any] = Factory(dict)  # of the cluster
    link: dict[str, Any] = Factory(dict)  # fields of LinkFaults
    uncertain: float = 0.0  # how many commits nobody knows the outcome of
    restart: str = "all"  # what is started anew when the faults end: all, apps or none
    topics: list[dict[str, Any]] = Factory(list)
    apps: list[dict[str, Any]] = Factory(list)
    ops: list[Step] = Factory(list)
    faults: list[Step] = Factory(list)

    def to_json(self) -> str:
        """The plan as text, one step to a line."""
        fields = attrs.asdict(self)
        parts = []
        for name, item in fields.items():
            if name in ("ops", "faults", "topics", "apps"):
                rows = ",\n  ".join(json.dumps(row) for row in item)
                parts.append(f'"{name}": [\n  {rows}\n]' if rows else f'"{name}": []')
            else:
                parts.append(f'"{name}": {json.dumps(item)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` has written."""
        return cls(**json.loads(text))

    def copy(self, **changes: Any) -> Plan:
        """The same plan with some fields changed."""
        return attrs.evolve(self, **changes)


def generate(
    seed: int,
    *,
    brokers: int = 3,
    zkservers: int = 1,
    profile: str = "swarm",
    seconds: float = 20.0,
    restart: str = "all",
) -> Plan:
    """Make the plan of a seed: which faults there are at all, how often, and everything else.

    Each kind of fault is in with a probability of a half. That some are left out is what lets
    others have their effect: where everything crashes all the time, logs never diverge for long.
    """
    return _Maker(seed, brokers, zkservers, profile, seconds).make().copy(restart=restart)


def faults_for(seed: int, brokers: int, zkservers: int, faults: object) -> Plan:
    """The faults of a cluster that somebody else uses: a profile's name, or :class:`Faults`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(faults, Plan):
        return faults
    if isinstance(faults, str) and faults in PROFILES:
        maker = _Maker(seed, brokers, zkservers, faults, 600.0)
    elif isinstance(faults, Faults) and set(faults.kinds) <= set(FAULTS):
        maker = _Maker(seed, brokers, zkservers, "calm", faults.seconds)
        maker.faults = list(faults.kinds)
    else:
        raise ConfigError(
            f"faults={faults!r} must be None, one of {', '.join(sorted(PROFILES))}, or Faults(...) "
            f"with some of {', '.join(FAULTS)}"
        )
    maker.faults = [kind for kind in maker.faults if kind != "crash_app"]
    maker._link()
    maker._all_faults()
    return maker.plan


class _Maker:
    def __init__(
        self, seed: int, brokers: int, zkservers: int, profile: str, seconds: float
    ) -> None:
        self.seed = seed
        self.rng = Random(mix(seed, "plan", profile))
        self.profile = profile
        self.plan = Plan(seed, brokers, zkservers, round(seconds * SECOND))
        allowed = PROFILES[profile]
        self.faults = [kind for kind in allowed if self.rng.random() < 0.5]
        self.brokers = [f"broker-{i}" for i in range(brokers)]
        self.zkservers = [f"zkserver-{i}" for i in range(zkservers)]

    def make(self) -> Plan:
        self._knobs()
        self._link()
        self._topics()
        self._apps()
        self._ops()
        self._all_faults()
        self.plan.ops.sort(key=lambda step: step[0])
        return self.plan

    def _all_faults(self) -> None:
        for kind in FAULTS:
            if kind in self.faults:
                self._fault(kind, Random(mix(self.seed, "faults", kind)))
        self.plan.faults.sort(key=lambda step: step[0])

    def _log(self, low: float, high: float, rng: Random | None = None) -> float:
        """Between *low* and *high*, every order of magnitude as likely as every other."""
        return low * math.pow(high / low, (rng or self.rng).random())

    def _knobs(self) -> None:
        rng, plan = self.rng, self.plan
        plan.knobs = {
            "heartbeat_ms": rng.choice([100, 300, 1000]),
            "session_ms": rng.choice([1_500, 3_000, 6_000]),
            "coordinator_session_ms": rng.choice([1_000, 2_000]),
            "offsets_partitions": rng.choice([1, 1, 3]),
            "holes": rng.random() < 0.5,
            "delay_us": round(self._log(20, 5_000)),
            "jitter_us": round(self._log(10, 5_000)),
        }

    def _link(self) -> None:
        link: dict[str, Any] = {}
        for kind, low, high in (
            ("loss", 0.0005, 0.1),
            ("duplicate", 0.001, 0.2),
            ("late", 0.001, 0.05),
            ("reorder", 0.001, 0.3),
            ("tail", 0.0005, 0.02),
        ):
            if kind in self.faults:
                link[kind] = round(self._log(low, high), 5)
        self.plan.link = link
        if "uncertain" in self.faults:
            self.plan.uncertain = round(self._log(0.01, 0.3), 4)

    def _topics(self) -> None:
        rng, plan = self.rng, self.plan
        for index in range(rng.choice([1, 1, 2])):
            acks = rng.choice(["raft", "raft", "raft", "leader", "none"])
            config: dict[str, Any] = {"block_bytes": round(self._log(4096, 1 << 18))}
            if rng.random() < 0.3:
                config["fsync"] = rng.choice(["always", "interval", "os"])
            if rng.random() < 0.2:
                config["retention_bytes"] = round(self._log(8192, 1 << 18))
            if rng.random() < 0.2:
                config["block_ms"] = round(self._log(500, 10_000))
            replicas = min(plan.brokers, rng.choice([1, 2, 3, 3, 3, 5])) if plan.brokers > 1 else 1
            plan.topics.append(
                {
                    "name": f"t{index}",
                    "partitions": rng.choice([1, 1, 2, 3]),
                    "replicas": replicas,
                    "acks": acks,
                    "config": config,
                }
            )

    def _apps(self) -> None:
        rng, plan = self.rng, self.plan
        names = [topic["name"] for topic in plan.topics]
        for _ in range(rng.choice([1, 2, 3])):
            plan.apps.append(
                {
                    "idempotent": rng.random() < 0.8,
                    "acks": rng.choice([None, None, None, "raft", "leader", "none"]),
                    "linger_ms": rng.choice([0, 1, 5, 50]),
                    "batch_bytes": rng.choice([1, 200, 2_000, 1 << 18]),
                    "max_in_flight": rng.choice([1, 2, 5]),
                    "delivery_timeout_ms": rng.choice([2_000, 20_000, 20_000]),
                    "readers": [name for name in names if rng.random() < 0.5],
                    "groups": [[name, "g"] for name in names if rng.random() < 0.6],
                    "ack_wait_ms": rng.choice([500, 2_000, 30_000]),
                    "nack": rng.choice([0.0, 0.0, 0.1]),
                    "forget": rng.choice([0.0, 0.0, 0.05]),  # records that it never settles
                    "work_us": round(self._log(100, 100_000)),
                }
            )

    def _ops(self) -> None:
        rng, plan = self.rng, self.plan
        rate = self._log(2, 100)  # a second
        size = round(self._log(1, 2_000))
        at = SECOND
        while at < plan.duration_us:
            at += round(rng.expovariate(rate) * SECOND)
            topic = rng.choice(plan.topics)
            count = rng.choice([1, 1, 1, 2, 10])
            plan.ops.append(
                [
                    at,
                    "send",
                    rng.randrange(len(plan.apps)),
                    topic["name"],
                    str(rng.randrange(topic["partitions"])),
                    count,
                    size,
                ]
            )
        for kind in OPS:
            if rng.random() < (0.9 if self.profile == "rolls" else 0.4):
                self._admin(kind, Random(mix(self.seed, "ops", kind)))

    def _admin(self, kind: str, rng: Random) -> None:
        plan = self.plan
        at, pause = SECOND, self._log(0.5, 10, rng)
        while True:
            at += round(rng.expovariate(1 / pause) * SECOND)
            if at >= plan.duration_us:
                return
            topic = rng.choice(plan.topics)
            name, partition = topic["name"], str(rng.randrange(topic["partitions"]))
            if kind == "set_state":
                acks = rng.choice(["raft", "leader", "none"])
                replicas = rng.choice([None, None, rng.randint(1, min(3, plan.brokers))])
                plan.ops.append([at, kind, name, partition, acks, replicas])
            elif kind == "create_partition":
                plan.ops.append([at, kind, name, f"x{len(plan.ops)}"])
            elif kind == "alter":
                plan.ops.append([at, kind, name, {"block_bytes": round(self._log(4096, 65536))}])
            elif kind == "reassign":
                count = rng.randint(1, plan.brokers)
                plan.ops.append([at, kind, name, partition, rng.sample(self.brokers, count)])

    def _fault(self, kind: str, rng: Random) -> None:
        """Faults of one kind, from the first second to the end."""
        at, pause = SECOND, self._log(0.3, 20, rng)
        while True:
            at += round(rng.expovariate(1 / pause) * SECOND)
            if at >= self.plan.duration_us:
                return
            step = self._one(kind, rng, round(self._log(10_000, 5 * SECOND, rng)))
            if step is None:
                return
            self.plan.faults.append([at, *step])

    def _one(self, kind: str, rng: Random, duration: int) -> Step | None:
        nodes = self.brokers + self.zkservers
        broker, node = rng.choice(self.brokers), rng.choice(nodes)
        apps = [f"app-{i}" for i in range(len(self.plan.apps))]
        a, b = rng.sample([*nodes, *apps], 2)
        keep = rng.choice(["random", "random", "none", "all"])
        factor = round(self._log(2, 100, rng))
        steps: dict[str, Step] = {
            "crash": ["crash", broker, keep, duration],
            "crash_zk": ["crash", rng.choice(self.zkservers), keep, duration],
            "crash_all": ["crash_all", keep, duration],
            "boundary": ["boundary", broker, rng.randrange(40), keep, duration],
            "pause": ["pause", node, duration],
            "isolate": ["isolate", node, duration],
            "cut": ["cut", a, b, duration, False],
            "one_way": ["cut", a, b, duration, True],
            "clog": ["clog", a, b, duration],
            "slow_link": ["slow_link", a, b, duration, factor],
            "reset": ["reset", a, b],
            "slow_disk": ["slow_disk", broker, duration, factor],
            "full_disk": ["full_disk", broker, duration, rng.choice([0, 100, 5_000])],
            "fail_disk": ["fail_disk", broker, rng.choice(["sync", "write", "rename"]), duration],
            "clock": ["clock", node, duration, round(self._log(300_000, 3_000_000, rng))],
            "jump": ["jump", node, duration],
            "expire": ["expire", rng.choice(self.zkservers)],
            "suspend": ["suspend", rng.choice(self.zkservers), duration],
            "wipe": ["wipe", broker, duration],
            "crash_app": ["crash_app", rng.choice(apps or ["nobody"]), duration],
        }
        return steps.get(kind)  # None for what is a rate of the network and not an event
