"""The programs of the how-to pages that need a file of their own, or another package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOWTO = ROOT / "docs/howto"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", (HOWTO / page).read_text(encoding="utf-8"))


def run_tests(folder: Path) -> str:
    """Run the tests in a folder, in which nobody knows this repository's settings."""
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
