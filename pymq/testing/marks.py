"""Lists all marks, to find marks that no run has passed; see :mod:`pymq.core.observe.coverage`."""

from __future__ import annotations

import re
from pathlib import Path

import pymq

# The name of a mark is a literal; a call with two names and a condition has two marks.
_CALL = re.compile(r"\bmark\(([^()]*)\)")
_NAME = re.compile(r'"([a-z_]+(?:\.[a-z_]+)+)"')


def all_marks() -> dict[str, str]:
    """Return the names of all marks in pymq, each with its file."""
    root = Path(pymq.__file__).parent
    found: dict[str, str] = {}
    for file in sorted(root.rglob("*.py")):
        for call in _CALL.findall(file.read_text(encoding="utf-8")):
            for name in _NAME.findall(call):
                found[name] = file.relative_to(root).as_posix()
    return found
