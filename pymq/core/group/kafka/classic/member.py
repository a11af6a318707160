"""A member of a classic group, with its waiting requests."""

from __future__ import annotations

from pymq.core.message import ClassicMember, JoinClassic
from pymq.core.types import NEVER
from pymq.core.values import define

Waiting = tuple[str, int]  # the source and the id of a request that waits


@define
class JoinedMember:
    """A member, with at most one waiting join and one waiting sync."""

    id: str
    instance: str | None
    client: str
    host: str
    session_ms: int
    rebalance_ms: int
    # subscription for each assignor, in the member's order of preference
    protocols: dict[str, bytes]
    assignment: bytes = b""
    joining: Waiting | None = None
    syncing: Waiting | None = None
    gone_at: int = NEVER  # when its session ends

    @classmethod
    def of(cls, m: JoinClassic, member: str) -> JoinedMember:
        """Make a member from its request to join."""
        return cls(
            member, m.instance, m.client, m.host, m.session_ms, m.rebalance_ms, dict(m.protocols)
        )

    def beat(self, now: int) -> None:
        """Restart the session timeout."""
        self.gone_at = now + self.session_ms

    def describe(self, protocol: str) -> ClassicMember:
        """Return the description of this member, for the group's leading member and for users."""
        metadata = self.protocols.get(protocol, b"")
        return ClassicMember(
            self.id, self.instance, self.client, self.host, metadata, self.assignment
        )
