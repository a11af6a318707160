"""The fixture of the pytest plugin, as tests of other projects use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
def test_good(pymq_cluster):
    mq = pymq_cluster(brokers=1).client()
    mq.create_topic("t")
    assert mq.topics() == ["t"]

def test_bad(pymq_cluster):
    cluster = pymq_cluster(brokers=1)
    from pymq.testing import Violation
    try:
        cluster.violate(Violation("some-rule", "was broken"))
    except Violation:
        pass
"""


def test_the_fixture(tmp_path: Path) -> None:
    """Clusters are checked when a test ends, and the seed is printed."""
    (tmp_path / "test_it.py").write_text(TESTS)
    command = "-m pytest -q -p pymq.testing.pytest_plugin -p no:cacheprovider --pymq-seed 5"
    done = subprocess.run(
        [sys.executable, *command.split(), "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "some-rule: was broken" in done.stdout
    assert "seed 5" in done.stdout
