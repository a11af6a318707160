"""The plan of a run: data that is generated from a seed and then executed.

So a plan can be stored, sent to another person, and shrunk. Times are in microseconds. An operation
or a fault is ``[time, kind, ...]``; :mod:`pymq.testing.workload.applications` and
:mod:`pymq.testing.faults.nemesis` carry them out.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import attrs

from pymq.core.counts import plural
from pymq.core.values import Factory, define
from pymq.testing.faults.hostile import draw_hostile
from pymq.testing.faults.kafka.draw import draw_kafka
from pymq.testing.faults.kinds import (
    HOSTILE_SHARE,
    KAFKA_SHARE,
    ROTATION,
    Faults,
    FaultSchedule,
    Step,
    check_kinds,
    draw_kinds,
    draw_rates,
    log_uniform,
)
from pymq.testing.faults.limits import draw_delay, draw_limits, draw_spread, draw_turns
from pymq.testing.faults.queue_operations import draw_queues
from pymq.testing.simulation.world import SECOND, mix

OPS = """set_state create_partition alter reassign decommission scratch describe seek find
    rejoin""".split()
SCRATCH = "scratch"  # a topic that is created, deleted and created again


@define
class Plan:
    """The plan of one run."""

    seed: int
    brokers: int = 3
    zkservers: int = 1
    duration_us: int = 20 * SECOND
    profile: str = ""
    knobs: dict[str, Any] = Factory(dict)  # settings of the cluster
    limits: dict[str, int] = Factory(dict)  # constants with unusual values
    link: dict[str, Any] = Factory(dict)  # fields of LinkFaults
    uncertain: float = 0.0  # share of commits with an unknown outcome
    restart: str = "all"  # which processes restart when the faults end: all, apps or none
    operator: bool = True  # True: an operator restarts brokers whose disk has failed
    topics: list[dict[str, Any]] = Factory(list)
    apps: list[dict[str, Any]] = Factory(list)
    ops: list[Step] = Factory(list)
    faults: list[Step] = Factory(list)
    kafka: list[dict[str, Any]] = Factory(list)  # clients of Kafka

    def describe(self) -> list[str]:
        """Return a description in lines of text."""
        kinds = Counter(str(step[1]) for step in self.faults)
        rates = {**self.link, **({"uncertain": self.uncertain} if self.uncertain else {})}
        sends = Counter(str(step[1]) for step in self.ops)
        lines = [
            f"seed {self.seed}, profile {self.profile}: "
            f"{plural(self.brokers, 'broker')}, {plural(self.zkservers, 'zkserver')}, "
            f"{self.duration_us / SECOND:g} s",
            f"faults {_counts(kinds)}, rates {rates or 'none'}",
            f"operations {_counts(sends)}",
            f"knobs {self.knobs}",
            f"limits {self.limits}",
        ]
        lines += [f"topic {topic}" for topic in self.topics]
        lines += [f"application {app}" for app in self.apps]
        return lines + [f"client of Kafka {client}" for client in self.kafka]

    def to_json(self) -> str:
        """Return the plan as text, one step per line."""
        fields = attrs.asdict(self)
        parts = []
        for name, item in fields.items():
            if name in ("ops", "faults", "topics", "apps", "kafka"):
                rows = ",\n  ".join(json.dumps(row) for row in item)
                parts.append(f'"{name}": [\n  {rows}\n]' if rows else f'"{name}": []')
            else:
                parts.append(f'"{name}": {json.dumps(item)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the text of :meth:`to_json`."""
        return cls(**json.loads(text))

    def copy(self, **changes: Any) -> Plan:
        """Return the same plan with some fields changed."""
        return attrs.evolve(self, **changes)


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"


def generate(
    seed: int,
    *,
    brokers: int | None = 3,
    zkservers: int | None = 1,
    profile: str = "swarm",
    seconds: float = 20.0,
    restart: str = "all",
) -> Plan:
    """Generate the plan of a seed: the kinds of fault, their rates, and everything else.

    Without *brokers* the plan mostly has three or five brokers, and without *zkservers* one to
    three zkservers. The profile ``"all"`` selects a profile for each seed. *restart* selects the
    nodes that restart when the faults end: ``"all"`` nodes and clients, the ``"apps"``, ``"none"``,
    or one of these at random (``"any"``). A run without a restart finds failures that a restart
    would hide.
    """
    if restart == "any":
        restart = Random(mix(seed, "restart")).choice(["all", "all", "apps", "none"])
    rng = Random(mix(seed, "size"))
    is_hostile, is_kafka = profile == "hostile", profile == "kafka"
    if profile == "all":
        is_hostile = Random(mix(seed, "is hostile")).random() < HOSTILE_SHARE
        is_kafka = Random(mix(seed, "is kafka")).random() < KAFKA_SHARE
        profile = ROTATION[seed % len(ROTATION)]
    if brokers is None:
        brokers = rng.choice([3, 3, 3, 5, 5, 4, 2, 1])
    if zkservers is None:
        zkservers = rng.choice([1, 2, 3])
    plan = Planner(seed, brokers, zkservers, profile, seconds).make()
    if is_hostile:
        faults = [*plan.faults, *draw_hostile(seed, plan.duration_us)]
        plan.faults = sorted(faults, key=lambda step: int(step[0]))
    if is_kafka:
        draw_kafka(plan)
    has_operator = Random(mix(seed, "operator")).random() < 0.5
    return plan.copy(restart=restart, operator=has_operator)


def faults_for(seed: int, brokers: int, zkservers: int, faults: object) -> Plan:
    """Return the faults for a user's cluster: a profile's name, or :class:`Faults`.

    Raises:
        ConfigError: *faults* is neither.
    """
    if isinstance(faults, Plan):
        return faults
    check_kinds(faults)
    profile = faults if isinstance(faults, str) else "calm"
    seconds = faults.seconds if isinstance(faults, Faults) else 600.0
    planner = Planner(seed, brokers, zkservers, profile, seconds)
    if isinstance(faults, Faults):
        planner.kinds = list(faults.kinds)
    planner.kinds = [kind for kind in planner.kinds if kind != "crash_app"]
    planner.plan_faults()
    return planner.plan


class Planner:
    """Draws the parts of one plan."""

    def __init__(
        self, seed: int, brokers: int, zkservers: int, profile: str, seconds: float
    ) -> None:
        self.seed = seed
        self.rng = Random(mix(seed, "plan", profile))
        self.profile = profile
        self.plan = Plan(seed, brokers, zkservers, round(seconds * SECOND), profile=profile)
        self.kinds = draw_kinds(self.rng, profile)
        self.brokers = [f"broker-{i}" for i in range(brokers)]
        self.zkservers = [f"zkserver-{i}" for i in range(zkservers)]

    def make(self) -> Plan:
        """Draw the whole plan."""
        if self.profile == "reference":
            self._reference()
        else:
            self._knobs()
            self.plan.topics = [self._topic(i) for i in range(self.rng.choice([1, 1, 2]))]
            names = [str(topic["name"]) for topic in self.plan.topics]
            self.plan.apps = [self._app(names) for _ in range(self.rng.choice([1, 2, 3]))]
            # a separate random stream: the other draws of a seed stay the same
            keyed = Random(mix(self.seed, "keyed"))
            for app in self.plan.apps:
                app["keyed"] = keyed.choice([0.0, 0.1, 1.0])
            self._delays()
            self._priorities()
            self._retries()
            self._ops()
            self._racks()
            draw_queues(self.plan)
        self.plan_faults()
        self.plan.ops.sort(key=lambda step: int(step[0]))
        return self.plan

    def plan_faults(self) -> None:
        """Draw the faults, and the rates of faults that have one."""
        plan = self.plan
        rates = draw_rates(self.rng, self.kinds)
        plan.uncertain = rates.pop("uncertain", 0.0)
        plan.link = rates
        schedule = FaultSchedule(
            self.seed, self.brokers, self.zkservers, len(plan.apps), plan.duration_us
        )
        plan.faults = schedule.draw(self.kinds)

    def _reference(self) -> None:
        """Return the plan for measuring speed: one partition, three replicas, 20 records a
        second.
        """
        plan, rng = self.plan, self.rng
        replicas = min(3, plan.brokers)
        plan.topics = [
            {"name": "t0", "partitions": 1, "replicas": replicas, "acks": "raft", "config": {}}
        ]
        plan.apps = [{"readers": ["t0"], "groups": []}]
        at = SECOND
        while at < plan.duration_us:
            at += round(rng.expovariate(20) * SECOND)
            plan.ops.append([at, "send", 0, "t0", "0", 1, 100])

    def _delays(self) -> None:
        """Draw delays and expiries: half of the runs have some."""
        rng = Random(mix(self.seed, "delays"))
        if rng.random() < 0.5:
            for app in self.plan.apps:
                app["delayed"] = rng.choice([0.0, 0.1, 0.5])
            self.plan.limits.update(draw_delay(rng))

    def _priorities(self) -> None:
        """Draw priorities: a third of the runs have some."""
        rng = Random(mix(self.seed, "priorities"))
        if rng.random() < 1 / 3:
            for app in self.plan.apps:
                app["urgent"] = rng.choice([0.0, 0.1, 0.5])

    def _retries(self) -> None:
        """Draw retries: in half of the runs, some members return records with a backoff."""
        rng = Random(mix(self.seed, "retries"))
        if rng.random() < 0.5:
            for app in self.plan.apps:
                first_ms = rng.choice([1, 50, 500])
                app["backoff"] = [first_ms, rng.choice([1.0, 2.0, 10.0]), rng.choice([500, 3_000])]
                app["nack"] = max(app["nack"], rng.choice([0.0, 0.1, 0.5]))

    def _racks(self) -> None:
        """Draw racks: some applications run in the rack of a broker, and read from that broker."""
        rng = Random(mix(self.seed, "racks"))
        for app in self.plan.apps:
            if rng.random() < 0.4:
                app["rack"] = f"rack-{rng.randrange(self.plan.brokers)}"
        self.plan.limits.update(draw_spread(rng))

    # --- settings -------------------------------------------------------------------------------

    def _knobs(self) -> None:
        rng, plan = self.rng, self.plan
        election = rng.choice([150, 150, 300, 1_000])
        plan.knobs = {
            "heartbeat_ms": rng.choice([100, 300, 1000]),
            "session_ms": rng.choice([1_500, 3_000, 6_000]),
            "coordinator_session_ms": rng.choice([1_000, 2_000]),
            "coordinator_us": rng.choice([50, 500, 500, 5_000]),
            "offsets_partitions": rng.choice([1, 1, 3]),
            "holes": rng.random() < 0.5,
            "delay_us": round(log_uniform(rng, 20, 5_000)),
            "jitter_us": round(log_uniform(rng, 10, 5_000)),
            "election_ms": election,
            "ping_ms": election // 3,
            "append_bytes": rng.choice([1, 500, 1 << 20, 1 << 20]),
            "in_flight": rng.choice([1, 2, 8, 8]),
            "fetch_wait_ms": rng.choice([50, 500, 500]),
            "lag_max_ms": rng.choice([300, 2_000, 10_000]),
            "replace_ms": rng.choice([500, 10_000]),
            "handles": rng.choice([2, 64]),
        }
        if rng.random() < 0.3:
            # Each process has its own clock, with a third to three times the usual speed.
            plan.knobs["rates"] = {
                name: round(log_uniform(rng, 0.33, 3.0), 3)
                for name in (*self.brokers, *self.zkservers)
            }
            # The slowest broker must send a heartbeat before the fastest zkserver declares it dead.
            rates = plan.knobs["rates"]
            slowest = min(rates[name] for name in self.brokers)
            fastest = max(rates[name] for name in self.zkservers)
            bearable = int(plan.knobs["session_ms"] * slowest / fastest / 1.5)
            plan.knobs["heartbeat_ms"] = min(plan.knobs["heartbeat_ms"], bearable)
        # A separate stream of random numbers, so that the rest of the plan stays the same.
        own = Random(mix(plan.seed, "copies"))
        plan.knobs["replica_lost_ms"] = own.choice([2_000, 600_000])
        plan.knobs["leader_balance_ms"] = own.choice([1_000, 300_000])
        plan.limits = draw_limits(rng) | draw_turns(Random(mix(plan.seed, "turns")))

    def _topic(self, index: int) -> dict[str, Any]:
        rng, plan = self.rng, self.plan
        acks = rng.choice(["raft", "raft", "raft", "leader", "none"])
        if self.profile == "fetch":
            acks = rng.choice(["leader", "leader", "none"])
        config: dict[str, Any] = {
            "block_bytes": rng.choice([4096, round(log_uniform(rng, 4096, 1 << 18))])
        }
        replicas = min(plan.brokers, rng.choice([1, 2, 3, 3, 3, 5]))
        if rng.random() < 0.3:
            config["fsync"] = rng.choice(["always", "interval", "os"])
        if rng.random() < 0.2:
            config["retention_bytes"] = round(log_uniform(rng, 4096, 1 << 17))
        if rng.random() < 0.1:
            config["retention_ms"] = round(log_uniform(rng, 500, 20_000))
        if rng.random() < 0.2:
            config["block_ms"] = round(log_uniform(rng, 500, 10_000))
        if rng.random() < 0.15:
            config["cleanup_policy"] = "compact"
        if rng.random() < 0.2 and replicas > 1:
            config["min_in_sync"] = 2
        if rng.random() < 0.1:
            config["max_record_bytes"] = rng.choice([10, 1_000])
        return {
            "name": f"t{index}",
            "partitions": rng.choice([1, 1, 2, 3]),
            "replicas": replicas,
            "acks": acks,
            "config": config,
        }

    def _app(self, topics: list[str]) -> dict[str, Any]:
        rng = self.rng
        return {
            "idempotent": rng.random() < 0.8,
            "named": rng.random() < 0.2,  # the producer continues where an earlier process stopped
            "acks": rng.choice([None, None, None, "raft", "leader", "none"]),
            "linger_ms": rng.choice([0, 1, 5, 50]),
            "batch_bytes": rng.choice([1, 200, 2_000, 1 << 18]),
            "max_in_flight": rng.choice([1, 2, 5]),
            "delivery_timeout_ms": rng.choice([2_000, 20_000, 20_000]),
            "readers": [name for name in topics if rng.random() < 0.5],
            "groups": [[name, rng.choice("ggh")] for name in topics if rng.random() < 0.6],
            # number of records that the consumer requests at a time
            "want": rng.choice([1, 10, 100, 100]),
            "ack_wait_ms": rng.choice([500, 2_000, 30_000]),
            "max_deliver": rng.choice([0, 0, 1, 3]),
            "nack": rng.choice([0.0, 0.0, 0.1]),
            # share of records that the consumer never settles
            "forget": rng.choice([0.0, 0.0, 0.05]),
            "work_us": round(log_uniform(rng, 100, 100_000)),
        }

    # --- operations -----------------------------------------------------------------------------

    def _ops(self) -> None:
        rng, plan = self.rng, self.plan
        rate = log_uniform(rng, 2, 100)  # operations a second
        size = round(log_uniform(rng, 1, 2_000))
        at = SECOND
        while at < plan.duration_us:
            at += round(rng.expovariate(rate) * SECOND)
            topic = rng.choice(plan.topics)
            count = rng.choice([1, 1, 1, 2, 10])
            big = rng.choice([1, 1, 1, 1, 1, 1, 1, 10])
            app, partition = rng.randrange(len(plan.apps)), str(rng.randrange(topic["partitions"]))
            plan.ops.append([at, "send", app, topic["name"], partition, count, size * big])
        for kind in OPS:
            if rng.random() < (0.8 if self.profile == "rolls" else 0.3):
                self._often(kind, Random(mix(self.seed, "ops", kind)))

    def _often(self, kind: str, rng: Random) -> None:
        """Draw operations of one kind, from the first second to the end."""
        plan = self.plan
        at, pause = SECOND, log_uniform(rng, 0.3, 10)
        while True:
            at += round(rng.expovariate(1 / pause) * SECOND)
            if at >= plan.duration_us:
                return
            plan.ops += [[at, *step] for step in self._one(kind, rng)]

    def _one(self, kind: str, rng: Random) -> list[Step]:
        plan = self.plan
        topic, app = rng.choice(plan.topics), rng.randrange(len(plan.apps))
        name, partition = topic["name"], str(rng.randrange(topic["partitions"]))
        acks = rng.choice(["raft", "leader", "none"])
        replicas = rng.choice([None, None, rng.randint(1, min(3, plan.brokers))])
        some = rng.sample(self.brokers, rng.randint(1, plan.brokers))
        config = rng.choice(
            [{"block_bytes": round(log_uniform(rng, 4096, 65536))}, {"retention_bytes": 8192}]
        )
        steps: dict[str, list[Step]] = {
            "set_state": [[kind, name, partition, acks, replicas]],
            "create_partition": [[kind, name, f"x{rng.getrandbits(20)}"]],
            "alter": [[kind, name, config]],
            "reassign": [[kind, name, partition, some]],
            "decommission": [[kind, self.brokers[-1]]] if plan.brokers > 3 else [],
            "scratch": [
                ["create", SCRATCH, acks, replicas or 1],
                ["send", app, SCRATCH, "0", 3, 50],
                *([["delete", SCRATCH]] if rng.random() < 0.7 else []),
            ],
            "describe": [[kind, name]],
            "seek": [[kind, app, round(rng.uniform(-0.2, 1.3), 3)]],
            "find": [[kind, app, rng.randrange(10_000)]],
            "rejoin": [[kind, app]],
        }
        return steps[kind]
