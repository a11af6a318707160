"""``python -m benchmarks.publish``: take over what ``make bench`` has measured.

JSON and pictures go to ``docs/figures``, where the documentation finds them, and the table of the
README is written anew between its two marks.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import markdown
from benchmarks.machine import ROOT

BUILD = ROOT / "build"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish what is in a folder, by default ``build``; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    source = Path(given[0]) if given else BUILD
    if not (source / "bench.json").exists():
        print(f"there is no {source / 'bench.json'}; `make bench` makes it", file=sys.stderr)
        return 1
    found = markdown.load(source / "bench.json")
    del found["machine"]["folder"]  # it was a temporary one
    FIGURES.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1)
    (FIGURES / "bench.json").write_text(text + "\n", encoding="utf-8")
    for name in ("bench.png", "bench-growth.png"):
        if (source / name).exists():
            shutil.copyfile(source / name, FIGURES / name)
    readme = ROOT / "README.md"
    readme.write_text(with_figures(readme.read_text(encoding="utf-8"), found), encoding="utf-8")
    return 0


def with_figures(page: str, found: markdown.Found) -> str:
    """The page with the table of *found* between its marks."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{section(found)}\n{END}{after}"


def section(found: markdown.Found) -> str:
    """What stands between the marks."""
    return f"{markdown.headlines(found, one_a_part=True)}\n\n{markdown.about(found)}"


if __name__ == "__main__":
    sys.exit(main())
