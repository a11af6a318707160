"""docs/spark.md has a row for each option of Kafka's connector, and for each option of pymq's."""

from __future__ import annotations

import re

import pytest

from pymq.errors import ConfigError
from pymq.spark import options
from pymq.spark.options import sink_options, source_options
from tests.spark.conftest import ROOT

TEXT = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
JUDGEMENTS = ("same", "differs how", "not, because")
# The options of source and sink in the "Structured Streaming + Kafka Integration Guide".
SOURCE = """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp startingOffsets
    startingOffsetsByTimestamp endingTimestamp endingOffsets endingOffsetsByTimestamp
    failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
    groupIdPrefix kafka.group.id includeHeaders startingOffsetsByTimestampStrategy
    """.split()
SINK = ["kafka.bootstrap.servers", "topic", "includeHeaders"]
VALUES = {
    "assign": '{"t": [0]}',
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxTriggerDelay": "10s",
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingOffsetsByTimestamp": '{"t": {"0": 1}}',
    "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
}


def rows(heading: str) -> dict[str, str]:
    """Return the verdict on each option in the table that begins with *heading*."""
    table = TEXT[TEXT.index(f"| {heading} |") :].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, judgement = (cell.strip() for cell in line.split("|")[1:3])
        assert judgement in JUDGEMENTS, line
        found.update(dict.fromkeys(re.findall(r"`([A-Za-z.]+)`", names), judgement))
    return found


@pytest.mark.parametrize(
    ("heading", "names"), [("option of the source", SOURCE), ("option of the sink", SINK)]
)
def test_each_option_of_kafkas_connector_has_a_row(heading: str, names: list[str]) -> None:
    """An option that the table calls "the same" is accepted; one that pymq lacks is refused with a
    hint.
    """
    found = rows(heading)
    assert set(names) <= set(found)
    for name in names:
        given = {"url": "zmq+tcp://h:1", name: VALUES.get(name, "5")}
        if found[name] == "not, because":
            with pytest.raises(ConfigError, match=r"is not known; (leave it out|name the cluster)"):
                source_options({"subscribe": "t", **given}, is_stream=True)
        elif heading == "option of the sink":
            sink_options(given)
        else:
            if name not in ("assign", "subscribe", "subscribePattern"):
                given["subscribe"] = "t"
            if name == "maxTriggerDelay":
                given["minOffsetsPerTrigger"] = "5"
            source_options(given, is_stream=name in options._STREAMS)


def test_each_option_is_documented() -> None:
    for name in (*options._COMMON, *options._SOURCE, *options._SINK):
        assert f"`{name}`" in TEXT, name
