"""Metrics as a user sees them: in a registry of their own, and as they are documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import pymq
import pymq.metrics
from pymq.core.journal import EVENTS
from pymq.core.metrics import METRICS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "monitoring.md"


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_registry_tells_the_same() -> None:
    registry = CollectorRegistry()
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"x").result()
        with pymq.metrics.registered(mq, registry):
            found = samples(generate_latest(registry).decode())
            # What the scrape itself changes is left out: asking takes time, and is an event.
            assert found == samples(str(mq.metrics()))
    assert found["pymq_messages_in_total", "[('topic', 't')]"] == 1
    assert samples(generate_latest(registry).decode()) == {}


def test_every_metric_and_every_event_is_documented() -> None:
    """And nothing is that is not there."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]*) \|", text, re.MULTILINE)
    metrics = {name: labels for name, labels in rows if name in METRICS or "pymq_" in name}
    assert metrics == {
        name: ", ".join(f"`{label}`" for label in spec.labels) for name, spec in METRICS.items()
    }
    events = {name: fields for name, fields in rows if name not in metrics}
    assert events == {
        name: ", ".join(f"`{field}`" for field in fields) for name, (_, fields) in EVENTS.items()
    }
