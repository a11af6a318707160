"""E9: the time until the first record is durable, in a fresh process each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.model import MS, At, Goal, Job, Measures, Part, Side

PYMQ = """
import sys, time
t0 = time.perf_counter()
import pymq
t1 = time.perf_counter()
mq = pymq.open(sys.argv[1])
t2 = time.perf_counter()
mq.create_topic("records", fsync="always")
t3 = time.perf_counter()
producer = mq.producer()
t4 = time.perf_counter()
producer.send("records", b"x" * 100).result()
t5 = time.perf_counter()
"""

SQLITE = """
import sys, time
t0 = time.perf_counter()
import sqlite3
t1 = time.perf_counter()
db = sqlite3.connect(sys.argv[1] + ".sqlite", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = FULL")
t2 = time.perf_counter()
db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, value BLOB)")
t3 = t4 = time.perf_counter()
db.execute("INSERT INTO records (value) VALUES (?)", (b"x" * 100,))
t5 = time.perf_counter()
"""

END = """
print([1000 * (b - a) for a, b in ((t0, t1), (t1, t2), (t2, t3), (t4, t5), (t0, t5))])
"""
NAMES = ("import", "open", "create", "first record", "all")


def _fresh(job: Job, code: str) -> Measures:
    command = [sys.executable, "-c", code + END]
    # Installed packages are compiled, so this measurement must not include compiling, whatever the
    # environment says. The first run compiles the modules, and the second run is measured.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(job.folder / "bytecode")
    for name in ("warm", "folder"):
        found = subprocess.run(
            [*command, str(job.folder / name)], check=True, capture_output=True, text=True, env=env
        )
    return dict(zip(NAMES, json.loads(found.stdout), strict=True))


def _pymq(job: Job) -> Measures:
    return _fresh(job, PYMQ)


def _sqlite(job: Job) -> Measures:
    return _fresh(job, SQLITE)


PARTS = (
    Part(
        "E9-start",
        "import, open a new folder, make a topic, first durable record",
        (
            Side("sqlite3", "WAL, synchronous FULL", _sqlite),
            Side("pymq", 'fsync="always"; what open loads counts as open', _pymq),
        ),
        (
            Goal(At("pymq", "import"), at_most=30),
            Goal(At("pymq", "open"), at_most=150),  # the first one loads the broker
            Goal(At("pymq", "first record"), at_most=5),
            Goal(At("pymq", "all"), (At("sqlite3", "all"),)),
        ),
        dict.fromkeys(NAMES, MS),
    ),
)
