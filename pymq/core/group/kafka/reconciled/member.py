"""A member of a reconciled group: the way from its assignment to its target (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from pymq.core.message import Indexes, ReconciledMember
from pymq.core.types import NEVER
from pymq.core.values import Factory, define

Part = tuple[str, int]  # (id of a topic, index of a partition)


class ReconciliationState(Enum):
    """The condition that a member's next step waits for."""

    STABLE = "the member has its target of its epoch"
    UNREVOKED = "the member gives partitions up, and still names them as owned"
    UNRELEASED = "other members have not given up all partitions of the target"


@define
class ReconcilingMember:
    """A member, and the partitions that it may use."""

    id: str
    instance: str | None
    client: str
    host: str
    rack: str | None
    rebalance_ms: int
    session_ms: int
    # (name, number of partitions) of each subscribed topic, by id
    topics: dict[str, tuple[str, int]] = Factory(dict)
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: ReconciliationState = ReconciliationState.STABLE
    assigned: frozenset[Part] = frozenset()  # the partitions that the member may use
    revoking: frozenset[Part] = frozenset()  # those that it may not use, and may still be using
    target: frozenset[Part] = frozenset()
    gone_at: int = NEVER  # its session ends
    revoke_by: int = NEVER  # it has to have given up *revoking*
    is_away: bool = False  # a static member that has left, and will come back

    def beat(self, now: int) -> None:
        """Restart the session timeout."""
        self.gone_at = now + self.session_ms

    @property
    def held(self) -> frozenset[Part]:
        """The partitions that no other member may get yet."""
        return self.assigned | self.revoking

    def reconcile(
        self,
        target_epoch: int,
        owned: frozenset[Part] | None,
        is_free: Callable[[Part, str], bool],
        now: int,
    ) -> None:
        """Take the next steps towards the target.

        Args:
            target_epoch: the epoch of the target.
            owned: the partitions that the member says it uses; None if it does not say.
            is_free: whether no other member holds a partition.
            now: the coordinator's time.
        """
        if self.state is ReconciliationState.UNREVOKED:
            if owned is None or not owned.isdisjoint(self.revoking):
                return  # The member has not given up all of them.
            self.revoking, self.revoke_by = frozenset(), NEVER
            self.state = ReconciliationState.STABLE
        if self.state is ReconciliationState.STABLE and self.epoch == target_epoch:
            return
        lost = self.assigned - self.target
        self.assigned &= self.target
        # A member that has just joined owns nothing, whatever was assigned to its former self.
        if lost and (owned is None or not owned.isdisjoint(lost)):
            # The epoch stays until the member has given them up.
            self.revoking, self.state = lost, ReconciliationState.UNREVOKED
            self.revoke_by = now + self.rebalance_ms
            return
        missing = self.target - self.assigned
        free = frozenset(part for part in missing if is_free(part, self.id))
        self.assigned |= free
        self.state = (
            ReconciliationState.STABLE if free == missing else ReconciliationState.UNRELEASED
        )
        self.move_to(target_epoch)

    def move_to(self, epoch: int) -> None:
        """Set the epoch of the member; the former one is accepted once more."""
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch

    def describe(self) -> ReconciledMember:
        """Describe the member, for people."""
        return ReconciledMember(
            self.id,
            self.instance,
            self.rack,
            self.epoch,
            self.client,
            self.host,
            tuple(sorted((name, id) for id, (name, _) in self.topics.items())),
            indexes(self.assigned),
            indexes(self.target),
        )


def indexes(parts: frozenset[Part]) -> Indexes:
    """Return partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(parts):
        found.setdefault(topic, []).append(index)
    return tuple((topic, tuple(each)) for topic, each in found.items())


def parts_of(found: Indexes) -> frozenset[Part]:
    """Return the partitions in *found*."""
    return frozenset((topic, index) for topic, each in found for index in each)
