"""The settings that a broker and its routers share: connection, producer and logging."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import (
    BrokerConfig,
    UnderlyingDriverAnnotation,
    UnderlyingDriverAnnotations,
)
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

from pymq.aio import AsyncClient
from pymq.contrib.connection import Connection

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

MESSAGE_ID_WIDTH = 10
WHERE = "pymq.contrib.faststream.annotations"


def _annotations() -> UnderlyingDriverAnnotations:
    """Name the annotation to use instead of each class that FastStream cannot inject."""
    from pymq.contrib.faststream import annotations, broker, messages  # they import this module

    named = {
        AsyncClient: "Client",
        broker.PymqBroker: "PymqBroker",
        messages.PymqMessage: "PymqMessage",
    }
    return MappingProxyType(
        {
            kind: UnderlyingDriverAnnotation(
                type_hint=getattr(annotations, name), module=WHERE, name=name
            )
            for kind, name in named.items()
        }
    )


@dataclass(kw_only=True)
class PymqBrokerConfig(BrokerConfig):
    """The settings of a broker; those of a router have no connection."""

    connection: Connection = field(
        default_factory=lambda: Connection("memory:", opened_by="including the router in a broker")
    )
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_annotations)


class PymqLogStorage(DefaultLoggerStorage):
    """Aligns the columns of the log: topic, group and message id."""

    __slots__ = ("_group_width", "_level", "_topic_width")

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = 4
        self._group_width = 4
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        """Set the level of the default logger."""
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the log's columns for the topic and the group of a subscriber."""
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, which is made by the first call."""
        if logger := self._get_logger_ref():
            return logger
        logger = get_broker_logger(
            name="pymq",
            default_context={"topic": "", "group": ""},
            message_id_ln=MESSAGE_ID_WIDTH,
            fmt=(
                "%(asctime)s %(levelname)-8s - "
                f"%(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
                f"%(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s"
            ),
            context=context,
            log_level=self._level,
        )
        self._logger_ref.add(logger)
        return logger


make_pymq_logger_state = partial(make_logger_state, default_storage_cls=PymqLogStorage)
