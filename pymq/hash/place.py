"""Where a new block lives: which live brokers, and which of them should lead.

The ring alone is fair on average only: with 3 brokers and 64 partitions of one replica the worst
broker is 23 % off its share in the median and 48 % at worst (rendezvous hashing: 16 and 45 %). Told
what the brokers carry already, :func:`place` bounds the load as tightly as can be: the least loaded
broker gets the block, and ring order decides between equals: 3 % off, which is the rounding. The
10 to 25 % of slack usual with bounded loads (Mirrokni et al., "Consistent hashing with bounded
loads") still leave 20 to 34 % here; it buys fewer moves when brokers change, and a new block moves
nothing whoever gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from pymq.errors import InvalidRequest

if TYPE_CHECKING:
    from pymq.hash.ring import Ring

__all__ = ["load_cost", "place", "place_all", "ring_of"]

Brokers = Iterable[str] | Mapping[str, float]
Racks = Mapping[str, str | None]


def place(
    key: str,
    brokers: Brokers,
    replicas: int,
    racks: Racks | None = None,
    *,
    hosting: Mapping[str, int] | None = None,
    leading: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """The distinct brokers for a new block of *key* (``topic/partition``); the first should lead.

    *brokers* are the live ones, with their weights if it is a mapping. With *racks* (broker to
    rack) replicas spread over as many racks as there are; this goes before balance. *hosting* is
    the number of replicas, *leading* that of leaderships each broker has already, without this
    block's; given them, the least loaded come first, relative to their weights.

    Raises NotEnoughBrokers when fewer brokers live than replicas are asked for.
    """
    if replicas < 1:
        raise InvalidRequest(f"a block needs at least one replica, got {replicas}")
    if isinstance(brokers, Mapping) and len(brokers) == replicas == 1:
        return tuple(brokers)  # An embedded queue has nothing to choose, and no need of a ring.
    ring = ring_of(brokers)
    cost = None if hosting is None else load_cost(hosting, ring.weights)
    chosen = ring.pick(key, replicas, racks=racks, cost=cost)
    if leading is None:
        return chosen
    leader = min(chosen, key=load_cost(leading, ring.weights))
    return (leader, *(name for name in chosen if name != leader))


def place_all(
    keys: Iterable[str],
    brokers: Brokers,
    replicas: int,
    racks: Racks | None = None,
    *,
    hosting: Mapping[str, int] | None = None,
    leading: Mapping[str, int] | None = None,
) -> dict[str, tuple[str, ...]]:
    """:func:`place` for several keys, each counting as load for the next; the order is by key."""
    hosts, leads = Counter(hosting or {}), Counter(leading or {})
    placed = {}
    for key in sorted(set(keys)):
        placed[key] = place(key, brokers, replicas, racks, hosting=hosts, leading=leads)
        hosts.update(placed[key])
        leads[placed[key][0]] += 1
    return placed


def load_cost(load: Mapping[str, int], weights: Mapping[str, float]) -> Callable[[str], float]:
    """The cost of giving a broker one thing more: its load with it, relative to its weight."""
    return lambda name: (load.get(name, 0) + 1) / weights[name]


def ring_of(brokers: Brokers) -> Ring:
    """The ring of *brokers*, built once for equal brokers: a build costs 0.1 ms a broker."""
    weights = brokers if isinstance(brokers, Mapping) else dict.fromkeys(brokers, 1.0)
    return _ring(tuple(sorted(weights.items())))


@lru_cache(maxsize=16)
def _ring(weights: tuple[tuple[str, float], ...]) -> Ring:
    from pymq.hash.ring import Ring  # only now: it loads hashlib, and that OpenSSL

    return Ring(dict(weights))
