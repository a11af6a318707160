"""A consistent hash ring: keys and members are points on a circle; the next member owns a key.

A member has many points (virtual nodes), so that shares are even and the keys of a lost member go
to all others. The points of a member depend only on its name: if a member is added, removed or
re-weighted, only keys of this member move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain, islice

from pymq.errors import InvalidName, InvalidRequest, NotEnoughBrokers

__all__ = ["POINTS", "Ring", "key_point", "member_points"]

# The number of points of a member of weight 1. The largest deviation from the fair share with 3
# members, as the median of 60 rings: 17 % with 32 points, 11 % with 64, 7 % with 128, 7 % with 256,
# 4 % with 512. More than 128 points cost more time than they are worth; where even shares matter
# (place, assign), a bound on the load ensures them.
POINTS = 128
# this weight means 128,000 points, which take 0.2 s to build; a larger one is probably in a wrong
# unit
MAX_WEIGHT = 1_000.0

_POINTS_PER_DIGEST = 8  # one blake2b digest of 64 bytes is cut into 8 points of 64 bits


def key_point(key: str | bytes) -> int:
    """Return the point of *key*, 0 to 2**64 - 1; a ``str`` counts as its UTF-8 bytes."""
    raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(blake2b(raw, digest_size=8, person=b"pymq key").digest(), "big")


def member_points(member: str, count: int) -> list[int]:
    """Return the first *count* points of *member*; a larger count only adds points at the end."""
    name = member.encode("utf-8", "surrogatepass")
    points: list[int] = []
    for number in range(-(-count // _POINTS_PER_DIGEST)):
        # The NUL separates number and name unambiguously, because a number contains no NUL.
        digest = blake2b(b"%d\0%b" % (number, name), person=b"pymq point").digest()
        points += (int.from_bytes(digest[at : at + 8], "big") for at in range(0, 64, 8))
    return points[:count]


class Ring:
    """An immutable ring of members, each with a weight (default 1) that scales its share of keys.

    The order of the members does not matter. If two members have the same point, the member with
    the smaller name owns the point.
    """

    __slots__ = ("_owners", "_points", "_weights")

    def __init__(self, members: Iterable[str] | Mapping[str, float] = ()) -> None:
        """Build the ring; raises InvalidName or InvalidRequest for an invalid member."""
        given = members if isinstance(members, Mapping) else dict.fromkeys(members, 1.0)
        self._weights = {name: float(given[name]) for name in sorted(given)}
        entries: list[tuple[int, str]] = []
        for name, weight in self._weights.items():
            if not name:
                # An unused slot must not look like an unnamed member.
                raise InvalidName("a ring member needs a name, got ''")
            if not 0 < weight <= MAX_WEIGHT:
                raise InvalidRequest(
                    f"weight of {name!r} must be above 0 and at most {MAX_WEIGHT:g}, got {weight}"
                )
            count = max(1, round(weight * POINTS))
            entries += ((point, name) for point in member_points(name, count))
        entries.sort()
        self._points = [point for point, _ in entries]
        self._owners = [name for _, name in entries]

    @property
    def members(self) -> tuple[str, ...]:
        """All members, by name."""
        return tuple(self._weights)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each member; a copy."""
        return dict(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, member: object) -> bool:
        return member in self._weights

    def __eq__(self, other: object) -> bool:
        return self._weights == other._weights if isinstance(other, Ring) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._weights.items()))

    def __repr__(self) -> str:
        return f"Ring({self._weights})"

    def with_member(self, member: str, weight: float = 1.0) -> Ring:
        """Return a ring with *member* added or re-weighted; only keys of that member move."""
        return Ring({**self._weights, member: weight})

    def without(self, member: str) -> Ring:
        """Return a ring without *member*; only keys of that member move."""
        return Ring({name: weight for name, weight in self._weights.items() if name != member})

    def owner(self, key: str | bytes) -> str:
        """Return the member that owns *key*; raises NotEnoughBrokers if the ring is empty."""
        if not self._points:
            raise _too_few(1, 0)
        at = bisect_left(self._points, key_point(key))
        return self._owners[at % len(self._owners)]

    def order(self, key: str | bytes) -> Iterator[str]:
        """Return every member once, in ring order from *key* on."""
        at = bisect_left(self._points, key_point(key))
        seen: set[str] = set()
        for index in chain(range(at, len(self._owners)), range(at)):
            name = self._owners[index]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self._weights):
                    return

    def pick(
        self,
        key: str | bytes,
        n: int,
        *,
        racks: Mapping[str, str | None] | None = None,
        keep: Collection[str] = (),
        cost: Callable[[str], float] | None = None,
    ) -> tuple[str, ...]:
        """Return the first *n* distinct members from *key* on; without options, in ring order.

        With *racks* (member to rack), members in the least used racks come first. Members of
        unknown rack count as one rack, because they may fail together. Members in *keep* are not
        picked, but their racks count as used. With *cost*, members with a lower cost come first
        among equally used racks. Ring order decides between equal members.

        Raises NotEnoughBrokers (``needed``, ``available``) if fewer than *n* can be picked.
        """
        if n < 0:
            raise InvalidRequest(f"cannot pick {n} members")
        available = sum(name not in keep for name in self._weights)
        if n > available:
            raise _too_few(n, available)
        rest = (name for name in self.order(key) if name not in keep)
        if racks is None and cost is None:
            return tuple(islice(rest, n))

        def rack(name: str) -> str | None:
            return racks.get(name) if racks is not None else None

        used = Counter(rack(name) for name in keep)
        price = {name: cost(name) if cost is not None else 0.0 for name in rest}
        picked: list[str] = []
        for _ in range(n):
            # The dict is in ring order, and min() returns the first of equal members.
            best = min(price, key=lambda name: (used[rack(name)], price[name]))
            del price[best]
            used[rack(best)] += 1
            picked.append(best)
        return tuple(picked)


def _too_few(needed: int, available: int) -> NotEnoughBrokers:
    return NotEnoughBrokers(
        f"{needed} distinct {'member is' if needed == 1 else 'members are'} needed and {available} "
        f"{'is' if available == 1 else 'are'} available; "
        "start more brokers or ask for fewer replicas",
        needed=needed,
        available=available,
    )
