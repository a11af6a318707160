"""``python -m benchmarks.publish``: publish the results of ``make bench``.

JSON and pictures go to ``docs/figures`` for the documentation, and the README's table is replaced
between its two marks. A run of only some parts (``--only``) replaces just these parts, with their
date and machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import markdown, pictures, report
from benchmarks.machine import ROOT
from benchmarks.parts import all_parts

BUILD = ROOT / "build"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish the results in a folder, by default ``build``; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    source = Path(given[0]) if given else BUILD
    if not (source / "bench.json").exists():
        print(f"there is no {source / 'bench.json'}; `make bench` makes it", file=sys.stderr)
        return 1
    found = markdown.load(source / "bench.json")
    del found["machine"]["folder"]  # the folder was a temporary one
    FIGURES.mkdir(exist_ok=True)
    published = FIGURES / "bench.json"
    if published.exists():
        found = merged(markdown.load(published), found)
    text = json.dumps(found, indent=1)
    published.write_text(text + "\n", encoding="utf-8")
    results = report.from_json(found, all_parts())
    pictures.draw(results, found["machine"], FIGURES / "bench.png", FIGURES / "bench-growth.png")
    readme = ROOT / "README.md"
    readme.write_text(with_figures(readme.read_text(encoding="utf-8"), found), encoding="utf-8")
    return 0


def names(found: markdown.Found) -> set[str]:
    """Return the names of the measured parts."""
    return {part["name"] for part in found["parts"]}


def merged(before: markdown.Found, found: markdown.Found) -> markdown.Found:
    """Return the results published *before*; results in *found* replace older ones."""
    if names(before) <= names(found):
        return found
    again = {
        part["name"]: part | {"measured": {key: found["machine"][key] for key in markdown.AGAIN}}
        for part in found["parts"]
    }
    parts = [again.pop(part["name"], part) for part in before["parts"]]
    return before | {"parts": [*parts, *again.values()]}


def with_figures(page: str, found: markdown.Found) -> str:
    """Return the page, with the table of *found* between the two marker comments."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{section(found)}\n{END}{after}"


def section(found: markdown.Found) -> str:
    """Return the text between the two marker comments."""
    return f"{markdown.front(found)}\n\n{markdown.about(found)}"


if __name__ == "__main__":
    sys.exit(main())
