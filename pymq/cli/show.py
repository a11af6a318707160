"""How commands show things: with rich when it is installed, plainly otherwise, or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

Row = Sequence[str]
DRAWS_PER_S = 10


class Step(Protocol):
    """A progress bar."""

    def at(self, done: int) -> None:
        """So many are done by now."""


class Show:
    """Where a command puts what it has to say: results to stdout, errors to stderr."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self._console: Any = None
        if not is_json:
            try:
                from rich.console import Console
            except ImportError:
                pass  # It looks plainer then.
            else:
                # Text of users may hold [brackets]; only what is marked as such here is markup.
                self._console = Console(highlight=False, soft_wrap=True)

    def result(self, found: object) -> None:
        """Print the outcome for programs."""
        print(json.dumps(found, indent=2, sort_keys=False))

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Tell people one line, which programs do not get."""
        if self.is_json:
            return
        if self._console is not None:
            self._console.print(text, style=style, markup=False)
        else:
            print(text)

    def error(self, text: str) -> None:
        """Tell in one line what went wrong, and what to do next."""
        line = " ".join(text.split())
        print(f"error: {line}", file=sys.stderr)

    def table(self, columns: Row, rows: Sequence[Row], *, left: int = 1) -> None:
        """Print a table whose first *left* columns are text and whose others are numbers."""
        if self.is_json:
            return
        if self._console is None:
            print(_plain(columns, rows, left))
            return
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, name in enumerate(columns):
            table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(_escape(cell) for cell in row))
        self._console.print(table)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Step]:
        """Show how far something is, with its throughput; the rate stays on the screen."""
        if self.is_json:
            yield _Silent()
        elif self._console is None or not self._console.is_terminal:
            line = _Line(what, total)
            try:
                yield line
            finally:
                line.close()
        else:
            with _bars(self._console) as bars:
                task = bars.add_task(what, total=total, rate="")
                yield _Bar(bars, task)


class _Silent:
    def at(self, done: int) -> None:
        pass


class _Line:
    """One line once it is over: for files, and terminals without rich."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._start = time.perf_counter()

    def at(self, done: int) -> None:
        self.done = done

    def close(self) -> None:
        print(f"{self.what}: {self.done:,} of {self.total:,} {_rate(self.done, self._start)}")


class _Bar:
    def __init__(self, bars: Any, task: Any) -> None:
        self._bars = bars
        self._task = task
        self._start = time.perf_counter()

    def at(self, done: int) -> None:
        rate = _rate(done, self._start)
        self._bars.update(self._task, completed=done, rate=rate)


def _rate(done: int, start: float) -> str:
    seconds = max(time.perf_counter() - start, 1e-9)
    return f"in {seconds:.1f} s, {done / seconds:,.0f}/s"


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


def _plain(columns: Row, rows: Sequence[Row], left: int) -> str:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Row) -> str:
        padded = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, rows)])
