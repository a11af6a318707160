"""Nodes in one process."""

from __future__ import annotations

import pytest

from pymq.core.message import Message, Produced
from pymq.errors import AuthorizationFailed
from pymq.testing import check_transport
from pymq.transport.memory import MemoryNetwork


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_contract() -> None:
    check_transport(MemoryNetwork().join)


def test_messages_are_handed_on_and_not_copied() -> None:
    network = MemoryNetwork()
    a, b = network.join("a"), network.join("b")
    message = Produced(1)
    a.send("b", "a", message)
    ((_, _, found),) = b.poll()
    assert found is message
    a.close()
    b.close()


def test_a_gate_answers_instead_of_the_machine() -> None:
    def gate(principal: str, source: str, message: Message) -> list[Message] | None:
        if source == "a":
            return [Produced(1, error=AuthorizationFailed(f"not for {principal or 'strangers'}"))]
        return None

    network = MemoryNetwork()
    a, b = network.join("a"), network.join("b", gate)
    a.send("b", "a", Produced(1))
    a.send("b", "a.other", Produced(2))
    assert b.poll() == [("b", "a.other", Produced(2))]
    ((_, source, answer),) = a.poll()
    assert source == "b"
    assert isinstance(answer, Produced)
    assert isinstance(answer.error, AuthorizationFailed)
    a.close()
    b.close()
