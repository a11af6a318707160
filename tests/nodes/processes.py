"""A cluster's nodes as processes, started from the examples as a user would."""

from __future__ import annotations

from pathlib import Path

from tests.simulator.processes import ProcessCluster

ROOT = Path(__file__).resolve().parents[2]


def processes(
    folder: Path,
    brokers: int = 3,
    keys: Path | None = None,
    *,
    kafka: bool = False,
    zkservers: int = 1,
) -> ProcessCluster:
    """Start a cluster of one zkserver on SQLite and some brokers; *keys* is a folder of keys.

    Several *zkservers* use ZooKeeper.
    """
    return ProcessCluster(
        folder,
        ROOT / "examples",
        brokers=brokers,
        zkservers=zkservers,
        zookeepers=int(zkservers > 1),
        arguments=() if keys is None else ("--curve-dir", str(keys)),
        kafka=kafka,
    )
