"""The client at a connection's end: its principal, and what it may do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pymq.access.requirements import Requirement
from pymq.access.rules import Kind, Operation
from pymq.core.message import Answer, InitProducer, Message
from pymq.core.values import define
from pymq.errors import AuthorizationFailed
from pymq.kafka.security.sasl import Exchange

_UNANSWERED = Answer(0, error=AuthorizationFailed("the client may not do this"))


class DoorGuard(Protocol):
    """The policy and the quotas of a broker, for the clients of its door."""

    def allows(self, principal: str, need: Requirement) -> bool:
        """Whether *principal* has a permission."""
        ...

    def admit(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        """Return None to admit *message*, or the answers to give instead."""
        ...

    def send(self, principal: str, message: Message) -> Message:
        """Charge an answer to *principal*; returns it without hidden topics."""
        ...

    def refuse(self, principal: str, source: str) -> None:
        """Note a client that has not proved who it is."""
        ...


@define
class KafkaCaller:
    """A client, as its gate knows it."""

    host: str = ""
    guard: DoorGuard | None = None  # None: no policy is in force
    must_prove: bool = False  # by SASL, before anything else
    principal: str = ""
    exchange: Exchange | None = None
    is_refused: bool = False  # the gate closes the connection when its last answer is sent

    @property
    def is_known(self) -> bool:
        """Whether the client has proved what it has to prove."""
        return not self.must_prove or bool(self.principal)

    def refusal(self, message: Message) -> Any:
        """Return the answer to give instead of sending *message* for the client; None: send it.

        The gate gives out producer ids itself, so their grants are not looked at.
        """
        if self.guard is None or isinstance(message, InitProducer):
            return None
        found = self.guard.admit(self.principal, self.host, message)
        return None if found is None else next(iter(found), _UNANSWERED)

    def charged(self, answer: Message) -> Message:
        """Charge an answer to the client; returns it without hidden topics."""
        return answer if self.guard is None else self.guard.send(self.principal, answer)

    def may(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether the policy allows something."""
        need = Requirement(operation, kind, name)
        return self.guard is None or self.guard.allows(self.principal, need)

    def may_read(self, topic: str) -> bool:
        """Whether the client may read a topic."""
        return self.may(Operation.READ, Kind.TOPIC, topic)

    def may_describe(self, topic: str) -> bool:
        """Whether the client may know that a topic exists."""
        return self.may(Operation.DESCRIBE, Kind.TOPIC, topic)
