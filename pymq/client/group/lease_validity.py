"""How a member of a group stands with its coordinator: is what it has leased still its own?

A coordinator that is one no more may not know it; its successor knows of no leases, and gives what
was leased to others. So what is at hand is certain to be ours only for a while after an answer.
From then on the coordinator is asked before anything is handed out.
"""

from __future__ import annotations

from pymq.client.base import Driver, Waitable
from pymq.client.group.membership import Membership
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

SURE_MS = 250  # so long after an answer of the coordinator there is no other one, or it is new


class LeaseValidity:
    """Whether one member, and what it has leased, still counts.

    Whoever waits for a proof that is not done, the coordinator is being asked for it: a proof is
    done once there is an answer, whatever it says, or all leases are dropped.
    """

    def __init__(self, membership: Membership, driver: Driver) -> None:
        self.drops = 0  # times that all that was leased turned out to be leased no more
        self.is_unsure = False  # what has come is not handed over before the coordinator answers
        self._membership = membership
        self._driver = driver
        self._heard_at = -NEVER  # when the coordinator has last answered a member
        self._proof = Waitable()  # of what is at hand

    # --- the handle -----------------------------------------------------------------------------

    def is_sure(self) -> bool:
        """Whether what is at hand is still leased; see :meth:`sure_ms`."""
        return self.sure_ms() > 0

    def sure_ms(self) -> int:
        """For how long what is at hand is leased for certain; any thread may ask.

        Then its coordinator may be none any more, and its successor have given it to others.
        """
        return SURE_MS - (self._driver.loop.clock() - self._heard_at)

    def prove(self, now: int) -> Waitable:
        """Ask whether what is at hand is still leased; the caller holds the driver.

        Once it is done either :meth:`is_sure`, or :attr:`drops` has grown, or there is a problem.
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
        """Whether what has come may be handed over; if not, the coordinator is asked."""
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
        """The coordinator takes us for a member."""
        self._heard_at = now
        self._proof.finish()

    def assured(self) -> bool:
        """It has answered the question whether it does; returns whether that had been asked."""
        was_unsure, self.is_unsure = self.is_unsure, False
        return was_unsure

    def dropped(self) -> None:
        """It does not, or we have left: what was leased is not ours any more."""
        self.is_unsure = False
        self.drops += 1
        self.unanswerable()

    def unanswerable(self) -> None:
        """It will not tell, for now or for good: nobody is to wait for it."""
        self._proof.finish()
