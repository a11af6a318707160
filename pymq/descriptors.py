"""Files and sockets that a process may have open: the limit, and some that are kept back for files.

Everybody who can connect to a node takes a descriptor of it. The kernel gives out the lowest number
that is free, and none above the soft limit. So a process that runs a node raises its soft limit as
far as it may, and then lowers it a little again: the numbers above are for its files and keys. Who
finds that there are none left opens what it needs with :func:`lent`, which raises the limit for
that moment. A socket that is accepted in this moment may take one of them; it is one or two.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeVar

T = TypeVar("T")

MOST = 1 << 20  # beyond that it is the system that is short of them
KEPT_MAX = 320  # as many as a store holds open at most, and some
SMALL = 4_096  # a node with fewer should be given more


class Limit(NamedTuple):
    """How many descriptors a process may have."""

    before: int  # the soft limit that it was started with
    all: int  # the soft limit that it could raise that to
    kept: int  # of which so many are for files


class Kept:
    """The descriptors that this process keeps back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usual = self._full = 0  # the soft limit as a rule, and while some are lent; 0: none
        self._borrowers = 0

    def keep_back(self) -> Limit:
        """See the function of that name."""
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
        """See the function of that name."""
        with self._lock:
            if self._full:
                _set(self._full)
            self._usual = self._full = 0

    @property
    def usual(self) -> int:
        """The soft limit, but for the moments when some are lent."""
        if self._usual:
            return self._usual
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else MOST

    @contextmanager
    def lent(self) -> Iterator[None]:
        """See the function of that name."""
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
    """Raise the limit of this process as far as it goes, and keep some descriptors for files."""
    return _kept.keep_back()


def give_back() -> None:
    """Keep none back any more."""
    _kept.give_back()


def soft_limit() -> int:
    """How many descriptors may be open, but for those that are kept back."""
    return _kept.usual


def lent() -> AbstractContextManager[None]:
    """Those that are kept back may be taken within the ``with``; any thread may ask."""
    return _kept.lent()


def opened(call: Callable[[], T]) -> T:
    """What *call* opens; if there are no descriptors, with one of those that are kept back.

    Raises:
        OSError: there are none of these either, or something else is wrong.
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
