"""The documentation site: it builds, its links are valid, and it covers everything public."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import attrs
import pytest

import pymq
from pymq import errors

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MODULES = """pymq pymq.aio pymq.contrib.faststream pymq.contrib.taskiq pymq.metrics pymq.otel
    pymq.serde pymq.spark pymq.testing pymq.web""".split()
KINDS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SECONDS = 300  # time limit for a build, on a busy machine


def test_the_site_builds(tmp_path: Path) -> None:
    """Warnings and unknown names in docstrings are errors."""
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "dummy", str(DOCS), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_is_in_the_reference(module: str) -> None:
    """Each public name has its own directive in the reference, and each module has a page."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").iterdir())
    kinds = r"(?:auto(?!module)\w+|data)"
    told = set(re.findall(rf"^\.\. {kinds}:: {module}\.(\w+)$", pages, re.MULTILINE))
    assert told == set(import_module(module).__all__) - {"aio", "errors", "serde"}


def test_the_architecture_names_functions_that_are_there() -> None:
    """Each step of a record's life links to its function, as
    ``[`Class.method`](../pymq/file.py)``.
    """
    page = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    links = re.findall(r"\[`([\w.]+)`\]\(\.\./(pymq/[\w/]+\.py)\)", page)
    assert len(links) >= 30
    for name, file in links:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, KINDS)}
        first, _, method = name.partition(".")
        assert first in found, f"{file} has no {first}"
        if method:
            inside = {node.name for node in found[first].body if isinstance(node, KINDS)}
            assert method in inside, f"{file} has no {name}"


def test_tables_are_read_from_the_code() -> None:
    """The table of errors has every error; tables of fields have each field with its default and
    its comment.
    """
    pytest.importorskip("sphinx")
    from docs._ext.reference import error_classes, field_rows

    named = [getattr(errors, name) for name in errors.__all__]
    assert set(error_classes()) == {item for item in named if isinstance(item, type)}
    rows = field_rows(pymq.TopicConfig)
    assert [name for name, *_ in rows] == [f"``{f.name}``" for f in attrs.fields(pymq.TopicConfig)]
    assert rows[2][:3] == ("``retention_bytes``", "``int | None``", "``None``")
    assert rows[2][3].startswith("limit for each partition")
    offset = field_rows(pymq.RecordMetadata)[2]
    assert offset[:3] == ("``offset``", "``int``", "")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("acks", ["acks"]),
        ("`raft`, one", ["`raft`, one"]),
        ("client/test_a.py::test_b_c", ["client/", "test_", "a.", "py::", "test_", "b_", "c"]),
        ("SubscriptionNode", ["Subscription", "Node"]),
        ("OFFSET_OUT_OF_RANGE", ["OFFSET_", "OUT_", "OF_", "RANGE"]),
    ],
)
def test_names_in_tables_break_where_they_are_put_together(name: str, parts: list[str]) -> None:
    pytest.importorskip("sphinx")
    from docs._ext.breaks import pieces

    assert pieces(name) == parts
