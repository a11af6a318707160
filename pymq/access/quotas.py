"""Quotas of principals: token buckets; the time is an argument.

A request above the limit is refused with the time after which to retry. A bucket may become
negative: a batch larger than one second's tokens is admitted, and later requests wait until the
bucket is positive again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pymq.core.values import value

# most principals with buckets; the least recently used one is dropped, and later starts with full
# buckets
PRINCIPALS_MAX = 10_000


@value
class Quota:
    """The limits of a principal for one second; None means no limit."""

    requests_per_second: int | None = None
    produce_bytes_per_second: int | None = None
    fetch_bytes_per_second: int | None = None


class Bucket:
    """A token bucket with the capacity of one second."""

    __slots__ = ("_level", "_rate", "_then")

    def __init__(self, rate: int, now: int) -> None:
        self._rate = rate  # tokens a second
        self._level = rate * 1000  # thousandths of a token, because time is in milliseconds
        self._then = now

    def wait_ms(self, now: int) -> int:
        """Return the milliseconds until the bucket is positive; 0 if it is positive now."""
        self._fill(now)
        return 0 if self._level > 0 else -self._level // self._rate + 1

    def take(self, count: int, now: int) -> None:
        """Take *count* tokens, even if the bucket becomes negative."""
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
        """Return the milliseconds until *principal* may send its next request; 0 means now.

        With *only*, just that limit counts; otherwise all limits count.
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
        """Take tokens from the buckets of *principal*."""
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
