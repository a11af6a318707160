"""Prometheus can parse the metrics text, and the catalogue lists all metrics."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pymq.core.observe.metrics import BOUNDS, METRICS, Histogram, Metrics


def parsed(metrics: Metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Parse the text with Prometheus's own parser."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(str(metrics)):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), "told twice"
            found[sample.name][labels] = sample.value
    return found


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('"\\\n{},=')),
        st.floats(allow_nan=False),
        max_size=5,
    )
)
def test_whatever_a_label_holds_is_read_as_it_was(values: dict[str, float]) -> None:
    metrics = Metrics()
    for label, found in values.items():
        metrics.add("pymq_bytes_in_total", found, label)
    read = parsed(metrics).get("pymq_bytes_in_total", {})
    assert read == {(("topic", label),): found for label, found in values.items()}


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_what_a_list_does(times: list[float]) -> None:
    histogram, metrics = Histogram.new(), Metrics()
    for time in times:
        histogram.observe(time)
    metrics.add("pymq_fsync_seconds", histogram)
    read = parsed(metrics)
    for bound in (*BOUNDS, math.inf):
        text = "+Inf" if bound == math.inf else repr(bound)
        below = sum(time <= bound for time in times)
        assert read["pymq_fsync_seconds_bucket"][("le", text),] == below
    assert read["pymq_fsync_seconds_count"] == {(): len(times)}
    assert read["pymq_fsync_seconds_sum"][()] == pytest.approx(sum(times))
    if times:
        half = sorted(times)[(len(times) - 1) // 2]
        assert half <= histogram.quantile(0.5)


def test_labels_choose_what_is_added_up() -> None:
    metrics = Metrics()
    for partition, lag in (("0", 3), ("1", 4)):
        metrics.add("pymq_group_lag", lag, "g", "orders", partition)
    assert metrics["pymq_group_lag"] == 7
    assert metrics.value("pymq_group_lag", topic="orders", partition="1") == 4
    assert metrics.value("pymq_group_lag", group="other") == 0
    assert list(metrics) == ["pymq_group_lag"]
    assert "pymq_topics" not in metrics
    assert metrics["pymq_topics"] == 0
    with pytest.raises(KeyError, match="has no label 'name'; it has group, topic, partition"):
        metrics.value("pymq_group_lag", name="x")
    with pytest.raises(KeyError, match="pymq_group_lags"):
        metrics.value("pymq_group_lags")


def test_names_follow_the_conventions() -> None:
    for name, spec in METRICS.items():
        assert re.fullmatch(r"(pymq|process)_[a-z_]+", name)
        assert (spec.kind == "counter") == name.endswith("_total"), name
        assert (spec.kind == "histogram") == bool(
            name.endswith("_seconds") and not name.startswith("process")
        ), name
        assert spec.help
        assert not spec.help.endswith(".")
