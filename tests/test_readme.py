"""README and documentation are correct: examples run, and quoted facts equal those in the code."""

from __future__ import annotations

import ast
import re
import signal
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import attrs
import pytest
from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser

import pymq
from pymq import errors
from pymq.coord import paths, sqlite
from pymq.core.batch import columns, compression, header, offset_index
from pymq.core.metadata import nodes
from pymq.core.metadata.topic_config import FSYNC, TopicConfig
from pymq.store.block import block_file, compaction
from pymq.store.file import folder

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# The tutorial's programs depend on each other: tests/test_tutorial.py runs them in order.
ELSEWHERE = {"_build", "tutorial"}
PAGES = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if not ELSEWHERE & {*p.parts})]


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: Path) -> int:
    return len(list(Document.parse(str(page), PythonCodeBlockParser()).examples()))


EXAMPLES = [(page, number) for page in PAGES for number in range(blocks(page))]


def test_there_are_blocks() -> None:
    """The pages have code blocks; without them the other test would check nothing."""
    assert blocks(ROOT / "README.md") >= 3
    assert blocks(DOCS / "guide.md") >= 7


def test_the_first_example_comes_first() -> None:
    """Within twenty lines of the title a reader has seen pymq work."""
    lines = text("README.md").splitlines()
    assert lines[0] == "# pymq"
    assert lines.index("```", lines.index("```python")) <= 20


@pytest.mark.parametrize(
    ("page", "number"), EXAMPLES, ids=[f"{page.name}-{number}" for page, number in EXAMPLES]
)
def test_a_block_runs(
    page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block runs in an empty folder, from its first line to its last, and without the blocks
    before it.
    """
    monkeypatch.chdir(tmp_path)
    document = Document.parse(str(page), PythonCodeBlockParser())
    document.namespace["__name__"] = "__main__"  # as in a program that is started directly
    list(document.examples())[number].evaluate()


# --- what is quoted -----------------------------------------------------------------------------


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below *heading*, without its head."""
    below = text(page).split(f"\n{heading}\n", 1)[1].splitlines()
    first = next(at for at, line in enumerate(below) if line.startswith("|"))
    found = []
    for line in below[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    assert found
    return found


def test_errors_are_what_the_table_says() -> None:
    for name, code, retriable, base in rows("docs/guide.md", "## Errors"):
        cls = getattr(errors, name.strip("`"))
        assert f"`{cls.code}`" == code
        assert {True: "yes", False: "no"}[cls.retriable] == retriable
        own = [f"`{b.__name__}`" for b in cls.__mro__ if b.__module__ == "builtins"]
        assert base in own if base else own[0] == "`Exception`"


def test_every_topic_option_is_told() -> None:
    told = {name for row in rows("docs/guide.md", "## Topic options") for name in words(row[0])}
    assert told == {field.name for field in attrs.fields(TopicConfig)}


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_header_is_as_the_format_says() -> None:
    """Place, size and name of each field of the header are those in the page, and so is the format
    string.
    """
    page = text("docs/format.md")
    assert f'"{header.HEADER.format}"' in page
    at = 0
    names = []
    codes = re.findall(r"\d*[a-zA-Z]", header.HEADER.format)
    for (place, size, kind, name, *_), code in zip(
        rows("docs/format.md", "## Record batch"), codes, strict=True
    ):
        assert int(place) == at
        assert int(size) == struct.calcsize("<" + code)
        assert kind == KINDS[code]
        at += int(size)
        names.append(name.replace(" ", "_"))
    assert at == header.HEADER_SIZE
    assert f"{at} bytes" in page
    fields = [name.rstrip("2") for name in header.Header._fields]
    assert names == fields
    assert (header.HEADER_CRC, header.SIGNED) == (24, 32)


KINDS = {"4s": "bytes", "q": "i64", "I": "u32", "H": "u16", "B": "u8"}


def test_numbers_of_the_format() -> None:
    page = text("docs/format.md")
    for name, value in {
        "magic of a batch": header.MAGIC,
        "magic of a block file": block_file.BLOCK_MAGIC,
        "magic of a checkpoint and an index": block_file.KNOWN_MAGIC,
        "magic of the positions": offset_index._MAGIC,
    }.items():
        assert f"| {name} | `{value.decode()}` |" in page
    assert f'"{block_file._FRAME.format}"' in page
    assert f'"{offset_index._HEAD.format}"' in page
    assert folder.FORMAT.decode() in page
    assert {int(bit): name for bit, name, *_ in rows("docs/format.md", "### Body")} == {
        columns.VALUES: "values",
        columns.KEYS: "keys",
        columns.TIMESTAMPS: "timestamps",
        columns.HEADERS: "headers",
        columns.OFFSETS: "offsets",
    }
    assert (compression.NONE, compression.LZ4, compression.ZSTD) == (0, 1, 2)
    assert (header.CONTROL, header.COMPACTED) == (8, 16)
    assert f"{header.BATCH_BYTES_MAX >> 20} MiB" in page
    assert f'("{compaction.TOMBSTONE[0]}", b"")' in page
    for statement in sqlite._SCHEMA[:2]:
        assert re.sub(r"\s+", " ", statement) in re.sub(r"\s+", " ", page)


def test_every_node_and_its_fields_are_told() -> None:
    """The page lists all nodes and their fields in the order in which they are written."""
    told = {row[1].strip("`"): words(row[2]) for row in rows("docs/format.md", "### Nodes")}
    for name, fields in told.items():
        assert fields == [field.name for field in attrs.fields(getattr(nodes, name))], name
    written = {cls.__name__ for cls in nodes.Node.__args__} - {"BrokerState"}
    assert told.keys() == written


def test_every_path_is_told() -> None:
    told = [row[0].strip("`") for row in rows("docs/format.md", "### Nodes")]
    built = [
        paths.broker("<broker>".strip("<>")),
        paths.controller(),
        paths.controller_epoch(),
        paths.topic("topic"),
        paths.partition("topic", "partition"),
        paths.block("topic", "partition", 7),
        paths.replica("topic", "partition", 7, "broker"),
        paths.subscription("topic", "name"),
        paths.producer("name"),
        paths.secret(),
        paths.deleted_topic("topic_id"),
    ]
    plain = [path.replace("<number>", "7").replace("<", "").replace(">", "") for path in told]
    assert set(plain) == set(built)


def test_a_reader_made_from_the_format_alone(tmp_path: Path) -> None:
    """The example of docs/format.md reads a folder written by pymq."""
    (source,) = re.findall(r"```python\n(.*?)```", text("docs/format.md"), re.DOTALL)
    assert "import pymq" not in source.split("# --- the reader")[1]
    with pymq.open(tmp_path / "x") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"one", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
            producer.send("t", b"three", timestamp_ms=6)
    namespace: dict[str, object] = {}
    exec(compile(source.split("# --- the reader")[1], "format.md", "exec"), namespace)
    read = namespace["read"]
    assert callable(read)
    (file,) = (tmp_path / "x" / "blocks").rglob("*.block")
    assert list(read(file.read_bytes())) == [(0, 5, b"k", b"one"), (1, 6, None, b"three")]


# --- promises -----------------------------------------------------------------------------------

WRITER = """
import sys
import pymq
with pymq.open(sys.argv[1]) as mq:
    mq.create_topic("t", fsync=sys.argv[2], exist_ok=True)
    with mq.producer(linger_ms=0) as producer:
        while True:
            print(producer.send("t", b"x" * 100).result().offset, flush=True)
"""


@pytest.mark.parametrize("fsync", ["always", "interval", "os"])
def test_kill_9_loses_nothing_whatever_fsync(tmp_path: Path, fsync: str) -> None:
    """After kill -9 all acknowledged records are there, as the column "kill -9" of the guide's
    table says.
    """
    for lines in (1, 50, 300):
        command = [sys.executable, "-c", WRITER, str(tmp_path), fsync]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout
            told = [writer.stdout.readline() for _ in range(lines)]
            writer.send_signal(signal.SIGKILL)
            told += writer.stdout.readlines()
        answered = int([line for line in told if line.endswith("\n")][-1])
        with pymq.open(tmp_path) as mq, mq.consumer("t", mode="psb") as consumer:
            assert [record.offset for record in consumer.until_end()][: answered + 1] == list(
                range(answered + 1)
            )


def test_what_is_safe_is_told_for_every_policy() -> None:
    told = [words(row[0])[0] for row in rows("docs/guide.md", "## What is safe when")]
    assert told == [f'fsync="{policy}"' for policy in FSYNC]
    assert TopicConfig().fsync_interval_ms == 1_000
    assert TopicConfig().sync_policy(pymq.AckMode.LEADER) == "interval"
    assert TopicConfig().sync_policy(pymq.AckMode.RAFT) == "always"


def test_every_test_that_a_promise_names_is_there() -> None:
    """Every test named in a promise, as ``folder/test_file.py::test_name`` below tests/, exists."""
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text("docs/guarantees.md"))
    assert len(named) >= 40
    for file, name in named:
        assert name in names_of(file), f"{file}::{name}"


@cache
def names_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_links_lead_somewhere() -> None:
    """The links of the README are valid; sphinx does not check them."""
    for target in re.findall(r"\]\(([^)#:]+)\)", text("README.md")):
        assert (ROOT / target).exists(), target


def test_pages_name_files_that_are_there() -> None:
    """A path in backticks below pymq/, tests/ or docs/ exists."""
    for page in PAGES:
        found = re.findall(r"`((?:pymq|tests|docs|examples)/[\w/.]+)`", page.read_text())
        missing = [path for path in found if not (ROOT / path).exists()]
        assert not missing, (page.name, missing)
