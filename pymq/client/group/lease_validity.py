"""Checks that a member's leases are still valid.

A replaced coordinator may not know that it was replaced. Its successor knows no leases and may
lease the same records to other members. So leases are certainly valid only for a while after an
answer of the coordinator. After that time the member asks the coordinator before it delivers
records.
"""

from __future__ import annotations

from pymq.client.base import ClientDriver, Waitable
from pymq.client.group.membership import Membership
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

# milliseconds after an answer in which no other coordinator can have leased the records
SURE_MS = 250


class LeaseValidity:
    """Checks that one member's leases are valid.

    A proof is a request to the coordinator. The proof is done when there is an answer of any kind,
    or when all leases are dropped.
    """

    def __init__(self, membership: Membership, driver: ClientDriver) -> None:
        self.drops = 0  # how many times all leases were lost
        # whether fetched records wait for the coordinator to confirm their leases
        self.is_unsure = False
        self._membership = membership
        self._driver = driver
        self._heard_at = -NEVER  # the time of the coordinator's last answer
        # the proof in progress, if any
        self._proof = Waitable()

    # --- the handle -----------------------------------------------------------------------------

    def is_sure(self) -> bool:
        """Whether the fetched records are still leased; see :meth:`sure_ms`."""
        return self.sure_ms() > 0

    def sure_ms(self) -> int:
        """Return for how many more milliseconds the leases are certainly valid; thread-safe.

        After that time a successor may have replaced the coordinator and leased the records to
        others.
        """
        return SURE_MS - (self._driver.loop.clock() - self._heard_at)

    def prove(self, now: int) -> Waitable:
        """Ask the coordinator whether the leases hold; the caller holds the driver.

        When the result is done, one of three holds: :meth:`is_sure` is true, :attr:`drops` has
        grown, or there is a problem.
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
        """Whether fetched records may be delivered; if not, this requests a proof."""
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
        """Note that the coordinator knows this member."""
        self._heard_at = now
        self._proof.finish()

    def assured(self) -> bool:
        """Handle the answer to a proof; returns whether a proof was requested."""
        was_unsure, self.is_unsure = self.is_unsure, False
        return was_unsure

    def dropped(self) -> None:
        """Note that all leases are lost, because the coordinator does not know the member, or the
        member has left.
        """
        self.is_unsure = False
        self.drops += 1
        self.unanswerable()

    def unanswerable(self) -> None:
        """Finish the proof without an answer, because the coordinator will not send one."""
        self._proof.finish()
