"""Programs of how-to pages that need a separate file or another package."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import attrs
import pytest

import pymq
from pymq.cli import main
from pymq.client.options import GROUP_DEFAULTS
from pymq.kafka.offered import API_VERSIONS, HANDLERS, offered
from pymq.testing import Cluster

ROOT = Path(__file__).resolve().parents[1]
HOWTO = ROOT / "docs/howto"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", (HOWTO / page).read_text(encoding="utf-8"))


def run_tests(folder: Path) -> str:
    """Run the tests in a folder, without this repository's settings."""
    options = "-q -p no:cacheprovider -p pymq.testing.pytest_plugin -c /dev/null --rootdir ."
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", *options.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_application_in_fastapi(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    (tmp_path / "app.py").write_text(blocks("fastapi.md", "py")[0])
    (tmp_path / "test_app.py").write_text(blocks("fastapi.md", "py")[1])
    assert "2 passed" in run_tests(tmp_path)


def test_the_tests_of_applications(tmp_path: Path) -> None:
    for number, block in enumerate(blocks("testing.md", "python")):
        (tmp_path / f"test_{number}.py").write_text(block)
    assert "14 passed" in run_tests(tmp_path)


def test_the_programs_of_kafkas_clients(tmp_path: Path) -> None:
    """Programs and tests of the page run, each in a module of its own."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    for number, block in enumerate(blocks("kafka.md", "python")):
        is_test = "def test_" in block
        body = block if is_test else f"def test_it():\n{indent(block, '    ')}"
        (tmp_path / f"test_{number}.py").write_text(body)
    assert "4 passed" in run_tests(tmp_path)


def test_the_table_of_kafkas_apis() -> None:
    """Keys and versions on the page are those that the gate offers."""
    page = (HOWTO / "kafka.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([\d, -]+) \| ([A-Za-z, ]+) \| ([\d, -]+|all) \|", page)
    told: dict[int, str] = {}
    for keys, _, versions in rows:
        numbers = [
            number
            for part in keys.split(", ")
            for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
        ]
        ranges = versions.split(", ") if versions != "all" else ["all"] * len(numbers)
        told |= dict(zip(numbers, ranges, strict=True))
    real = {
        each.api_key: f"{each.min_version}-{each.max_version}"
        for each in offered({*HANDLERS, API_VERSIONS})
    }
    real[0] = "3-13"  # announced from 0 on, as the page says
    assert {key: told[key] if told[key] != "all" else real[key] for key in told} == real


def test_what_an_operator_should_look_at() -> None:
    """Runs the page's function on a cluster that loses a broker and gets it back."""
    names: dict[str, Any] = {}
    exec(blocks("cluster.md", "python")[0], names)
    with Cluster(brokers=3, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("orders", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("orders", b"tea").result()
            cluster.run(seconds=1)
            assert names["troubles"](mq) == []
            cluster.crash("broker-1")
            producer.send("orders", b"milk").result()
            cluster.run(seconds=5)
            assert names["troubles"](mq) == [
                "broker-1 is away",
                "orders/0 is not in sync on broker-1",
            ]
            cluster.restart("broker-1")
            cluster.run(seconds=5)
            assert names["troubles"](mq) == []
            mq.create_topic("one", acks="leader")
            holder = mq.describe_topic("one").partitions[0].replicas[0]
            producer.send("one", b"bread").result()
            mq.reassign("one", "0", [next(n for n in cluster.brokers if n != holder)])
            cluster.crash(holder)
            cluster.wipe(holder)
            cluster.restart(holder)
            cluster.run(seconds=30)
            assert names["troubles"](mq) == ["one/0: nobody has offsets 0 to 1"]


def test_the_keys_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands make a folder with the keys of each node and both users."""
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("cluster.md", "sh")
    for line in script.splitlines():
        program, *arguments = line.split()
        assert (program, main(arguments)) == ("pymq", 0)
    made = {path.stem for path in (tmp_path / "keys").glob("*.secret")}
    assert made == {"broker-0", "broker-1", "broker-2", "zk-1", "zk-2", "alice", "billing"}
    policy = tomllib.loads((tmp_path / "keys/policy.toml").read_text())
    assert policy["superusers"] == ["alice"]
    assert set(policy["rule"][0]["principal"]) == made - {"alice", "billing"}


@pytest.mark.parametrize("script", ["zkserver", "broker"])
def test_the_settings_of_nodes(script: str, tmp_path: Path) -> None:
    """Each option in the page's files is an option of the script; only the keys are missing."""
    texts = [
        text for text in blocks("cluster.md", "toml") if ("name =" in text) == (script == "broker")
    ]
    (text,) = texts
    (tmp_path / "node.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{script}.py"), "--config", "node.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "/etc/pymq/keys" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("node", ["broker", "zkserver"])
def test_systemd_accepts_the_units(node: str, tmp_path: Path) -> None:
    """Only the path of pymq and the user differ from those on a real machine."""
    (text,) = [text for text in blocks("cluster.md", "ini") if f"pymq {node} --config" in text]
    command = str(Path(sys.executable).with_name("pymq"))
    unit = tmp_path / f"pymq-{node}.service"
    unit.write_text(text.replace("/opt/pymq/bin/pymq", command).replace("User=pymq", "User=daemon"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr


# The modules of all extras' packages; pymq's own two dependencies are not among them.
OF_EXTRAS = (
    "backports confluent_kafka cramjam crc32c deltalake fastavro faststream google isal kazoo lz4 "
    "msgspec numpy opentelemetry pandas prometheus_client pyarrow pydantic pyiceberg pyspark rich "
    "shtab taskiq zmq"
).split()


def test_the_same_program_needs_no_extra(tmp_path: Path) -> None:
    """The same program runs for users who install pymq as the README says, without the package of
    any extra.
    """
    (program,) = blocks("from-kafka.md", "python")
    hide = f"import sys\nfor name in {OF_EXTRAS}:\n    sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", hide + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=2)[1:] == ["0", "b'customer 7' b'two teapots'\n"]


def test_what_is_hidden_is_what_extras_bring() -> None:
    """Every distribution that an extra names is hidden from the program above."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    imported = {"backports.zstd": "backports", "opentelemetry-api": "opentelemetry"}
    imported |= {"confluent-kafka": "confluent_kafka"}
    imported |= {"protobuf": "google", "prometheus-client": "prometheus_client", "pyzmq": "zmq"}
    named = {re.split(r"[<>=;\[ ]", line)[0] for lines in extras.values() for line in lines}
    named -= {"pymq-log"}
    assert {imported.get(name, name) for name in named} <= set(OF_EXTRAS)


def test_settings_of_kafka_and_ours() -> None:
    """Each setting that the page gives for pymq exists, with the given default."""
    page = (HOWTO / "from-kafka.md").read_text(encoding="utf-8")
    known: dict[str, dict[str, object]] = {
        "producer": defaults(pymq.Client.producer),
        "consumer": {**defaults(pymq.Client.consumer), **GROUP_DEFAULTS},
        "topic": {field.name: field.default for field in attrs.fields(pymq.TopicConfig)},
    }
    for kind, ours in known.items():
        (section,) = re.findall(rf"(?ms)^## Settings of a {kind}\n(.*?)^## ", page)
        rows = [row.split("|")[3:5] for row in section.splitlines() if row.startswith("| ")]
        told = {name: default for row in rows for name, default in pairs(*row)}
        assert len(told) >= 7
        assert set(told) <= set(ours)
        for name, default in told.items():
            if re.match(r'None$|True$|False$|["\d]', default):
                assert said(default) == ours[name], name


def defaults(function: Callable[..., object]) -> dict[str, object]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


METHODS = {"poll", "next_sequence"}  # methods that the page names beside settings


def pairs(names: str, values: str) -> list[tuple[str, str]]:
    """Return the names in a cell, each with the default in the next cell, if it has one."""
    found = [name for name in re.findall(r"`(\w+)`", names) if name not in METHODS]
    told = [value.strip(" `") for value in values.split(", ")]
    if len(found) != len(told):
        told = ["-"] * len(found)
    return list(zip(found, told, strict=True))


def said(default: str) -> object:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "days": 86_400_000, "day": 86_400_000}
    number, _, unit = default.partition(" ")
    return int(number) * units[unit] if unit else ast.literal_eval(default)
