"""``python -m benchmarks``: measure all parts or some of them, and report which goals are met."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.model import Part
from benchmarks.parts import all_parts, chosen
from benchmarks.runner import PartResult, run_part

OUT = machine.ROOT / "build"
RUNS = {"tiny": 1, "default": 2, "long": 5}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _options(arguments)
    if options.list:
        for part in all_parts():
            print(f"{part.name:20} {part.title}")
        return 0
    try:
        parts = chosen(options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    runs = options.runs or RUNS[options.scale]
    with tempfile.TemporaryDirectory(prefix="pymq-bench-", dir=options.folder) as name:
        about = machine.describe(Path(name))
        start = time.perf_counter()
        results, is_whole = _run(parts, Path(name), options.scale, runs)
        seconds = round(time.perf_counter() - start)
    _tell("")
    if not is_whole:
        print("interrupted; the results so far:")
    about |= {
        "scale": options.scale,
        "runs": runs,
        "seconds": seconds,
        "load_after": machine.load(),
    }
    report.show(results, about)
    _write(results, about, options)
    if not is_whole:
        return 130
    return 1 if any(side.error for result in results for side in result.sides.values()) else 0


def _run(
    parts: Sequence[Part], folder: Path, scale: str, runs: int
) -> tuple[list[PartResult], bool]:
    """Run the parts, which take an hour.

    An interrupt keeps the results of the finished parts.
    """
    results = []
    try:
        for part in parts:
            done = run_part(part, folder, scale, runs, _tell)
            results.append(done)
    except KeyboardInterrupt:
        return results, False
    return results, True


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    _, _, about = (__doc__ or "").partition(": ")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=about)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts to run, as E1")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    scale = parser.add_mutually_exclusive_group()
    for name, help_ in (
        ("long", "four times the records, five runs, reopening 10 GiB; takes hours"),
        ("tiny", "only check that everything works; the figures mean nothing"),
    ):
        scale.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=help_)
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each side")
    for option, name, help_ in (
        ("json", "bench.json", "all figures, for `make figures` and other programs"),
        ("png", "bench.png", "a picture of the goals"),
        ("curves", "bench-growth.png", "the pictures of growth (parts G1 to G5)"),
    ):
        where = f"where to write {help_}; by default build/{name}"
        parser.add_argument(
            f"--{option}", type=Path, default=OUT / name, metavar="FILE", help=where
        )
    parser.add_argument(
        "--folder",
        type=Path,
        default=_disk(),
        help="where the data goes; by default %(default)s, which is a disk more often than /tmp",
    )
    parser.set_defaults(scale="default")
    return parser.parse_args(arguments)


def _disk() -> Path:
    place = Path("/var/tmp")
    return place if place.is_dir() else Path(tempfile.gettempdir())


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _write(
    results: Sequence[PartResult], about: dict[str, Any], options: argparse.Namespace
) -> None:
    for file in (options.json, options.png, options.curves):
        file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.as_json(results, about), indent=1)
    options.json.write_text(text + "\n", encoding="utf-8")
    written = [options.json]
    try:
        from benchmarks import pictures
    except ModuleNotFoundError as error:
        print(f"no plot: {error.name} is not installed", file=sys.stderr)
    else:
        written += pictures.draw(results, about, options.png, options.curves)
    print("written:", *written)


if __name__ == "__main__":
    sys.exit(main())
