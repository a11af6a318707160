"""A user's metrics: in their own registry, and as documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import pymq
import pymq.metrics
from pymq.core.observe.events import EVENTS
from pymq.core.observe.metrics import METRICS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "monitoring.md"
DASHBOARD = PAGE.parent / "grafana.json"


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
            # Compare without the metrics that the scrape itself changes: it takes time, and is an
            # event.
            assert found == samples(str(mq.metrics()))
    assert found["pymq_messages_in_total", "[('topic', 't')]"] == 1
    assert samples(generate_latest(registry).decode()) == {}


def test_every_metric_and_every_event_is_documented() -> None:
    """The documentation lists all of them, and no others."""
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


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return found


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Each name in the dashboard is a metric with its own labels, and counters are shown as
    rates.
    """
    whole = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    asked += [each["expr"] for each in whole["annotations"]["list"]]
    assert len(asked) > 40
    seen = set()
    for expression in asked:
        assert expression.count("(") == expression.count(")"), expression
        names = re.findall(r"\b(?:pymq|process)_[a-z_]+", expression)
        assert names, expression
        for text in names:
            name = text if text in METRICS else re.sub(r"_(bucket|sum|count)$", "", text)
            assert name in METRICS, expression
            seen.add(name)
            spec = METRICS[name]
            assert (spec.kind == "histogram") == (text != name), expression
            is_rate = re.search(rf"\b(?:rate|increase)\({text}\b", expression) is not None
            assert is_rate == (spec.kind != "gauge"), expression
            # Labels that Prometheus adds, and the label of a histogram.
            known = {*spec.labels, "job", "instance", "le"}
            by = re.findall(r"\bby \(([^)]*)\)", expression)
            used = {label.strip() for labels in by for label in labels.split(",")}
            used |= set(re.findall(r"[{,]\s*([a-z_]+)\s*=~?", expression))
            assert used <= known, expression
    assert {panel["title"] for panel in panels() if panel["type"] != "row"}.isdisjoint({""})
    # The page or the client shows the metrics that no panel shows.
    left = {name for name in METRICS if name not in seen and "producer" not in name}
    assert left == {
        *("pymq_hosted_partitions", "pymq_led_partitions", "pymq_log_start_offset"),
        *("pymq_log_end_offset", "pymq_high_watermark", "pymq_leader_epoch", "pymq_replicas"),
        *("pymq_in_sync_replicas", "pymq_group_committed_offset", "pymq_controller_epoch"),
        *("pymq_topics", "pymq_partitions", "pymq_send_queue_bytes", "pymq_info"),
        *("pymq_fetches_waiting", "pymq_unsent_bytes", "pymq_connections_cut_total"),
        *("pymq_connections_turned_away_total", "process_max_fds"),
        *("process_start_time_seconds", "pymq_consumers", "pymq_consumer_records_total"),
        *("pymq_consumer_expired_total", "pymq_delayed_records"),
        "pymq_consumer_undecodable_total",
        *(name for name in METRICS if name.startswith(("pymq_kafka_", "pymq_mirror_"))),
        *("pymq_spark_offsets_behind_latest", "pymq_spark_bytes_behind_latest"),
    }


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
