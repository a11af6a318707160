"""The benchmarks beside a Kafka find its jars and run; no test downloads or checks a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kafka import jars
from benchmarks.model import Job, Needs, Side
from benchmarks.parts import find
from benchmarks.runner import missing

PEER = ["N1-end-to-end", "N3-consume", "N5-latency", "N6-requests", "R1-put-durable", "R4-latency"]
DOOR = ["K1-throughput", "K2-latency", "K3-start"]


def run(part: str, name: str, tmp_path: Path) -> dict[str, float]:
    side = find(part).side(name)
    if what := missing(side):
        pytest.skip(f"missing: {what}")
    job = Job(tmp_path, "tiny")
    if side.prepare is not None:
        side.prepare(job)
    return side.run(job)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", list(jars.ALL))
def test_each_jar_is_pinned(name: str) -> None:
    pins = jars.read_pins(jars.ALL[name].pins)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pins.values())
    for _, module, version in jars.ALL[name].modules:
        assert f"{module}-{version}.jar" in pins


def test_jars_that_were_not_fetched_are_missing(empty_cache: Path) -> None:
    side = Side("kafka", "", lambda _: {}, Needs(jars=("spark-kafka",)))
    assert missing(side) == "the jars of spark-kafka 4.2.0, which `make kafka` fetches"
    first, *others = jars.paths("spark-kafka")
    assert first.is_relative_to(empty_cache)
    first.parent.mkdir(parents=True)
    for path in others:
        path.touch()
    assert missing(side) is not None
    first.touch()
    assert missing(side) is None


def test_a_jar_that_differs_from_its_pin_is_refused() -> None:
    pins = {"a.jar": "00", "b.jar": "01"}
    jars.check(pins, pins)
    for found, told in (
        ({"a.jar": "00", "b.jar": "02"}, "b.jar has SHA-256 02, not 01"),
        ({"a.jar": "00"}, "b.jar is missing"),
        (pins | {"c.jar": "03"}, "c.jar is not pinned"),
    ):
        with pytest.raises(jars.FetchFailed, match=told):
            jars.check(found, pins)


def test_without_java_nothing_is_fetched(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PATH", str(empty_cache))
    assert jars.main([]) == 1
    assert "Java 17" in capsys.readouterr().err
    assert list(jars.cache().iterdir()) == []


def test_pymqs_door_acknowledges_a_first_record(tmp_path: Path) -> None:
    found = run("K3-start", "pymq memory", tmp_path)
    assert found["all"] == pytest.approx(found["listen"] + found["first record"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name"), [(part, side.name) for part in DOOR for side in find(part).sides]
)
def test_each_side_of_the_door_runs(part: str, name: str, tmp_path: Path) -> None:
    assert min(run(part, name, tmp_path).values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", PEER)
def test_a_kafka_runs_beside_brokers(part: str, tmp_path: Path) -> None:
    assert min(run(part, "kafka", tmp_path).values()) > 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("part", ["S1-read", "S2-write"])
def test_sparks_connector_reads_and_writes_a_kafka(part: str, tmp_path: Path) -> None:
    assert min(run(part, "kafka", tmp_path).values()) > 0
