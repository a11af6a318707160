"""Rules about the groups of Kafka's clients."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pymq.core.values import Factory, define
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost

Place = tuple[str, int]


@define
class GroupUse:
    """The partitions that the members of a reconciled group use, as the members see it."""

    used: dict[str, frozenset[Place]] = Factory(dict)


class KafkaGroupRules(Checker):
    """A partition has one user in its group at a time.

    * In a classic group, a generation assigns each partition to one member at most.
    * In a reconciled group, the coordinator gives a partition to a member only when the member
      before has said that it has given the partition up, or is no member any more.
    """

    rules = ("one-member-per-partition", "moves-after-giving-up", "fenced-is-refused")

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        # by group, generation and leading member: the members of partitions
        self._assigned: dict[tuple[str, int, str], dict[Place, str]] = {}
        self._uses: dict[str, GroupUse] = {}

    def assigned(
        self, group: str, generation: int, leader: str, member: str, places: Collection[Place]
    ) -> None:
        """Note what a member of a classic group is told."""
        known = self._assigned.setdefault((group, generation, leader), {})
        for place in places:
            other = known.setdefault(place, member)
            if other != member:
                what = f"{group} gives {place} to {member} and {other} in generation {generation}"
                self.fail("one-member-per-partition", what)

    def uses(
        self, group: str, member: str, places: frozenset[Place], coordinator: str = ""
    ) -> None:
        """Note the partitions that a member of a reconciled group uses from now on.

        *coordinator* is the broker that has told the member to use more than before.
        """
        use = self._uses.setdefault(group, GroupUse())
        before = use.used.get(member, frozenset())
        use.used[member] = places
        for other, others in use.used.items():
            both = (places - before) & others
            if other != member and both and self._counts_on(coordinator, group, other):
                what = f"{group} gives {sorted(both)} to {member}, and {other} has not given it up"
                self.fail("moves-after-giving-up", what)

    def _counts_on(self, broker: str, group: str, member: str) -> bool:
        """Whether a coordinator counts on a member. One that took over may not know it yet."""
        host = self.watch.cluster.brokers.get(broker)
        if host is None or host.broker is None:
            return False
        return probe.is_reconciled_member(host.broker, group, member)


def disjoint(hosts: Collection[BrokerHost], fail: Callable[[str, str], None]) -> None:
    """Check that no partition is held by two members of a reconciled group."""
    for host in hosts:
        if host.broker is None:
            continue
        for group, held in probe.reconciled_holdings(host.broker):
            owners: dict[object, str] = {}
            for member, parts in held.items():
                for part in parts:
                    if owners.setdefault(part, member) != member:
                        what = f"{group}: {part} is held by {owners[part]} and {member}"
                        fail("one-member-per-partition", what)
