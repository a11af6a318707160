"""Checks the senders of reports: a broker may report only about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.controller.state.image import Image
from pymq.core.message import (
    AlterIsr,
    BecomeLeader,
    BlockSizes,
    BrokerHeartbeat,
    ControlledShutdown,
    LeaderAndIsrAnswer,
    Message,
    OfflineReplicas,
    Progress,
    RegisterBroker,
    ReplicaEnds,
    RetireBlocks,
    RollWanted,
    Sealed,
    Stopped,
)
from pymq.core.types import TopicPartition


def _reporter(field: str) -> Callable[[Image, str, Any], bool]:
    def is_reporter(_: Image, source: str, message: Any) -> bool:
        name: str = getattr(message, field)
        return name == source

    return is_reporter


def _answers(_: Image, source: str, message: LeaderAndIsrAnswer) -> bool:
    # A broker's guard that refuses a request leaves out the broker's name.
    return message.broker in ("", source)


def _hosts(image: Image, source: str, message: Any) -> bool:
    partition = image.find(TopicPartition(message.topic, message.partition))
    return partition is None or source in partition.hosts


_RULES: dict[type, Callable[[Image, str, Any], bool]] = {
    RegisterBroker: _reporter("name"),
    BrokerHeartbeat: _reporter("name"),
    ControlledShutdown: _reporter("broker"),
    Stopped: _reporter("broker"),
    Sealed: _reporter("broker"),
    AlterIsr: _reporter("broker"),
    BecomeLeader: _reporter("broker"),
    Progress: _reporter("broker"),
    OfflineReplicas: _reporter("broker"),
    ReplicaEnds: _reporter("broker"),
    LeaderAndIsrAnswer: _answers,
    RollWanted: _hosts,
    RetireBlocks: _hosts,
    BlockSizes: _hosts,
}


def may_report(image: Image, source: str, message: Message) -> bool:
    """Whether the node *source* may send *message* to a zkserver; clients' requests pass."""
    rule = _RULES.get(type(message))
    return rule is None or rule(image, source, message)
