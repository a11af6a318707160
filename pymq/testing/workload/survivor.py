"""One broker is left: what it knows to be committed is read, though most partitions have no leader.

That an error is no answer (:mod:`pymq.testing.workload.service`) says nothing about readers that
get none. So some runs end with the death of all brokers but one, while zkservers and clients live
on. A new reader must get, within a bound, whatever the survivor has and knows to be committed.
"""

from __future__ import annotations

from random import Random

from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster
from pymq.testing.simulation import probe
from pymq.testing.simulation.world import mix

SHARE = 0.25  # of the runs with more than one broker
BOUND_S = 20.0  # a session of six seconds, and some attempts at those that are gone
Wanted = dict[tuple[str, str], int]  # topic and partition: up to where it is to be read


def draw_survivor(seed: int, brokers: list[str], left: str | None) -> str | None:
    """Who is left at the end of a run, if the others are to die; not *left*, whose disk fails."""
    rng = Random(mix(seed, "survivor"))
    found = [name for name in brokers if name != left]
    if len(brokers) < 2 or not found or rng.random() >= SHARE:
        return None
    return rng.choice(found)


def committed_on(cluster: Cluster, watch: StoreWatch, name: str) -> Wanted:
    """How far a broker has all of each partition from its begin on, and knows it to be committed.

    Topics that come and go are left out, and so is what lies behind a block that others hold.
    """
    found: Wanted = {}
    broker = cluster.brokers[name].broker
    for partition in probe.partitions(broker) if broker is not None else ():
        topic, key = partition.name
        if topic.startswith("__") or topic in watch.mortal:
            continue
        end = probe.readable_from_begin(partition)
        if end is not None:
            found[topic, key] = end
    return found


def let_others_die(cluster: Cluster, survivor: str) -> None:
    """All brokers but one are gone for good; their disks as well as their processes."""
    for name, host in cluster.brokers.items():
        if name != survivor and host.is_up:
            cluster.crash(name, "all")
