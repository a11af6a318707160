"""Plans which blocks to roll onto other brokers after brokers were added or have failed.

1. Replace replicas on brokers that no longer exist.
2. Balance the load of the other brokers.

The result is a plan of rolls, bounded by a budget. Several small plans lead to the same placement
as one big plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pymq.hash.place import Brokers, Racks, load_cost, ring_of
from pymq.hash.ring import Ring

__all__ = ["rebalance"]

_NO_LIMIT = 1 << 62


def rebalance(
    placed: Mapping[str, Sequence[str]],
    brokers: Brokers,
    racks: Racks | None = None,
    *,
    budget: int | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return the new replicas of those keys of *placed* (``topic/partition`` to replicas) that
    move.

    Replicas on brokers that are not in *brokers* are replaced first, if there are other brokers.
    Then replicas move from the fullest brokers to the emptiest, as long as a move helps. A move
    never reduces the number of racks. *budget* is the number of replicas that may move, ``None``
    for no limit.

    >>> rebalance({"t/0": ("a", "b"), "t/1": ("b", "a")}, ["b", "c"])
    {'t/0': ('c', 'b'), 't/1': ('b', 'c')}
    """
    plan = _Plan(placed, ring_of(brokers), racks, budget)
    plan.repair()
    while plan.move_one():
        pass
    return plan.changed()


class _Plan:
    """A placement during its improvement."""

    def __init__(
        self,
        placed: Mapping[str, Sequence[str]],
        ring: Ring,
        racks: Racks | None,
        budget: int | None,
    ) -> None:
        self._before = {key: tuple(placed[key]) for key in sorted(placed)}
        self._now = {key: list(names) for key, names in self._before.items()}
        self._ring = ring
        self._weights = ring.weights
        self._racks = racks
        self._left = budget if budget is not None else _NO_LIMIT
        self._hosting = Counter(name for names in self._now.values() for name in names)
        self._held: dict[str, dict[str, None]] = {name: {} for name in ring.members}
        for key, names in self._now.items():
            for name in names:
                self._held.get(name, {})[key] = None

    def repair(self) -> None:
        """Replace each broker that no longer exists by a live broker."""
        for key, names in self._now.items():
            alive = [name for name in names if name in self._ring]
            spare = len(self._ring) - len(alive)
            missing = min(len(names) - len(alive), spare, self._left)
            if missing <= 0:
                continue
            cost = load_cost(self._hosting, self._weights)
            fresh = self._ring.pick(key, missing, racks=self._racks, keep=alive, cost=cost)
            gone = [name for name in names if name not in self._ring]
            for old, new in zip(gone, fresh, strict=False):
                self._replace(key, old, new)

    def move_one(self) -> bool:
        """Make the best move; return False if no move helps or the budget is spent."""
        if self._left <= 0:
            return False
        # A move must make the balance strictly better, so that no replica moves back and forth.
        now = {name: self._hosting[name] / weight for name, weight in self._weights.items()}
        then = {name: (self._hosting[name] + 1) / w for name, w in self._weights.items()}
        emptiest = sorted(then, key=lambda name: then[name])
        for full in sorted(now, key=lambda name: -now[name]):
            for empty in emptiest:
                if then[empty] >= now[full]:
                    break  # the next brokers are even fuller
                for key in self._held[full]:
                    if empty not in self._now[key] and self._keeps_racks(key, full, empty):
                        self._replace(key, full, empty)
                        return True
        return False

    def changed(self) -> dict[str, tuple[str, ...]]:
        """Return the keys with changed replicas, each with its leader first."""
        rolled = {key: names for key, names in self._now.items() if [*self._before[key]] != names}
        leading = Counter(
            names[0] for key, names in self._before.items() if key not in rolled and names
        )
        result = {}
        for key, names in rolled.items():
            # A roll elects a new leader anyway, so any live replica may lead. A dead broker without
            # a replacement stays in the list, but must not lead.
            able = [name for name in names if name in self._weights] or names
            leader = min(able, key=lambda name: leading[name] / self._weights.get(name, 1.0))
            leading[leader] += 1
            result[key] = (leader, *(name for name in names if name != leader))
        return result

    def _keeps_racks(self, key: str, old: str, new: str) -> bool:
        if self._racks is None:
            return True
        others = {self._racks.get(name) for name in self._now[key] if name != old}
        return self._racks.get(new) not in others or self._racks.get(old) in others

    def _replace(self, key: str, old: str, new: str) -> None:
        names = self._now[key]
        names[names.index(old)] = new
        self._held.get(old, {}).pop(key, None)
        self._held[new][key] = None
        self._hosting[old] -= 1
        self._hosting[new] += 1
        self._left -= 1
