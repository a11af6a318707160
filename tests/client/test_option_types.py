"""Type checkers find wrong options before they run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import attrs
import pytest

import pymq
from pymq.client import option_types
from pymq.client.options import GROUP_DEFAULTS
from pymq.core.batch.compression import codec_number
from pymq.core.metadata import topic_config
from pymq.hash.assign import names as assignors

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests" / "data" / "wrong_calls.txt"


def told_by_mypy(path: Path) -> Iterator[tuple[int, str]]:
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    for line in run.stdout.splitlines():
        if found := re.match(r".*:(\d+): error: .*\[([a-z-]+)\]$", line):
            yield int(found[1]), found[2]


def told_by_pyright(path: Path) -> Iterator[tuple[int, str]]:
    """Run pyright and return its errors.

    basedpyright is the same checker, with Node.js in its package.
    """
    config = {"typeCheckingMode": "standard", "include": [path.name], "extraPaths": [str(ROOT)]}
    path.with_name("pyrightconfig.json").write_text(json.dumps(config))
    run = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(path.parent)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    for found in json.loads(run.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield found["range"]["start"]["line"] + 1, found["rule"]


@pytest.mark.parametrize(
    ("checker", "told"), [("mypy", told_by_mypy), ("pyright", told_by_pyright)]
)
def test_each_wrong_call_is_found(checker: str, told: object, tmp_path: Path) -> None:
    """The type checker reports each wrong line, and no other line."""
    path = tmp_path / "wrong_calls.py"
    path.write_text(WRONG.read_text())
    wanted = {
        number: rules[checker]
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if (rules := dict(re.findall(r"(mypy|pyright): ([A-Za-z-]+)", line)))
    }
    assert len(wanted) > 20
    assert callable(told)
    assert dict(told(path)) == wanted


def test_the_types_are_those_of_the_options() -> None:
    topic = get_type_hints(option_types.TopicOptions)
    assert topic.keys() == {field.name for field in attrs.fields(pymq.TopicConfig)}
    assert option_types.GroupOptions.__annotations__.keys() == GROUP_DEFAULTS.keys()
    assert get_args(topic["cleanup_policy"]) == topic_config.CLEANUP
    assert get_args(option_types.Fsync) == topic_config.FSYNC
    assert set(get_args(option_types.Assignor)) == set(assignors())
    for name in get_args(option_types.Compression):
        assert codec_number(name) > 0
    _, words = get_args(option_types.Acks)
    for word in get_args(words):
        assert isinstance(pymq.AckMode.of(word), pymq.AckMode)
