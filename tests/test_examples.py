"""Every example runs, also a second time in the same folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("quickstart.py", "all orders so far: 450 euros", "all orders so far: 900 euros"),
        ("quickstart_async.py", "read 2000 readings", "read 2000 readings"),
    ],
)
def test_quickstart(name: str, first: str, second: str, tmp_path: Path) -> None:
    assert first in run(name, tmp_path)
    assert second in run(name, tmp_path)


def run(name: str, folder: Path) -> str:
    # The example runs in an empty folder, with a relative path, as for a user.
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("quickstart*.py"):
        assert 20 <= len(path.read_text().splitlines()) <= 60, path


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_too_few_brokers_for_the_copies_are_told_in_a_line(
    is_asked_for: bool, tmp_path: Path
) -> None:
    """The example needs three copies, and a user may have only one broker."""
    command = [sys.executable, str(EXAMPLES / "produce.py"), "--url", str(tmp_path / "data")]
    command += ["--replicas", "3"] if is_asked_for else []
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--replicas 1" in line
