"""A million records, written by one process and read by another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.helpers import run

MILLION = 1_000_000


@pytest.mark.slow
def test_a_million_records_come_back(tmp_path: Path) -> None:
    """Each of a million records is delivered once, in order, with its key and headers."""
    run("million_write", tmp_path, MILLION)
    assert run("million_read", tmp_path, MILLION) == f"fine {MILLION} True 997\n"
