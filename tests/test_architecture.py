"""The layers: which modules may import which, and what the pure packages may use.

Layers are cheap to keep and expensive to restore. If one of these rules stands in your way, the
code probably belongs elsewhere. Before you change a table below, discuss it, and record under
docs/decisions why the new shape is better. (Kafka guards its import rules with a warning of the
same kind.)

The simulator replays the pure packages, so their results must follow from their arguments. Sets
that `ast` cannot see here (for example in a variable) are found by the runs under two hash seeds.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]

# The layers, from top to bottom. A unit may import from the layers below its own, but not from its
# neighbours.
LAYERS = (
    ("cli", "spark", "contrib"),
    ("testing",),
    ("root",),
    ("monitoring",),
    ("broker", "controller", "client", "runtime"),
    ("kafka",),
    ("access", "replication", "transport", "coord", "store"),
    ("core", "hash", "serde"),
    ("errors", "descriptors"),
)
# These modules join machines and client into one object for the user, so they are above both.
MODULES = {
    "__init__": "root",
    "aio": "root",
    "metrics": "root",
    "mirror": "root",
    "nodes": "root",
    "otel": "root",
    "table": "root",
    "web": "root",
    "__main__": "cli",
}
DEPTH = {unit: depth for depth, units in enumerate(LAYERS) for unit in units}

PURE = ("errors", "core", "hash", "replication")
PURE_MODULES = set(
    """__future__ abc array attr attrs bisect cbor2 collections contextlib copy dataclasses difflib
    enum functools hashlib heapq itertools math operator re string struct types typing
    zlib""".split()
)
# From these modules with I/O, only the given names are allowed.
PURE_NAMES = {"io": {"BytesIO"}, "sys": {"byteorder", "intern", "maxsize"}}
# Extras that turn bytes into bytes: they read nothing but their arguments.
PURE_LAZY = {"backports", "compression", "cramjam", "crc32c", "lz4", "pyarrow"}
# Two runs, or two processes, get different answers from these.
IMPURE_CALLS = {"__import__", "breakpoint", "eval", "exec", "hash", "input", "open", "print"}

# Each of these packages has one owner: only the owner's users need the package, and replacing it is
# a local change.
OWNERS = {
    "cbor2": "core/cbor.py",
    "confluent_kafka": "mirror/kafka_client.py",
    "cramjam": "core/batch/kafka/codecs.py",
    "crc32c": "core/batch/kafka/batch.py",
    "deltalake": "table/",
    "fast_depends": "contrib/faststream/",
    "fastavro": "serde/",
    "faststream": "contrib/faststream/",
    "google": "serde/",
    "isal": "spark/log/block_files.py",
    "kazoo": "coord/",
    "msgspec": "serde/",
    "opentelemetry": "otel.py",
    "prometheus_client": "metrics.py",
    "pydantic": "serde/",
    "pyiceberg": "table/",
    "pyspark": "spark/",
    "sqlite3": "coord/",
    "taskiq": "contrib/taskiq/",
    "zmq": "transport/",
}
LAZY_UNLESS = {"pyarrow": ("spark/", "table/")}

NOT_AT_IMPORT = set(
    """asyncio confluent_kafka cramjam crc32c deltalake fast_depends fastavro faststream
    google.protobuf http.server
    kazoo msgspec opentelemetry prometheus_client pyarrow pydantic pyiceberg pyspark
    taskiq zmq""".split()
)


class Import(NamedTuple):
    """One imported module, with its absolute name."""

    module: str
    name: str | None  # the name in `from module import name`
    line: int
    at_top: bool  # whether the import runs when the importing module is loaded


class Imports(ast.NodeVisitor):
    """Collects the imports of one file."""

    def __init__(self, package: tuple[str, ...]) -> None:
        self.package = package
        self.found: list[Import] = []
        self._later = 0  # number of enclosing functions and `if TYPE_CHECKING`

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.append(Import(alias.name, None, node.lineno, not self._later))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) - node.level + 1] if node.level else ()
        module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
        for alias in node.names:
            self.found.append(Import(module, alias.name, node.lineno, not self._later))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_later(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_later(node)

    def visit_If(self, node: ast.If) -> None:
        if not ast.unparse(node.test).endswith("TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self._later += 1
        for child in node.body:
            self.visit(child)
        self._later -= 1
        for child in node.orelse:
            self.visit(child)

    def _visit_later(self, node: ast.AST) -> None:
        self._later += 1
        self.generic_visit(node)
        self._later -= 1


def complaints(package: Path) -> Iterator[str]:
    """Check every module of *package*, the directory that is imported as pymq."""
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        where = f"pymq/{inside.as_posix()}"
        top = inside.parts[0].removesuffix(".py")
        unit = MODULES.get(top, top)
        if unit not in DEPTH:
            yield f"{where} belongs to no layer; give it a place in LAYERS"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = Imports(("pymq", *inside.parts[:-1]))
        imports.visit(tree)
        for found in imports.found:
            at = f"({where}:{found.line})"
            if found.module.split(".")[0] == "pymq":
                yield from layer_complaints(unit, found, at)
            else:
                yield from foreign_complaints(unit, inside.as_posix(), found, at)
        if unit in PURE:
            for line, what in impurities(tree):
                yield f"{unit} is pure and may not {what} ({where}:{line})"


def layer_complaints(unit: str, found: Import, at: str) -> Iterator[str]:
    """Compare the layers of *unit* and of the part of pymq that it imports."""
    name = (*found.module.split("."), found.name)[1] or "__init__"
    # `from pymq import errors` means the module; `from pymq import open` means the package itself.
    target = MODULES.get(name, name if name in DEPTH or found.module != "pymq" else "root")
    if target not in DEPTH:
        yield f"{unit} imports {found.module}, which belongs to no layer {at}"
    elif DEPTH[target] < DEPTH[unit]:
        yield f"{unit} may not import {target}: layers look downwards only {at}"
    elif DEPTH[target] == DEPTH[unit] and target != unit:
        yield f"{unit} may not import {target}: neighbours do not see each other {at}"


def foreign_complaints(unit: str, inside: str, found: Import, at: str) -> Iterator[str]:
    """Return the complaint about an import from outside pymq."""
    top = found.module.split(".")[0]
    if top in OWNERS and not inside.startswith(OWNERS[top]):
        yield f"{top} may be imported in pymq/{OWNERS[top]} only {at}"
    elif top in LAZY_UNLESS and found.at_top and not inside.startswith(LAZY_UNLESS[top]):
        yield f"{top} is an extra and may be imported inside functions only {at}"
    elif unit not in PURE or top in PURE_MODULES:
        return
    elif top in PURE_LAZY:
        if found.at_top:
            yield f"{top} is an extra and may be imported inside functions only {at}"
    elif found.name is None and found.module in PURE_NAMES:
        return  # impurities() checks this use
    elif found.name is None or found.name not in PURE_NAMES.get(found.module, ()):
        what = f"{found.name} from {top}" if found.name and top in PURE_NAMES else top
        yield f"{unit} is pure and may not import {what} {at}"


def impurities(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find impure code that needs no import."""
    # A __hash__ needs hash(); the check of sets finds code that depends on its order.
    hashing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="hash")) if id(node) in hashing:
                pass
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield node.lineno, f"call {name}()"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name not in PURE_NAMES.get(
                module, {name}
            ):
                yield node.lineno, f"use {module}.{name}"
            case ast.For(iter=source) | ast.AsyncFor(iter=source) if is_set(source):
                yield node.lineno, "iterate over a set; sort it first"
            case ast.comprehension(iter=source) if is_set(source):
                yield source.lineno, "iterate over a set; sort it first"
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "iter" | "enumerate"), args=[source, *_]
            ):
                if is_set(source):
                    yield node.lineno, "put a set in order by chance; sort it"
            case _:
                pass


def is_set(node: ast.expr) -> bool:
    """Return whether *node* makes a set on the spot."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return is_set(node.left) or is_set(node.right)
        case _:
            return False


def packages(package: Path) -> dict[str, set[str]]:
    """Return the folders that each folder imports when it is loaded.

    An ``__init__`` stands for its folder.
    """
    homes: dict[str, str] = {}
    for path in package.rglob("*.py"):
        parts = ("pymq", *path.relative_to(package).with_suffix("").parts)
        homes[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ".".join(parts[:-1])
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        home = ("pymq", *path.relative_to(package).parts[:-1])
        imports = Imports(home)
        imports.visit(ast.parse(path.read_text(encoding="utf-8")))
        for each in imports.found:
            other = homes.get(f"{each.module}.{each.name}") or homes.get(each.module)
            if each.at_top and other is not None:
                found.setdefault(".".join(home), set()).add(other)
    return found


def circles(package: Path) -> Iterator[str]:
    """Find folders that import each other, directly or through other folders.

    A folder and a folder inside it count as one.
    """
    edges = {
        one: {b for b in others if not f"{b}.".startswith(f"{one}.") | one.startswith(f"{b}.")}
        for one, others in packages(package).items()
    }
    for start in sorted(edges):
        reached, todo = set[str](), [start]
        while todo:
            for other in edges.get(todo.pop(), set()) - reached:
                reached.add(other)
                todo.append(other)
        if start in reached:
            yield start


def test_the_package_keeps_its_layers() -> None:
    assert list(complaints(ROOT / "pymq")) == []


def test_no_folders_import_each_other() -> None:
    assert list(circles(ROOT / "pymq")) == []


def test_folders_that_import_each_other_are_found(tmp_path: Path) -> None:
    plant(tmp_path / "core/a/x.py", "from pymq.core.b import y")
    plant(tmp_path / "core/b/y.py", "from pymq.core.c.z import what")
    plant(tmp_path / "core/c/z.py", "import pymq.core.a.x\nimport pymq.core.b.y")
    plant(tmp_path / "core/top.py", "from pymq.core.a import x")
    assert list(circles(tmp_path)) == ["pymq.core.a", "pymq.core.b", "pymq.core.c"]


def test_no_folder_has_more_than_a_dozen_modules() -> None:
    """A module should be found by its path; in a larger folder it must be searched."""
    count = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "pymq").rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {folder: n for folder, n in count.items() if n > 12} == {}


@pytest.mark.parametrize(
    ("where", "source", "complaint"),
    [
        ("core/x.py", "\nimport time", "core is pure and may not import time (pymq/core/x.py:2)"),
        ("errors.py", "import logging", "errors is pure and may not import logging"),
        ("hash/x.py", "from random import Random", "hash is pure and may not import random"),
        ("replication/x.py", "import os.path", "replication is pure and may not import os"),
        ("core/x.py", "def f():\n import uuid", "core is pure and may not import uuid"),
        (
            "core/x.py",
            "if TYPE_CHECKING:\n import socket",
            "core is pure and may not import socket",
        ),
        ("core/x.py", "import asyncio", "core is pure and may not import asyncio"),
        ("core/x.py", "import threading", "core is pure and may not import threading"),
        ("core/x.py", "import secrets", "core is pure and may not import secrets"),
        ("core/x.py", "import pathlib", "core is pure and may not import pathlib"),
        ("core/x.py", "import importlib", "core is pure and may not import importlib"),
        ("core/x.py", "import sys\nx = sys.argv", "core is pure and may not use sys.argv"),
        ("core/x.py", "import io\nx = io.open('f')", "core is pure and may not use io.open"),
        ("core/x.py", "from sys import argv", "core is pure and may not import argv from sys"),
        ("core/x.py", "from io import open", "core is pure and may not import open from io"),
        ("core/x.py", "import numpy", "core is pure and may not import numpy"),
        (
            "core/x.py",
            "import lz4.frame",
            "lz4 is an extra and may be imported inside functions only",
        ),
        ("core/x.py", "open('f')", "core is pure and may not call open() (pymq/core/x.py:1)"),
        ("core/x.py", "x = hash('a')", "core is pure and may not call hash()"),
        ("core/x.py", "for x in {1, 2}: y", "core is pure and may not iterate over a set"),
        ("core/x.py", "for x in set(y): z", "core is pure and may not iterate over a set"),
        ("core/x.py", "for x in set(y) - z: a", "core is pure and may not iterate over a set"),
        (
            "core/x.py",
            "a = [x for x in {y for y in z}]",
            "core is pure and may not iterate over a set",
        ),
        (
            "core/x.py",
            "a = tuple(frozenset(y))",
            "core is pure and may not put a set in order by chance",
        ),
        ("core/x.py", "import cbor2", "cbor2 may be imported in pymq/core/cbor.py only"),
        ("store/x.py", "import cbor2", "cbor2 may be imported in pymq/core/cbor.py only"),
        ("broker/x.py", "import zmq.auth", "zmq may be imported in pymq/transport/ only"),
        (
            "cli/x.py",
            "from kazoo.client import KazooClient",
            "kazoo may be imported in pymq/coord/ only",
        ),
        ("client/x.py", "def f():\n import pyspark", "pyspark may be imported in pymq/spark/ only"),
        ("store/x.py", "import sqlite3", "sqlite3 may be imported in pymq/coord/ only"),
        (
            "client/x.py",
            "import pyarrow",
            "pyarrow is an extra and may be imported inside functions",
        ),
        (
            "core/x.py",
            "import pymq.runtime.loop",
            "core may not import runtime: layers look downwards only",
        ),
        (
            "errors.py",
            "from pymq.core import types",
            "errors may not import core: layers look downwards",
        ),
        (
            "store/x.py",
            "from pymq import client",
            "store may not import client: layers look downwards",
        ),
        (
            "broker/x.py",
            "from pymq import open",
            "broker may not import root: layers look downwards only",
        ),
        ("broker/x.py", "import pymq", "broker may not import root: layers look downwards only"),
        (
            "client/aio.py",
            "from pymq.nodes.embedded import x",
            "client may not import root: layers look",
        ),
        (
            "nodes/embedded.py",
            "from pymq.testing import World",
            "root may not import testing: layers look",
        ),
        ("testing/x.py", "from pymq.cli import main", "testing may not import cli: layers look"),
        ("core/x.py", "from ..hash import ring", "core may not import hash: neighbours do not see"),
        (
            "hash/assign/x.py",
            "from ...core import types",
            "hash may not import core: neighbours do not",
        ),
        ("coord/x.py", "from .. import store", "coord may not import store: neighbours do not see"),
        (
            "replication/__init__.py",
            "from ..store import x",
            "replication may not import store: neigh",
        ),
        (
            "transport/x.py",
            "import pymq.coord",
            "transport may not import coord: neighbours do not",
        ),
        (
            "broker/x.py",
            "from pymq.client.router import x",
            "broker may not import client: neighbours",
        ),
        ("spark/x.py", "from pymq.cli import x", "spark may not import cli: neighbours do not see"),
        ("utils.py", "", "pymq/utils.py belongs to no layer"),
        ("misc/x.py", "", "pymq/misc/x.py belongs to no layer"),
        (
            "broker/x.py",
            "from pymq.utils import x",
            "broker imports pymq.utils, which belongs to no layer",
        ),
    ],
)
def test_a_planted_violation_is_found(
    tmp_path: Path, where: str, source: str, complaint: str
) -> None:
    plant(tmp_path / where, source)
    (found,) = complaints(tmp_path)
    assert found.startswith(complaint)


def test_what_is_allowed_is_not_found(tmp_path: Path) -> None:
    plant(
        tmp_path / "__init__.py",
        "from pymq.broker import x\nfrom .client import y\nimport pymq.aio",
    )
    plant(
        tmp_path / "aio.py",
        "import asyncio\nfrom pymq.nodes.embedded import x\nfrom pymq import errors",
    )
    plant(tmp_path / "aio/x.py", "import pymq\nfrom pymq.aio.y import x\nfrom ..client import x")
    plant(tmp_path / "core/cbor.py", "import cbor2\nfrom io import BytesIO\nfrom .values import x")
    plant(tmp_path / "core/x.py", "def f():\n import lz4.frame, pyarrow\n for x in sorted({1}): x")
    plant(tmp_path / "core/y.py", "if TYPE_CHECKING:\n import pyarrow\nimport collections.abc")
    plant(tmp_path / "core/z.py", "import sys\nx = sys.byteorder\ndef __hash__(y): return hash(y)")
    plant(tmp_path / "coord/x.py", "import sqlite3, kazoo, os\nfrom ..core import types")
    plant(tmp_path / "broker/x.py", "for x in {1, 2}: print(x, hash(x))")
    plant(tmp_path / "transport/x.py", "import zmq\nfrom pymq.core.message import Append")
    plant(tmp_path / "testing/x.py", "import pymq\nfrom pymq.broker import x")
    plant(tmp_path / "spark/x.py", "import pyspark, pyarrow, pymq")
    plant(tmp_path / "__main__.py", "from pymq.cli import main")
    assert list(complaints(tmp_path)) == []


def test_importing_pymq_loads_no_extra(tmp_path: Path) -> None:
    """Importing and opening stay fast, and work with only the two required dependencies."""
    script = (
        "import sys; old = set(sys.modules); import pymq; pymq.open('memory:').close(); "
        "print(*set(sys.modules) - old)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,  # not the working tree, so that the installed package is imported
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    loaded = set(run.stdout.split())
    assert {"pymq", "pymq.broker.broker"} <= loaded
    assert loaded & NOT_AT_IMPORT == set()


# The following tests are about the repository as text.

MADE = set(
    """.git .venv .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis __pycache__
    _build build dist""".split()
)
# The pattern is written so that these lines do not match it.
PRIVATE = re.compile(
    r"(?<![\w.}*-])/(?:work|root|home|Users)/"
    r"|\b(?:pypi\.org|pythonhosted\.org|crates\.io|npmjs\.org|golang\.org|maven\.org|debian\.org)\b"
    r"|\bmaven\.apache\.org\b"
)
IGNORE = re.compile(
    r"#\s*(?:(?:ruff|flake8):\s*)?noqa\b|#\s*type:\s*ignore|#\s*mypy:\s*ignore-errors"
)
EXPLAINED = re.compile(
    r"# noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)* +(?:#|--?) *\w.{5,}"
    r"|# type: ignore\[[a-z-]+(?:, ?[a-z-]+)*\] +# *\w.{5,}"
)


def texts(top: Path) -> Iterator[tuple[str, str]]:
    """Yield path and content of every text file below *top* that is not generated."""
    for path in sorted(top.iterdir()):
        if path.name in MADE or path.is_symlink():
            continue
        if path.is_dir():
            yield from ((f"{path.name}/{name}", text) for name, text in texts(path))
            continue
        try:
            yield path.name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a recorded log, which nobody reads as text


def private_names(top: Path) -> Iterator[str]:
    """Find names that are meaningful on one machine only."""
    for name, text in texts(top):
        for number, line in enumerate(text.splitlines(), 1):
            if found := PRIVATE.search(line):
                yield f"{found[0]} is a name of one machine or registry ({name}:{number})"


def unexplained_ignores(top: Path) -> Iterator[str]:
    """Find comments that silence a check without its name and a reason."""
    for name, text in texts(top):
        if not name.endswith(".py"):
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.COMMENT:
                continue
            if len(IGNORE.findall(token.string)) > len(EXPLAINED.findall(token.string)):
                yield f"say which check is silenced, and why ({name}:{token.start[0]})"


def test_the_repository_names_no_machine() -> None:
    assert list(private_names(ROOT)) == []


def test_every_silenced_check_has_its_reason() -> None:
    assert list(unexplained_ignores(ROOT)) == []


@pytest.mark.parametrize(
    "line",
    [
        f"cd /{'home'}/me/pymq",
        f"x = '/{'work'}/data'",
        f"--index-url https://{'pypi'}.org/simple",
        f"https://files.{'pythonhosted'}.org/packages/x",
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, line: str) -> None:
    plant(tmp_path / "docs/x.md", f"\n{line}\n")
    (found,) = private_names(tmp_path)
    assert found.endswith("(docs/x.md:2)")


@pytest.mark.parametrize(
    ("comment", "is_explained"),
    [
        ("# noqa", False),
        ("# noqa: E501", False),
        ("# noqa: E501 # a table reads better in one line", True),
        ("# noqa: E501, B008 -- a table reads better in one line", True),
        ("# ruff: noqa: E501", False),
        ("# type: ignore", False),
        ("# type: ignore[arg-type]", False),
        ("# type: ignore  # it is wrong", False),
        ("# type: ignore[arg-type]  # attrs converts it", True),
        ("# type: ignore[arg-type]  # noqa: E501", False),
        ("# mypy: ignore-errors", False),
        ("# an ordinary comment", True),
    ],
)
def test_a_planted_ignore_is_found(tmp_path: Path, comment: str, is_explained: bool) -> None:
    plant(tmp_path / "x.py", f"x = 1  {comment}\ns = '# noqa'\n")
    found = [] if is_explained else ["say which check is silenced, and why (x.py:1)"]
    assert list(unexplained_ignores(tmp_path)) == found


def test_constraints_are_versions_and_nothing_else() -> None:
    """A host, path or link of the machine that made the file would break it on every other
    machine.
    """
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    odd = [pin for pin in pins if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)]
    assert odd == []


def plant(path: Path, source: str) -> None:
    """Write *source*, and make the directories that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
