"""Whether a member's leases still hold.

A coordinator that was replaced may not know it. Its successor knows of no leases and gives the
records to other members. So leases hold for certain only for a while after an answer of the
coordinator. Later the member asks the coordinator before it delivers records.
"""

from __future__ import annotations

from pymq.client.base import ClientDriver, Waitable
from pymq.client.group.membership import Membership
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

SURE_MS = 250  # so long after an answer no other coordinator can have given the leases away


class LeaseValidity:
    """Whether one member's leases hold.

    A proof is a request to the coordinator. It is done once there is an answer, whatever it says,
    or all leases are dropped.
    """

    def __init__(self, membership: Membership, driver: ClientDriver) -> None:
        self.drops = 0  # how often all leases were lost
        self.is_unsure = False  # fetched records wait for the coordinator's answer
        self._membership = membership
        self._driver = driver
        self._heard_at = -NEVER  # when the coordinator last answered
        self._proof = Waitable()  # of the leases of fetched records

    # --- the handle -----------------------------------------------------------------------------

    def is_sure(self) -> bool:
        """Whether the fetched records are still leased; see :meth:`sure_ms`."""
        return self.sure_ms() > 0

    def sure_ms(self) -> int:
        """Return for how many milliseconds the leases hold for certain; any thread may call this.

        Later the coordinator may have been replaced, and its successor have given the records away.
        """
        return SURE_MS - (self._driver.loop.clock() - self._heard_at)

    def prove(self, now: int) -> Waitable:
        """Ask the coordinator whether the leases hold; the caller holds the driver.

        When the result is done, :meth:`is_sure` is true, or :attr:`drops` has grown, or there is a
        problem.
        """
        if self._proof.is_done:
            self._proof = Waitable()
        if self.is_sure() or not self._membership.is_joined:
            self._proof.finish()
        else:
            self._doubt(now)
        return self._proof

    # --- the machine ----------------------------------------------------------------------------

    def holds(self, now: int) -> bool:
        """Whether fetched records may be delivered; if not, the coordinator is asked."""
        if now - self._heard_at <= SURE_MS:
            return True
        self._doubt(now)
        return False

    def _doubt(self, now: int) -> None:
        if not self.is_unsure:
            mark("worker.unsure")
            self.is_unsure = True
            self._membership.heartbeat(now)

    def heard(self, now: int) -> None:
        """Take in that the coordinator knows this member."""
        self._heard_at = now
        self._proof.finish()

    def assured(self) -> bool:
        """Take in the answer to a proof; returns whether one was requested."""
        was_unsure, self.is_unsure = self.is_unsure, False
        return was_unsure

    def dropped(self) -> None:
        """Take in that all leases are lost: the coordinator does not know the member, or it
        left.
        """
        self.is_unsure = False
        self.drops += 1
        self.unanswerable()

    def unanswerable(self) -> None:
        """Finish the proof without an answer: the coordinator will not give one."""
        self._proof.finish()
