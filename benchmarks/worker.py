"""One run of one side, in a separate process; started by :mod:`benchmarks.runner`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from benchmarks.model import Job
from benchmarks.parts import find


def main() -> None:
    """Read the job, run it, and write its measures into the file that the job names."""
    # On SIGTERM the worker leaves its ``with`` blocks, which end the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))
    order = json.loads(sys.argv[1])
    side = find(order["part"]).side(order["side"])
    job = Job(Path(order["folder"]), order["scale"], order["round"])
    if order["phase"] == "prepare":
        assert side.prepare is not None
        side.prepare(job)
        return
    measures = side.run(job)
    Path(order["result"]).write_text(json.dumps(measures), encoding="ascii")


if __name__ == "__main__":
    main()
