"""The results are the same in every process: two hash seeds give one digest, and there is no impure
import.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pymq.hash

FOLDER = Path(pymq.hash.__file__).parent

PROGRAM = """
import hashlib
from pymq.hash.assign import assignor, names
from pymq.hash.partitioner import key_partitions
from pymq.hash.place import place, place_all
from pymq.hash.rebalance import rebalance
from pymq.hash.ring import Ring

brokers = {f"broker-{i}" for i in range(7)}  # a set: its order follows the hash seed
racks = {name: "r" + str(int(name[-1]) % 3) for name in brokers}
keys = {f"topic-{i % 5}/{i}" for i in range(50)}
out = [sorted((key, Ring(brokers).pick(key, 3, racks=racks)) for key in keys)]
placed = place_all(keys, brokers, 3, racks)
out += [placed, rebalance(placed, brokers - {"broker-3"} | {"broker-9"}, racks, budget=20)]
out += [rebalance({key: placed[key] for key in keys}, brokers - {"broker-1"})]
partitions = {(f"t{i % 3}", i) for i in range(40)}
for name in names():
    for count in (3, 7, 60):
        members = {f"member-{i}" for i in range(count)}
        limits = {member: {"t0", "t1"} for member in members if member.endswith("3")}
        first = assignor(name)(members, partitions, {})
        out += [first, assignor(name)(members - {"member-1"}, partitions, first)]
        out += [assignor(name)(members | {"new"}, partitions, first, subscriptions=limits)]
out += [key_partitions([b"%d" % i for i in range(100)], 12)]
print(hashlib.sha256(repr(out).encode()).hexdigest())
"""


def digest(seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(FOLDER.parent.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_hash_seeds_do_not_matter() -> None:
    first = digest("0")
    assert len(first) == 64
    assert digest("1") == first
    assert digest("4242") == first


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.stem)
def test_the_package_is_pure(file: Path) -> None:
    """The package imports no clock, no random numbers, no files and no other package of pymq."""
    allowed = {
        "__future__", "bisect", "collections", "collections.abc", "dataclasses", "functools",
        "hashlib", "heapq", "itertools", "typing", "zlib", "pymq.errors",
    }  # fmt: skip
    for line in file.read_text().splitlines():
        if line.startswith(("import ", "from ")):
            module = line.split()[1]
            assert module in allowed or module.startswith("pymq.hash"), line
