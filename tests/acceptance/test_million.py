"""A million records: in by one process, out by another."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.helpers import run

MILLION = 1_000_000


def test_a_million_records_come_back(tmp_path: Path) -> None:
    """Each once, in the order of its partition, with its key and headers."""
    run("million_write", tmp_path, MILLION)
    assert run("million_read", tmp_path, MILLION) == f"fine {MILLION} True 997\n"
