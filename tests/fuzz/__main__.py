"""Feeds damaged bytes to all decoders of bytes from others.

::

    python -m tests.fuzz --inputs 5000000               shared out among all targets
    python -m tests.fuzz --only packets --from 17 --inputs 1    one of them again

Each input is made from its number, so a number is enough to reproduce a failure. A reader fails if
it does not return within a minute (with a traceback), or if it makes the process grow.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import sys
import time
import traceback
from random import Random

from tests.fuzz.disks import Blocks, Notes
from tests.fuzz.entry import Entry
from tests.fuzz.nodes import Nodes
from tests.fuzz.targets import Batches, Packets, Runs, Streams, Target

# the class of each target, with its share of the inputs in percent
TARGETS: dict[str, tuple[type[Target], int]] = {
    "packets": (Packets, 38),
    "streams": (Streams, 5),
    "batches": (Batches, 20),
    "runs": (Runs, 10),
    "blocks": (Blocks, 5),
    "notes": (Notes, 10),
    "nodes": (Nodes, 10),
    "entry": (Entry, 2),
}
HANG_S = 60.0
GROWTH_MAX = 32 << 20
WARM = 300  # inputs at the start that fill caches, whose memory does not count as growth
WATCH_S = 5.0  # interval at which the alarm is set again


def main() -> int:
    """Run the command line; returns 1 if any input did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many, in all")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first")
    parser.add_argument("--only", choices=TARGETS, help="one target alone")
    options = parser.parse_args()
    total, harmed = 0, 0
    print(f"{'target':10}{'inputs':>10}{'taken':>10}{'a second':>10}{'slowest ms':>12}{'MiB':>6}")
    for name, (make, share) in TARGETS.items():
        if options.only in (None, name):
            inputs = options.inputs if options.only else -(-options.inputs * share // 100)
            done, bad = attempt(name, make(), options.first, inputs)
            total, harmed = total + done, harmed + bad
    print(f"{total} malformed inputs, {harmed} did harm")
    return 1 if harmed else 0


def attempt(name: str, target: Target, first: int, inputs: int) -> tuple[int, int]:
    """Run so many inputs on *target*; returns their number, and how many did harm."""
    each = getattr(target, "inputs", 1)
    count = max(-(-inputs // each), 1)
    taken = harmed = 0
    slowest, began, memory, watched = 0.0, time.perf_counter(), 0, 0.0
    for number in range(first, first + count):
        if number - first == WARM:
            memory = resident()
        start = time.perf_counter()
        if start > watched + WATCH_S:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            watched = start
        try:
            taken += target.attempt(Random(number))
        except Exception:
            harmed += 1
            print(f"--only {name} --from {number} --inputs 1", file=sys.stderr)
            traceback.print_exc()
        slowest = max(slowest, time.perf_counter() - start)
    faulthandler.cancel_dump_traceback_later()
    took = time.perf_counter() - began
    growth = resident() - memory if memory else 0
    if growth > GROWTH_MAX:
        harmed += 1
        print(f"{name}: the process has grown by {growth >> 20} MiB", file=sys.stderr)
    rate = count * each / took
    print(
        f"{name:10}{count * each:>10}{taken * each:>10}{rate:>10.0f}{1000 * slowest:>12.1f}"
        f"{growth >> 20:>6}",
        flush=True,
    )
    return count * each, harmed


def resident() -> int:
    """Return the peak memory of the process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
