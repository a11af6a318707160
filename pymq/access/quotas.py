"""How much a principal may do in a while: token buckets, filled by the clock that is handed in.

A request that is over the limit is refused with the time after which it may be tried again. What
came in before cannot be taken back, so a bucket may go below nothing: a batch larger than the worth
of a second is let in, and paid for with the time after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pymq.core.values import value

PRINCIPALS_MAX = 10_000  # buckets kept; the one not used for longest is forgotten, and begins full


@value
class Quota:
    """What a principal may do in a second; None is no limit."""

    requests_per_second: int | None = None
    produce_bytes_per_second: int | None = None
    fetch_bytes_per_second: int | None = None


class Bucket:
    """Holds as much as comes in a second."""

    __slots__ = ("_level", "_rate", "_then")

    def __init__(self, rate: int, now: int) -> None:
        self._rate = rate  # tokens a second
        self._level = rate * 1000  # thousandths of a token, as time is thousandths of a second
        self._then = now

    def wait_ms(self, now: int) -> int:
        """How long until there is something in it again; 0 when there is."""
        self._fill(now)
        return 0 if self._level > 0 else -self._level // self._rate + 1

    def take(self, count: int, now: int) -> None:
        """Take out *count*, though there be less."""
        self._fill(now)
        self._level -= count * 1000

    def _fill(self, now: int) -> None:
        if now > self._then:
            self._level = min(self._rate * 1000, self._level + (now - self._then) * self._rate)
            self._then = now


class Quotas:
    """The buckets of all principals of one node."""

    def __init__(self, quota_of: Callable[[str], Quota | None]) -> None:
        self._quota_of = quota_of
        self._buckets: OrderedDict[str, tuple[Quota, dict[str, Bucket]]] = OrderedDict()

    def wait_ms(self, principal: str, now: int, only: str = "") -> int:
        """How long *principal* has to wait before its next request; 0 when it need not.

        Because of any of its limits, or of *only* that one.
        """
        buckets = self._of(principal, now)
        if only:
            return buckets[only].wait_ms(now) if only in buckets else 0
        return max((bucket.wait_ms(now) for bucket in buckets.values()), default=0)

    def charge(
        self,
        principal: str,
        now: int,
        *,
        requests: int = 0,
        produced_bytes: int = 0,
        fetched_bytes: int = 0,
    ) -> None:
        """Count what *principal* has done."""
        buckets = self._of(principal, now)
        if not buckets:
            return
        for name, count in (
            ("requests_per_second", requests),
            ("produce_bytes_per_second", produced_bytes),
            ("fetch_bytes_per_second", fetched_bytes),
        ):
            if count and (bucket := buckets.get(name)) is not None:
                bucket.take(count, now)

    def _of(self, principal: str, now: int) -> dict[str, Bucket]:
        quota = self._quota_of(principal)
        if quota is None:
            return {}
        found = self._buckets.get(principal)
        if found is None or found[0] != quota:
            rates = {
                "requests_per_second": quota.requests_per_second,
                "produce_bytes_per_second": quota.produce_bytes_per_second,
                "fetch_bytes_per_second": quota.fetch_bytes_per_second,
            }
            found = (quota, {name: Bucket(rate, now) for name, rate in rates.items() if rate})
            self._buckets[principal] = found
        self._buckets.move_to_end(principal)
        if len(self._buckets) > PRINCIPALS_MAX:
            self._buckets.popitem(last=False)
        return found[1]
