"""Messages between Kafka gateways and coordinators that assign partitions themselves (KIP-848).

Partitions are named by the id of their topic and their index, as in Kafka's own messages. So a
topic that was deleted and created again is another topic.
"""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError

# (id of a topic, indexes of its partitions), sorted by id
Indexes = tuple[tuple[str, tuple[int, ...]], ...]


@value
class BeatReconciled:
    """A member's heartbeat, report, join or leave. The answer is :class:`Reconciled`."""

    id: int
    group: str
    member: str
    instance: str | None
    epoch: int  # 0: join; -1: leave; -2: a static member leaves and will come back
    client: str = ""
    host: str = ""
    rack: str | None = None
    rebalance_ms: int = -1  # time to give partitions up; -1: unchanged
    # (name, id, number of partitions) of all subscribed topics that exist; None: unchanged
    topics: tuple[tuple[str, str, int], ...] | None = None
    assignor: str | None = None  # None: unchanged
    owned: Indexes | None = None  # the partitions that the member uses; None: unchanged


@value
class Reconciled:
    """The member's epoch, and its assignment if that may be new to the member."""

    id: int
    code: int = 0
    why: str = ""
    epoch: int = -1
    interval_ms: int = 0  # until the next heartbeat
    assignment: Indexes | None = None
    error: PymqError | None = None


@value
class DescribeReconciled:
    """Get the state of a group. Answered by :class:`ReconciledState`."""

    id: int
    group: str


@value
class ReconciledMember:
    """A member, as shown to users."""

    member: str
    instance: str | None
    rack: str | None
    epoch: int
    client: str
    host: str
    topics: tuple[tuple[str, str], ...]  # (name, id)
    assignment: Indexes
    target: Indexes


@value
class ReconciledState:
    """The state of a group; *state* is Kafka's name for it, or "" if there is no such group."""

    id: int
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ReconciledMember, ...] = ()
    error: PymqError | None = None


ReconciledMessage = BeatReconciled | Reconciled | DescribeReconciled | ReconciledState
