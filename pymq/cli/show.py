"""How commands show things: with rich when it is installed, plainly otherwise, or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

Row = Sequence[str]
DRAWS_PER_S = 10
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes


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
        if self._console is None or not self._console.is_terminal:
            print(_plain(columns, rows, left))
            return
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, name in enumerate(columns):
            # Of a terminal that is too narrow only text suffers: a number cut short is a wrong one.
            width = None if index < left else max(len(row[index]) for row in (columns, *rows))
            justify: Literal["left", "right"] = "left" if index < left else "right"
            table.add_column(name, justify=justify, no_wrap=True, min_width=width)
        for row in rows:
            table.add_row(*(_escape(cell) for cell in row))
        self._console.print(table)

    @contextmanager
    def progress(self, what: str, total: int, start: int = 0) -> Iterator[Step]:
        """Show how far something is, of *total* from *start* on, and how fast it goes."""
        if self.is_json:
            yield _Silent()
        elif self._console is None or not self._console.is_terminal:
            line = _Line(what, total, start)
            try:
                yield line
            finally:
                line.close()
        else:
            with _bars(self._console) as bars:
                task = bars.add_task(what, total=total, completed=start, rate="")
                yield _Bar(bars, task, start)


class _Silent:
    def at(self, done: int) -> None:
        pass


class _Line:
    """One line once it is over: for files, and terminals without rich."""

    def __init__(self, what: str, total: int, start: int) -> None:
        self._what = what
        self._total = total
        self._done = start
        self._rate = Rate(start)

    def at(self, done: int) -> None:
        self._done = done

    def close(self) -> None:
        print(f"{self._what}: {self._done:,} of {self._total:,} {self._rate.text(self._done)}")


class _Bar:
    def __init__(self, bars: Any, task: Any, start: int) -> None:
        self._bars = bars
        self._task = task
        self._rate = Rate(start)

    def at(self, done: int) -> None:
        self._bars.update(self._task, completed=done, rate=self._rate.text(done))


class Rate:
    """How fast something goes."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._began = time.perf_counter()

    def text(self, done: int) -> str:
        """The time it has taken, and the rate."""
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


def _plain(columns: Row, rows: Sequence[Row], left: int) -> str:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Row) -> str:
        padded = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, rows)])
