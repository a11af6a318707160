"""Checks, in the application's thread, that leases are valid, and waits for acknowledgements.

The machine (:mod:`pymq.client.group.group_member`) sends the requests to the group's coordinator;
the application's thread waits here for their answers.
"""

from __future__ import annotations

from pymq.client.base import ClientDriver
from pymq.client.group.group_member import GroupConsumer
from pymq.errors import RequestTimeout


class LeaseGuard:
    """The leases of one member of a group, as the application's thread knows them."""

    __slots__ = ("_driver", "_worker", "drops", "standing", "sure_until")

    def __init__(self, worker: GroupConsumer, driver: ClientDriver) -> None:
        self._worker = worker
        self._driver = driver
        self.standing = worker.standing
        self.drops = 0  # the number of lease losses that this thread has seen
        self.sure_until = 0.0  # until then the leases of fetched records hold for certain

    def has_lapsed(self) -> bool:
        """Whether all leases were lost since the last call."""
        if self.standing.drops == self.drops:
            return False
        self.drops = self.standing.drops
        return True

    def lasts(self, timeout: float | None) -> bool:
        """Whether the fetched records are still leased; asks the group if that is not certain.

        Returns False if the group does not answer within *timeout* seconds, or if it answers that
        other members may have got the records; :meth:`has_lapsed` distinguishes the two.

        Raises:
            PymqError: the reason why the consumer cannot ask.
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
        """Wait until all acknowledgements are written, and, if *durable*, synced.

        Raises:
            RequestTimeout: the group coordinator did not answer in time.
            PymqError: the reason why they could not be written.
        """
        worker = self._worker
        with self._driver as loop:
            done = worker.settler.settle(wait=True, durable=durable)
            loop.touch(worker.name)
        if done is not None and not self._driver.wait(done, timeout):
            raise self.unanswered(timeout)
        if done is not None and done.error is not None:
            raise done.error

    def unanswered(self, timeout: float | None) -> RequestTimeout:
        """Return the error for a caller that the coordinator did not answer in time."""
        group = self._worker.group
        why = self._worker.trouble() or f"the coordinator of group {group!r} did not answer"
        return RequestTimeout(f"not within {timeout:g} s: {why}" if timeout is not None else why)
