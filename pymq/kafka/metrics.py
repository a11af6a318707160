"""The metrics of a door and its gates."""

from __future__ import annotations

from pymq.core.observe.metrics import Metrics
from pymq.kafka import frames
from pymq.kafka.door import KafkaDoor


def measure(door: KafkaDoor, out: Metrics) -> None:
    """Add the metrics of Kafka's clients; only the thread that runs the loop may call this."""
    out.add("pymq_kafka_connections", len(door))
    out.add("pymq_kafka_connections_turned_away_total", door.turned_away)
    out.add("pymq_kafka_received_bytes_total", door.received_bytes)
    out.add("pymq_kafka_sent_bytes_total", door.sent_bytes)
    out.add("pymq_kafka_fetch_sessions", sum(len(each.gate.sessions) for each in door.listeners))
    out.add("pymq_kafka_connections_timed_out_total", door.timed_out)
    refused = sum(each.gate.sasl.refused for each in door.listeners if each.gate.sasl)
    out.add("pymq_kafka_authentication_failures_total", refused)
    shared = sum(len(each.gate.share_sessions) for each in door.listeners)
    out.add("pymq_kafka_share_sessions", shared)
    apis = frames.apis()
    for listener in door.listeners:
        for key, times in listener.gate.times.items():
            name = apis[key].name.removesuffix("Request")
            out.add("pymq_kafka_request_seconds", times.copy(), name)
