"""Counts and durations of messages, by Prometheus."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from faststream.response import PublishCommand

from pymq.contrib.faststream.commands import PymqPublishCommand
from pymq.contrib.faststream.messages import Raw
from pymq.core.batch.record import Record


class PymqPrometheusMiddleware(PrometheusMiddleware[Raw, PymqPublishCommand]):
    """Counts messages: ``PymqBroker(url, middlewares=[PymqPrometheusMiddleware(registry=...)])``.

    :mod:`pymq.metrics` has metrics of pymq itself, such as the lag of groups. This class needs the
    extra ``metrics``.

    Args:
        registry: a ``CollectorRegistry`` of ``prometheus_client``.
        options: those of FastStream's other middlewares: ``app_name``, ``metrics_prefix``,
            ``received_messages_size_buckets``, ``custom_labels``.
    """

    def __init__(self, *, registry: Any, **options: Any) -> None:
        super().__init__(settings_provider_factory=_settings, registry=registry, **options)


class MessageLabels(MetricsSettingsProvider[Any]):
    """The counts of a message, and their labels."""

    messaging_system = "pymq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return topic, bytes and number of the records of a message."""
        raw = msg.raw_message
        records = (raw,) if isinstance(raw, Record) else raw
        return {
            "destination_name": records[0].topic,
            "message_size": sum(len(record.value) for record in records),
            "messages_count": len(records),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PublishCommand) -> str:
        """Return the topic of a sent message."""
        return cmd.destination


def _settings(_: Any) -> MessageLabels:
    return MessageLabels()
