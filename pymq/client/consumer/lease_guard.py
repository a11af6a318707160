"""What a consumer has leased, as the thread of its user sees it: is it still ours, and is it done?

The worker beside it (:mod:`pymq.client.group.group_member`) is the machine, which the loop turns;
here is who waits for what that one asks of the group's coordinator.
"""

from __future__ import annotations

from pymq.client.base import Driver
from pymq.client.group.group_member import GroupConsumer
from pymq.errors import RequestTimeout


class LeaseGuard:
    """What one member of a group holds of its leases."""

    __slots__ = ("_driver", "_worker", "drops", "standing", "sure_until")

    def __init__(self, worker: GroupConsumer, driver: Driver) -> None:
        self._worker = worker
        self._driver = driver
        self.standing = worker.standing
        self.drops = 0  # of its standing, that its user has noticed
        self.sure_until = 0.0  # what is at hand is leased until then, if nothing was dropped

    def has_lapsed(self) -> bool:
        """Whether all that was leased is leased no more; told once for each time."""
        if self.standing.drops == self.drops:
            return False
        self.drops = self.standing.drops
        return True

    def lasts(self, timeout: float | None) -> bool:
        """Whether what is at hand is still leased; the group is asked if that is not certain.

        Not for certain if it does not answer within *timeout* seconds, nor if it answers that
        others may have got it: then :meth:`has_lapsed`.

        Raises:
            PymqError: what keeps the consumer from asking.
        """
        worker, standing = self._worker, self.standing
        if not standing.is_sure():
            with self._driver as loop:
                proof = standing.prove(loop.clock())
                loop.touch(worker.name)
            self._driver.wait(proof, None if timeout is None else max(0.0, timeout))
            if standing.drops != self.drops:
                return False
        left_ms = standing.sure_ms()
        if left_ms <= 0 and (problem := worker.take_problem()) is not None:
            raise problem
        self.sure_until = self._driver.monotonic() + left_ms / 1000
        return left_ms > 0

    def settle(self, timeout: float | None, *, durable: bool) -> None:
        """Wait until what was acknowledged is written, and, if *durable*, synced.

        Raises:
            RequestTimeout: the group coordinator did not answer in time.
            PymqError: why it could not be written.
        """
        worker = self._worker
        with self._driver as loop:
            done = worker.settle(wait=True, durable=durable)
            loop.touch(worker.name)
        if done is not None and not self._driver.wait(done, timeout):
            raise self.unanswered(timeout)
        if done is not None and done.error is not None:
            raise done.error

    def unanswered(self, timeout: float | None) -> RequestTimeout:
        """The coordinator has let somebody wait for too long."""
        group = self._worker.group
        why = self._worker.trouble() or f"the coordinator of group {group!r} did not answer"
        return RequestTimeout(f"not within {timeout:g} s: {why}" if timeout is not None else why)
