"""Throttles guesses of tokens, per address and in total, with growing delays.

No request waits here, since a waiting request would occupy a thread. The answer to a request that
comes too early is the time of the next allowed try, and its token is not checked. A token that was
recently valid at an address is always accepted from there, so an attacker's guesses do not lock out
legitimate users.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from pymq.core.values import define

FREE = 5  # free tries per address, for typing errors
FIRST_S = 1.0  # first delay; it doubles with each wrong token, up to ...
LONGEST_S = 300.0
FORGET_S = 900.0  # how long after its last wrong try an address is forgotten
ALL_BURST, ALL_PER_S = 100, 5  # wrong tries from all addresses: burst, and rate per second
ADDRESSES_MAX = 10_000
GOOD_MAX = 1_000
GOOD_S = 24 * 3600.0


@define
class _Tries:
    count: int = 0
    last: float = 0.0
    until: float = 0.0


class LoginThrottle:
    """Recent wrong tries; *clock* returns seconds. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._good: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._left, self._then = float(ALL_BURST), clock()

    def wait_s(self, address: str, digest: bytes) -> float:
        """Return the seconds until a token may be tried from *address*; 0 means now."""
        with self._lock:
            now = self._clock()
            if self._good.get((address, digest), -GOOD_S) > now - GOOD_S:
                return 0.0
            tries = self._tries.get(address)
            if tries is not None and now >= tries.last + FORGET_S:
                del self._tries[address]
                tries = None
            if tries is not None and tries.until > now:
                return tries.until - now
            self._fill(now)
            return 0.0 if self._left >= 1 else (1 - self._left) / ALL_PER_S

    def wrong(self, address: str) -> None:
        """Note a wrong token from *address*."""
        with self._lock:
            now = self._clock()
            self._fill(now)
            self._left = max(0.0, self._left - 1)
            tries = self._tries.setdefault(address, _Tries())
            self._tries.move_to_end(address)
            if len(self._tries) > ADDRESSES_MAX:
                self._tries.popitem(last=False)
            tries.count, tries.last = tries.count + 1, now
            if tries.count >= FREE:
                exponent = min(tries.count - FREE, 30)
                tries.until = now + min(FIRST_S * 2**exponent, LONGEST_S)

    def right(self, address: str, digest: bytes) -> None:
        """Note a valid token from *address*."""
        with self._lock:
            self._good[address, digest] = self._clock()
            self._good.move_to_end((address, digest))
            if len(self._good) > GOOD_MAX:
                self._good.popitem(last=False)

    def _fill(self, now: float) -> None:
        self._left = min(float(ALL_BURST), self._left + (now - self._then) * ALL_PER_S)
        self._then = now
