"""A cluster's nodes as processes, started from the examples as a user would."""

from __future__ import annotations

from pathlib import Path

from tests.simulator.processes import ProcessCluster

ROOT = Path(__file__).resolve().parents[2]


def processes(folder: Path, brokers: int = 3, keys: Path | None = None) -> ProcessCluster:
    """Start a cluster of one zkserver on SQLite and some brokers; *keys* is a folder of keys."""
    return ProcessCluster(
        folder,
        ROOT / "examples",
        brokers=brokers,
        zkservers=1,
        zookeepers=0,
        arguments=() if keys is None else ("--curve-dir", str(keys)),
    )
