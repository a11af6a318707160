"""The computer and the versions, without which no figure means anything."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.kafka import jars

PACKAGES = (
    "attrs",
    "cbor2",
    "celery",
    "confluent-kafka",
    "diskcache",
    "dramatiq",
    "hiredis",
    "litequeue",
    "matplotlib",
    "nats-py",
    "persist-queue",
    "pandas",
    "pika",
    "pyarrow",
    "pyspark",
    "pysyncobj",
    "pyzmq",
    "redis",
    "rich",
    "rq",
    "rstream",
    "taskiq",
    "taskiq-redis",
)
ROOT = Path(__file__).resolve().parent.parent


def describe(folder: Path) -> dict[str, object]:
    """Describe the machine as far as it may affect results; *folder* is the folder for the data."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_kib() / (1 << 20), 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": file_system(folder),
        "folder": str(folder),
        "load": load(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "pymq": _commit(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))}
        | {each.name: each.version for each in jars.ALL.values() if not jars.missing(each.name)},
    }


def load() -> float:
    """Return the load: how many processes wanted to run in the last minute."""
    return round(os.getloadavg()[0], 2)


def file_system(folder: Path) -> str:
    """Return the type of the file system of *folder*."""
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, point, kind, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_kib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 10


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--tags"]
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return _version("pymq-log") or "unknown"
