"""A garbage collection takes time only for new objects, not for all objects."""

from __future__ import annotations

import subprocess
import sys

# The collector belongs to the whole process, so each test runs in a separate process.
BEGIN = """
import gc, weakref
from pymq.runtime.garbage import Freezer

class Node:
    pass

looked = []

def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        looked.append(len(gc.get_objects()))

now = [0.0]
freezer = Freezer(lambda: now[0], least={least})
gc.callbacks += [note, {freezer}]
kept = []

def grow(count):
    for number in range(count):
        kept.append({{"number": [number]}})
"""


def run(script: str, *, freezer: str = "freezer", least: int = 1 << 30) -> int:
    """Run a process and return its last output."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(freezer=freezer, least=least) + script],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


GROW = """
grow(300_000)
print(max(looked))
"""


def test_a_collection_goes_through_what_is_new() -> None:
    """A collection scans only new objects, instead of all objects each time their number has grown
    by a quarter.
    """
    assert run(GROW, freezer="note") > 400_000
    assert run(GROW) < 150_000


def test_what_became_garbage_after_it_was_frozen_is_freed_when_there_is_twice_as_much() -> None:
    freed = """
ring = Node()
ring.self = ring
seen = weakref.ref(ring)
grow(100_000)
del ring
grow(50_000)
assert seen() is not None
now[0] = 1_000.0
grow(400_000)
assert seen() is None
print(freezer.thawed)
"""
    assert run(freed, least=150_000) == 1


def test_what_forms_no_cycle_is_freed_at_once() -> None:
    freed = """
leaf = Node()
seen = weakref.ref(leaf)
grow(100_000)
del leaf
print(seen() is None)
""".replace("seen() is None", "int(seen() is None)")
    assert run(freed) == 1
