"""Checks, in the application's thread, that leases are valid, and waits for acknowledgements.

The state machine (:mod:`pymq.client.group.group_member`) sends the requests to the group's
coordinator; the application's thread waits here for the answers.
"""

from __future__ import annotations

from pymq.client.base import ClientDriver
from pymq.client.group.group_member import GroupConsumer
from pymq.errors import RequestTimeout


class LeaseGuard:
    """The leases of one group member, for the application's thread."""

    __slots__ = ("_driver", "_worker", "drops", "standing", "sure_until")

    def __init__(self, worker: GroupConsumer, driver: ClientDriver) -> None:
        self._worker = worker
        self._driver = driver
        self.standing = worker.standing
        self.drops = 0  # the number of lost memberships that this thread has handled
        self.sure_until = 0.0  # until this time the leases of fetched records are certainly valid

    def has_lapsed(self) -> bool:
        """Whether all leases have been lost since the last call."""
        if self.standing.drops == self.drops:
            return False
        self.drops = self.standing.drops
        return True

    def lasts(self, timeout: float | None) -> bool:
        """Whether the fetched records are still leased; asks the coordinator if this is uncertain.

        Returns False if the coordinator does not answer within *timeout* seconds, or answers that
        other members may have got the records; :meth:`has_lapsed` distinguishes the two cases.

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
            PymqError: the reason why the acknowledgements could not be written.
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
        """Return the error for a caller that got no answer of the coordinator in time."""
        group = self._worker.group
        why = self._worker.trouble() or f"the coordinator of group {group!r} did not answer"
        return RequestTimeout(
            f"no answer within {timeout:g} s: {why}" if timeout is not None else why
        )
