"""Sizes at which a file, a class or a function stops being read as a whole.

If one of these rules stands in your way, look for a part of the state that deserves its own class.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1] / "pymq"

METHODS_MAX = 25
FUNCTION_LINES_MAX = 60  # lines of the body, without the docstring
FILE_LINES_MAX = 500
# Neither limit of lines counts comments: nobody should have to shorten a comment.

# Users call the methods of one object, which are the contract (docs/decisions/0159); the simulated
# disk has the 21 operations of a file system besides its faults.
FACADES = {"AsyncClient", "AsyncConsumer", "Cluster", "Consumer", "SimDisk"}
TABLES = {
    "errors.py",  # one class for each cause of an error
    "kafka/wire/messages.py",  # generated: one class for each message of Kafka's protocol
}
# a single loop, because calls would make each record slower
WRITTEN_OUT = {"core/batch/kafka/records.py:_decode"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield path, node


def without_comments(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.lstrip().startswith("#")]


def lines_of(function: Function, text: list[str]) -> int:
    """The lines of a function's body, without its docstring and its comments."""
    first, *rest = function.body
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and rest:
        first = rest[0]
    return len(without_comments(text[first.lineno - 1 : function.end_lineno]))


def test_no_class_has_too_many_methods() -> None:
    large = {
        node.name: count
        for _, node in classes()
        if (count := sum(isinstance(item, Function) for item in node.body)) > METHODS_MAX
    }
    assert set(large) <= FACADES, large
    assert set(large) == FACADES, "a class that has become small needs no exception"


def test_no_function_is_too_long() -> None:
    long = {
        f"{path}:{node.name}": count
        for path, text in modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
        and (count := lines_of(node, text.splitlines())) > FUNCTION_LINES_MAX
    }
    assert set(long) <= WRITTEN_OUT, long


def test_no_file_is_too_long() -> None:
    long = {
        str(path): count
        for path, text in modules()
        if (count := len(without_comments(text.splitlines()))) > FILE_LINES_MAX
    }
    assert set(long) <= TABLES, long


def test_each_public_class_has_a_name_of_its_own() -> None:
    """A word with two meanings should be two words.

    A framework's package has the names that users of the framework expect, such as ``PymqBroker``.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    for path, node in classes():
        if not node.name.startswith("_") and path.parts[0] != "contrib":
            homes[node.name].append(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
