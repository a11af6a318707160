"""A member of a classic group, and its requests that wait."""

from __future__ import annotations

from pymq.core.message import ClassicMember, JoinClassic
from pymq.core.types import NEVER
from pymq.core.values import define

Waiting = tuple[str, int]  # the source and the id of a request that waits


@define
class JoinedMember:
    """A member; it waits for at most one join and one sync."""

    id: str
    instance: str | None
    client: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: dict[str, bytes]  # its assignors with its subscription for each, in its order
    assignment: bytes = b""
    joining: Waiting | None = None
    syncing: Waiting | None = None
    gone_at: int = NEVER  # its session ends

    @classmethod
    def of(cls, m: JoinClassic, member: str) -> JoinedMember:
        """Return a new member, from its request to join."""
        return cls(
            member, m.instance, m.client, m.host, m.session_ms, m.rebalance_ms, dict(m.protocols)
        )

    def beat(self, now: int) -> None:
        """Restart the session timeout."""
        self.gone_at = now + self.session_ms

    def describe(self, protocol: str) -> ClassicMember:
        """Describe this member, for the leader of the group and for people."""
        metadata = self.protocols.get(protocol, b"")
        return ClassicMember(
            self.id, self.instance, self.client, self.host, metadata, self.assignment
        )
