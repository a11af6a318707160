"""Output of commands: with rich if it is installed, otherwise plain, or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from pymq.cli.escape import escaped, escaped_json

Row = Sequence[str]
DRAWS_PER_S = 10
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes
_BETWEEN = 2  # spaces between two columns


class Step(Protocol):
    """A progress bar."""

    def at(self, done: int) -> None:
        """Set the number done so far."""


class Show:
    """The output of a command: results to stdout, errors to stderr."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self._console: Any = None
        if not is_json:
            try:
                from rich.console import Console
            except ImportError:
                pass  # Without rich the output is plain.
            else:
                # Users' text may contain [brackets], so only our own marks are markup.
                self._console = Console(highlight=False, soft_wrap=True)

    def result(self, found: object) -> None:
        """Print the result as JSON."""
        print(escaped_json(json.dumps(found, indent=2, sort_keys=False)))

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line for people; nothing with ``--json``."""
        if self.is_json:
            return
        text = escaped(text)
        if self._console is not None:
            self._console.print(text, style=style, markup=False)
        else:
            print(text)

    def error(
        self, text: str, code: str, *, retriable: bool = False, hints: Sequence[str] = ()
    ) -> None:
        """Print an error in one line, and hints in further lines.

        With ``--json`` print one object in one line.
        """
        if self.is_json:
            found = {"code": code, "message": text, "retriable": retriable, "hints": [*hints]}
            print(escaped_json(json.dumps({"error": found})), file=sys.stderr)
            return
        line = " ".join(text.split())
        print(f"error: {escaped(line)} ({escaped(code)})", file=sys.stderr)
        for hint in hints:
            print(f"  hint: {escaped(hint)}", file=sys.stderr)

    def interrupted(self, text: str = "interrupted") -> None:
        """Report an interrupt and the present state."""
        self.error(text, "INTERRUPTED", retriable=True)

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names with their values, one a line."""
        width = max(len(name) for name, _ in pairs)
        for name, found in pairs:
            self.say(f"{name:<{width}}  {found}")

    def table(self, columns: Row, rows: Sequence[Row], *, left: int | Collection[str] = 1) -> None:
        """Print a table; its first *left* columns, or those named, are text, the others numbers."""
        if self.is_json:
            return
        columns, rows = [*map(escaped, columns)], [[*map(escaped, row)] for row in rows]
        texts = set(columns[:left]) if isinstance(left, int) else set(left)
        if self._console is None or not self._console.is_terminal:
            print(_plain(columns, rows, texts))
            return
        # On a narrow terminal wrap only text, and only at spaces: a truncated number or name
        # would be wrong.
        needs = [
            max(_need(cell, is_text=name in texts) for cell in cells)
            for name, *cells in zip(columns, columns, *rows, strict=True)
        ]
        if sum(needs) + _BETWEEN * len(columns) > self._console.width:
            self._expanded(columns, rows)
        else:
            self._rich(columns, rows, texts, needs)

    def _rich(
        self, columns: Row, rows: Sequence[Row], texts: Collection[str], needs: Sequence[int]
    ) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name, need in zip(columns, needs, strict=True):
            justify: Literal["left", "right"] = "left" if name in texts else "right"
            table.add_column(name, justify=justify, no_wrap=name not in texts, min_width=need)
        for row in rows:
            table.add_row(*(_escape(cell) for cell in row))
        self._console.print(table)

    def _expanded(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print each row as a paragraph with a line per column."""
        for row in rows:
            self.say()
            self.fields(list(zip(columns, row, strict=True)))

    @contextmanager
    def progress(
        self,
        what: str,
        total: int | None,
        start: int = 0,
        *,
        is_told: bool = True,
        is_drawn: bool = True,
    ) -> Iterator[Step]:
        """Show progress from *start* to *total*, and the rate.

        If no bar can be drawn and it *is_told*, print one line at the end.
        """
        is_terminal = self._console is not None and self._console.is_terminal
        if self.is_json or not (is_drawn and (is_terminal or is_told)):
            yield _Silent()
        elif not is_terminal:
            line = _Line(what, total, start)
            try:
                yield line
            finally:
                line.close()
        else:
            with _bars(self._console) as bars:
                task = bars.add_task(_escape(escaped(what)), total=total, completed=start, rate="")
                yield _Bar(bars, task, start)


class _Silent:
    def at(self, done: int) -> None:
        pass


class _Line:
    """Prints one line at the end: for files, and terminals without rich."""

    def __init__(self, what: str, total: int | None, start: int) -> None:
        self._what = what
        self._total = total
        self._done = start
        self._rate = Rate(start)

    def at(self, done: int) -> None:
        self._done = done

    def close(self) -> None:
        total = "" if self._total is None else f" of {self._total:,}"
        print(f"{escaped(self._what)}: {self._done:,}{total} {self._rate.text(self._done)}")


class _Bar:
    def __init__(self, bars: Any, task: Any, start: int) -> None:
        self._bars = bars
        self._task = task
        self._rate = Rate(start)

    def at(self, done: int) -> None:
        self._bars.update(self._task, completed=done, rate=self._rate.text(done))


class Rate:
    """Measures a rate."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._began = time.perf_counter()

    def text(self, done: int) -> str:
        """Return the time taken and the rate."""
        new = done - self._start
        if not new:
            return "nothing to do"
        seconds = max(time.perf_counter() - self._began, 1e-9)
        return f"in {seconds:.1f} s, {new / seconds:,.0f}/s"


def _bars(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("[dim]{task.fields[rate]}"),
        console=console,
        refresh_per_second=DRAWS_PER_S,
    )


def _escape(cell: str) -> str:
    return cell.replace("[", r"\[")


def _need(cell: str, *, is_text: bool) -> int:
    """Return the column width that a cell needs."""
    return max(map(len, cell.split()), default=0) if is_text else len(cell)


def _plain(columns: Row, rows: Sequence[Row], texts: Collection[str]) -> str:
    rows = [[cell.replace(", ", ",") for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Row) -> str:
        padded = [
            cell.ljust(width) if name in texts else cell.rjust(width)
            for name, cell, width in zip(columns, cells, widths, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, rows)])
