"""Checks that the committed records of a single remaining broker are readable, even without
leaders.

The rule about errors (:mod:`pymq.testing.workload.service`) does not cover readers that get no
answer. So in some runs all brokers but one die at the end, while zkservers and clients continue.
Within a time limit, a new reader must then get all records that the survivor has and knows to be
committed.
"""

from __future__ import annotations

from random import Random

from pymq.testing.cluster import Cluster
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation import probe
from pymq.testing.simulation.world import mix

SHARE = 0.25  # share of the runs with more than one broker
BOUND_S = 20.0  # enough for a session of six seconds and some requests to dead brokers
# the offset up to which each partition must be read, by topic and partition
Wanted = dict[tuple[str, str], int]


def draw_survivor(seed: int, brokers: list[str], left: str | None) -> str | None:
    """Draw the broker that survives the end of a run, or None; never *left*, because its disk
    fails.
    """
    rng = Random(mix(seed, "survivor"))
    found = [name for name in brokers if name != left]
    if len(brokers) < 2 or not found or rng.random() >= SHARE:
        return None
    return rng.choice(found)


def committed_on(cluster: Cluster, plan: Plan, name: str) -> Wanted:
    """Return the offset up to which a broker has all committed records of each partition.

    Only topics of the plan count. The result leaves out records after a block that this broker
    lacks.
    """
    found: Wanted = {}
    topics = {str(topic["name"]) for topic in plan.topics}
    broker = cluster.brokers[name].broker
    for partition in probe.partitions(broker) if broker is not None else ():
        topic, key = partition.name
        if topic not in topics:
            continue
        end = probe.readable_from_begin(partition)
        if end is not None:
            found[topic, key] = end
    return found


def let_others_die(cluster: Cluster, survivor: str) -> None:
    """Crash all brokers but *survivor*; they are not restarted."""
    for name, host in cluster.brokers.items():
        if name != survivor and host.is_up:
            cluster.crash(name, "all")
