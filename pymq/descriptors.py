"""The limit of file descriptors of this process, and a reserve for files.

Every connection to a node takes a descriptor. The kernel allocates the lowest free number, and no
number above the soft limit. So a node's process keeps a reserve for files and keys:

1. The process raises its soft limit as far as allowed, then lowers it a little; the numbers above
   are the reserve.
2. If no descriptor is free, code opens its file within :func:`lent`, which raises the limit for
   that moment.
3. A socket accepted in that moment may take one or two of the reserve.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeVar

T = TypeVar("T")

MOST = 1 << 20  # with a higher limit the system would run out first
KEPT_MAX = 320  # a little more than the most files that a store has open
SMALL = 4_096  # a node with a lower limit should get a higher one


class Limit(NamedTuple):
    """The limits of descriptors of a process."""

    before: int  # the soft limit at the start of the process
    all: int  # the raised soft limit
    kept: int  # the reserve for files, which is a part of *all*


class Kept:
    """The reserve of descriptors of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usual = self._full = 0  # the soft limit without and with the reserve; 0: no reserve
        self._borrowers = 0

    def keep_back(self) -> Limit:
        """See :func:`keep_back`."""
        with self._lock:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            before = soft if soft != resource.RLIM_INFINITY else MOST
            found = max(self._full, before)
            most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
            if most > found and _set(most):
                found = most
            kept = min(KEPT_MAX, found // 4)
            if not _set(found - kept):
                return Limit(before, found, 0)
            self._usual, self._full = found - kept, found
            return Limit(before, found, kept)

    def give_back(self) -> None:
        """See :func:`give_back`."""
        with self._lock:
            if self._full:
                _set(self._full)
            self._usual = self._full = 0

    @property
    def usual(self) -> int:
        """The soft limit without the reserve."""
        if self._usual:
            return self._usual
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else MOST

    @contextmanager
    def lent(self) -> Iterator[None]:
        """See :func:`lent`."""
        with self._lock:
            if self._full and not self._borrowers:
                _set(self._full)
            self._borrowers += 1
        try:
            yield
        finally:
            with self._lock:
                self._borrowers -= 1
                if self._usual and not self._borrowers:
                    _set(self._usual)


_kept = Kept()


def keep_back() -> Limit:
    """Raise the limit of this process as far as it may, and reserve descriptors for files."""
    return _kept.keep_back()


def give_back() -> None:
    """Release the reserved descriptors."""
    _kept.give_back()


def soft_limit() -> int:
    """Return how many descriptors may be open, without the reserve."""
    return _kept.usual


def lent() -> AbstractContextManager[None]:
    """Allow the use of the reserve within the ``with`` block; any thread may call this."""
    return _kept.lent()


def opened(call: Callable[[], T]) -> T:
    """Return the result of *call*; retry with the reserve if no descriptor is free.

    Raises:
        OSError: the reserve is used up, too, or *call* failed for another reason.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with lent():
        return call()


def _set(soft: int) -> bool:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (OSError, ValueError):
        return False
    return True
