"""Output of commands: with rich if it is installed, otherwise plain, or as JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from pymq.cli.escape import escaped, escaped_json
from pymq.cli.units import duration_text, size_text
from pymq.core.counts import plural

Row = Sequence[str]
DRAWS_PER_S = 10
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes
_BETWEEN = 2  # spaces between two columns
_TOLD = 72  # width of the text beside a bar, for progress and rate


class Step(Protocol):
    """A progress bar."""

    def at(self, done: int) -> None:
        """Show how much is done so far."""


class Show:
    """The output of a command: results to stdout, errors to stderr."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self._console: Any = None
        if not is_json:
            try:
                from rich.console import Console
            except ImportError:
                pass  # without rich the output is plain
            else:
                # Users' text may contain [brackets], so only our own marks count as markup.
                self._console = Console(highlight=False, soft_wrap=True)

    def result(self, found: object) -> None:
        """Print the result as JSON."""
        print(escaped_json(json.dumps(found, indent=2, sort_keys=False)))

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line for people; print nothing with ``--json``."""
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
        """Print names with their values, one per line."""
        width = max(len(name) for name, _ in pairs)
        for name, found in pairs:
            self.say(f"{name:<{width}}  {found}")

    def table(self, columns: Row, rows: Sequence[Row], *, left: int | Collection[str] = 1) -> None:
        """Print a table; the first *left* columns, or the named ones, are text, the others
        numbers.
        """
        if self.is_json:
            return
        columns, rows = [*map(escaped, columns)], [[*map(escaped, row)] for row in rows]
        texts = set(columns[:left]) if isinstance(left, int) else set(left)
        if self._console is None or not self._console.is_terminal:
            print(_plain(columns, rows, texts))
            return
        # On a narrow terminal wrap only text, and only at spaces, because a truncated number or
        # name would be wrong.
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
        unit: str,
        start: int = 0,
        *,
        is_told: bool = True,
        is_drawn: bool = True,
    ) -> Iterator[Step]:
        """Show progress from *start* to *total*, the rate, and the time left.

        *unit* is a noun in the singular, for example ``record``. For ``byte``, show KiB and so on.
        If no bar can be drawn and *is_told* is set, print one line at the end.
        """
        pace = Pace(start, total, unit)
        is_terminal = self._console is not None and self._console.is_terminal
        if self.is_json or not (is_drawn and (is_terminal or is_told)):
            yield _Silent()
        elif not is_terminal:
            line = _Line(what, pace)
            try:
                yield line
            finally:
                line.close()
        else:
            with _bars(self._console) as bars:
                task = bars.add_task(_escape(escaped(what)), total=total, completed=start, told="")
                yield _Bar(bars, task, pace)


class _Silent:
    def at(self, done: int) -> None:
        pass


class _Line:
    """Prints one line at the end, for files and for terminals without rich."""

    def __init__(self, what: str, pace: Pace) -> None:
        self._what = what
        self._done = pace.start
        self._pace = pace

    def at(self, done: int) -> None:
        self._done = done

    def close(self) -> None:
        print(f"{escaped(self._what)}: {self._pace.summary(self._done)}")


class _Bar:
    def __init__(self, bars: Any, task: Any, pace: Pace) -> None:
        self._bars = bars
        self._task = task
        self._pace = pace

    def at(self, done: int) -> None:
        self._bars.update(self._task, completed=done, told=self._pace.text(done))


class Pace:
    """Computes the progress of some work, its rate, and the remaining time.

    The rate is the average since the start, so that a short stall changes the remaining time only a
    little.
    """

    def __init__(
        self,
        start: int,
        total: int | None,
        unit: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.start = start
        self._total = total
        self._unit = unit
        self._clock = clock
        self._began = clock()

    def text(self, done: int) -> str:
        """Return the progress: ``1,200 of 10,000 records, 33,000 records/s, 12 s left``."""
        rate = self._rate(done)
        parts = [self._amount(done)]
        if rate:
            parts.append(self._speed(rate))
            if self._total is not None and done < self._total:
                seconds = math.ceil((self._total - done) / rate)
                parts.append(f"{duration_text(seconds * 1000)} left")
        return ", ".join(parts)

    def summary(self, done: int) -> str:
        """Return the final result: ``10,000 of 10,000 records in 0.3 s, 33,000 records/s``."""
        if done == self.start:
            return f"{self._amount(done)}, nothing was to do"
        seconds = self._clock() - self._began
        return f"{self._amount(done)} in {seconds:.1f} s, {self._speed(self._rate(done))}"

    def _rate(self, done: int) -> float:
        return (done - self.start) / max(self._clock() - self._began, 1e-9)

    def _amount(self, done: int) -> str:
        if self._unit == "byte":
            return size_text(done) + (
                "" if self._total is None else f" of {size_text(self._total)}"
            )
        if self._total is None:
            return plural(done, self._unit)
        return f"{done:,} of {plural(self._total, self._unit)}"

    def _speed(self, rate: float) -> str:
        if self._unit == "byte":
            return f"{size_text(rate)}/s"
        return f"{rate:,.{1 if rate < 10 else 0}f} {self._unit}s/s"


def _bars(console: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=min(32, max(8, console.width - _TOLD))),
        TextColumn("{task.fields[told]}", markup=False),
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
