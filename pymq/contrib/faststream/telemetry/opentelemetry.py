"""Traces and metrics of handlers and publishers, by OpenTelemetry.

Spans follow a message from its publisher through its handlers. :mod:`pymq.otel` has the spans of
pymq's own client below.
"""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.middleware import TelemetryMiddleware
from faststream.response import PublishCommand

from pymq.contrib.faststream.commands import PymqPublishCommand
from pymq.core.batch.record import Record

SYSTEM = "pymq"


class PymqTelemetryMiddleware(TelemetryMiddleware[PymqPublishCommand]):
    """Traces messages: ``PymqBroker(url, middlewares=[PymqTelemetryMiddleware()])``.

    The middleware needs ``pip install opentelemetry-sdk``.

    Args:
        include_messages_counters: count messages, in addition to durations.
        options: those of FastStream's other telemetry middlewares: ``tracer_provider``,
            ``meter_provider``, ``meter``.
    """

    def __init__(self, *, include_messages_counters: bool = True, **options: Any) -> None:
        super().__init__(
            settings_provider_factory=_settings,
            include_messages_counters=include_messages_counters,
            **options,
        )


class MessageAttributes(TelemetrySettingsProvider[Any]):
    """The attributes of spans, by OpenTelemetry's conventions for messaging."""

    messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of a received message."""
        raw = msg.raw_message
        records = (raw,) if isinstance(raw, Record) else raw
        found = {
            "messaging.system": SYSTEM,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.correlation_id,
            "messaging.message.payload_size_bytes": sum(len(record.value) for record in records),
            "messaging.destination_publish.name": records[0].topic,
            "messaging.pymq.partition": records[0].partition,
            "messaging.pymq.offset": records[0].offset,
        }
        if not isinstance(raw, Record):
            found["messaging.batch.message_count"] = len(records)
        return found

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic of a received message."""
        raw = msg.raw_message
        return raw.topic if isinstance(raw, Record) else raw[0].topic

    def get_publish_attrs_from_cmd(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the attributes of a sent message."""
        return {
            "messaging.system": SYSTEM,
            "messaging.destination.name": cmd.destination,
            "messaging.message.conversation_id": cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: PublishCommand) -> str:
        """Return the topic of a sent message."""
        return cmd.destination


def _settings(_: Any) -> MessageAttributes:
    return MessageAttributes()
