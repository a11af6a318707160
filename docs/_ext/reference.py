"""Parts of the reference besides docstrings: tables of errors and fields, and links to public
names.

The reference is made from the code, so it cannot be out of date.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import attrs
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

import pymq
from pymq import errors

PUBLIC = ("pymq", "pymq.aio", "pymq.metrics", "pymq.web", "pymq.testing", "pymq.errors")
# Classes that users construct themselves; the reference hides the constructors of all others.
CONSTRUCTED = set(
    """Broker ZkServer Cluster Faults
    PymqBroker PymqResultBackend PymqRetryMiddleware PymqScheduleSource""".split()
)
BUILTINS = set(dir(builtins))


def rows_as_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in reStructuredText; a cell may have several lines."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        for index, cell in enumerate(row):
            first, *more = cell.splitlines() or [""]
            lines.append(f"   {'*' if index == 0 else ' '} - {first}".rstrip())
            lines += [f"       {line}".rstrip() for line in more]
    return "\n".join(lines) + "\n"


# --- errors -------------------------------------------------------------------------------------


class ErrorTable(SphinxDirective):
    """The directive ``.. pymq-errors::``: a table of all errors with their codes; pages can link to
    each error.
    """

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        head = ("class", "code", "retriable", "also a", "what it says")
        return self.parse_text_to_nodes(rows_as_table(head, map(_error_row, error_classes())))


def error_classes() -> list[type[errors.PymqError]]:
    """Return all classes of errors, in the order of the source."""
    names = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    found: list[type[errors.PymqError]] = [getattr(errors, name) for name in names]
    return sorted(found, key=lambda cls: inspect.getsourcelines(cls)[1])


def _error_row(cls: type[errors.PymqError]) -> tuple[str, ...]:
    own = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
    parents = [base.__name__ for base in cls.__bases__ if issubclass(base, errors.PymqError)]
    also = [name for name in parents + own if name not in ("PymqError", "Exception")]
    anchor = f".. py:exception:: {cls.__name__}\n   :module: pymq.errors\n   :no-typesetting:"
    said = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return (
        f"{anchor}\n\n``{cls.__name__}``",
        f"``{cls.code}``",
        "yes" if cls.retriable else "no",
        ", ".join(f"``{item}``" for item in also),
        said,
    )


# --- fields -------------------------------------------------------------------------------------


class FieldTable(SphinxDirective):
    """The directive ``.. pymq-fields:: pymq.TopicConfig``: a table of a class's fields, with their
    comments.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        module, _, name = self.arguments[0].rpartition(".")
        cls = getattr(import_module(module), name)
        rows = field_rows(cls)
        has_default = any(default for _, _, default, _ in rows)
        head = ("field", "type", "default", "") if has_default else ("field", "type", "")
        cells = [row if has_default else (row[0], row[1], row[3]) for row in rows]
        return self.parse_text_to_nodes(rows_as_table(head, cells))


def field_rows(cls: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and comment of each field of an attrs class or a named tuple."""
    source = textwrap.dedent(inspect.getsource(cls))
    said = _comments(source)
    defaults = _defaults(cls)
    (body,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    rows = []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            kind = ast.unparse(node.annotation)
            comment = said.get(node.end_lineno or node.lineno, "")
            rows.append((f"``{name}``", f"``{kind}``", defaults.get(name, ""), comment))
    return rows


def _comments(source: str) -> dict[int, str]:
    """The comment at the end of each line that has code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    return {line: _literal(text) for line, text in found.items()}


def _literal(comment: str) -> str:
    """Escape a comment, which is no markup: a name with an underscore at its end is not a link."""
    return comment.replace("*", "\\*").replace("|", "\\|")


def _defaults(cls: type) -> dict[str, str]:
    if attrs.has(cls):
        found = {f.name: f.default for f in attrs.fields(cls) if f.default is not attrs.NOTHING}
    else:
        found = dict(getattr(cls, "_field_defaults", {}))
    return {name: f"``{_shown(value)}``" for name, value in found.items()}


def _shown(value: Any) -> str:
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type] # a class, for mypy a function
        return f"{value.factory()!r}"
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    return repr(value)


# --- links --------------------------------------------------------------------------------------


def public_names() -> dict[str, str]:
    """The places of documentation of public names, by every form of a name that docstrings
    may use.
    """
    # Autodoc would describe a class whose own name is different only as an alias.
    pymq.RecordBatch.__name__ = pymq.RecordBatch.__qualname__ = "RecordBatch"
    found: dict[str, str] = {}
    for module in map(import_module, PUBLIC):
        for name in module.__all__:
            item = getattr(module, name)
            where = f"{module.__name__}.{name}"
            found.setdefault(name, where)
            if isinstance(item, type) or callable(item):
                inner = f"{item.__module__}.{getattr(item, '__qualname__', name)}"
                found.setdefault(inner, where)
    return found


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Node | None:
    """Resolve a name in a docstring or a signature; names of the standard library do not become
    links.
    """
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    head, _, tail = target.partition(".")
    where = _NAMES.get(target)
    if where is None and tail and head in _NAMES:
        where = f"{_NAMES[head]}.{tail}"
    if where is not None and where != target:
        domain = env.get_domain("py")
        return domain.resolve_xref(
            env, str(node["refdoc"]), app.builder, "obj", where, node, contnode
        )
    is_written = isinstance(contnode, nodes.literal) or node.get("reftype") == "exc"
    if is_written and target not in BUILTINS:
        return None  # Sphinx (nitpicky) then reports the name as unknown.
    return contnode


def sign(
    app: Sphinx,
    what: str,
    name: str,
    item: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:
    """Leave out the signature of a class that nobody but pymq constructs."""
    if signature and "TypeAlias" in signature:
        signature = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature)
    if signature and what in ("class", "exception") and name.rpartition(".")[2] not in CONSTRUCTED:
        return "", None
    return signature, returns


_NAMES = public_names()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register this extension; Sphinx calls this function."""
    app.add_directive("pymq-errors", ErrorTable)
    app.add_directive("pymq-fields", FieldTable)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", sign)
    return {"parallel_read_safe": True}
