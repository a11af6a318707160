"""``pymq verify DIR``: read every byte of a folder and say what is wrong with it."""

from __future__ import annotations

import argparse
import os
from typing import Any

from pymq.cli.show import Show
from pymq.errors import StoreError
from pymq.store.verify import BlockResult, Problem, Report, verify

HELP = "check every block of a folder, changing nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("dir", metavar="DIR", help="the folder that pymq.open() or a broker uses")


def run(args: argparse.Namespace, show: Show) -> int:
    """Check a folder; 1 when anything is damaged."""
    if not os.path.isdir(args.dir):
        raise StoreError(f"there is no folder {args.dir}; name the one that pymq.open() was given")
    report = verify(args.dir)
    if show.is_json:
        show.result(_as_json(report))
    else:
        _tell(report, show)
    return 0 if report.is_ok else 1


def _tell(report: Report, show: Show) -> None:
    rows = []
    for (topic, partition), blocks in sorted(_by_partition(report).items()):
        bad = sum(not block.is_ok for block in blocks)
        rows.append(
            (
                topic or "?",  # a block whose head is damaged does not say
                partition,
                f"{len(blocks):,}",
                f"{blocks[0].start:,}",
                f"{blocks[-1].end:,}",
                f"{sum(block.batches for block in blocks):,}",
                f"{sum(block.records for block in blocks):,}",
                f"{sum(block.bytes for block in blocks):,}",
                f"{bad} damaged" if bad else "ok",
            )
        )
    if rows:
        columns = "topic partition blocks from to batches records bytes state".split()
        show.table(columns, rows, left=2)
    for problem in report.problems:
        if not problem.is_note:
            show.say(f"damaged: {_where(problem)}", style="bold red")
            show.say(f"         {problem.what}")
            show.say(f"         what to do: {problem.advice}")
    for problem in report.problems:
        if problem.is_note:
            show.say(f"note: {_where(problem)}: {problem.what}; {problem.advice}", style="yellow")
    damaged = sum(not problem.is_note for problem in report.problems)
    totals = (
        f"{len(report.blocks):,} blocks, {report.batches:,} batches, {report.records:,} records, "
        f"{report.bytes:,} bytes"
    )
    if damaged:
        plural = "s" if damaged > 1 else ""
        show.say(f"{report.path}: {damaged} problem{plural}; still good: {totals}", style="bold")
    else:
        show.say(f"{report.path}: clean; {totals}", style="bold green")


def _by_partition(report: Report) -> dict[tuple[str, str], list[BlockResult]]:
    found: dict[tuple[str, str], list[BlockResult]] = {}
    for block in report.blocks:
        topic = block.topic or block.block.topic_id
        name = block.partition or str(block.block.partition)
        found.setdefault((topic, name), []).append(block)
    return found


def _where(problem: Problem) -> str:
    at = "" if problem.position is None else f", byte {problem.position:,}"
    return problem.file + at + ("" if problem.offset is None else f", offset {problem.offset:,}")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "path": report.path,
        "ok": report.is_ok,
        "locked": report.is_locked,
        "blocks": len(report.blocks),
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "blocks": len(blocks),
                "start_offset": blocks[0].start,
                "end_offset": blocks[-1].end,
                "batches": sum(block.batches for block in blocks),
                "records": sum(block.records for block in blocks),
                "bytes": sum(block.bytes for block in blocks),
                "ok": all(block.is_ok for block in blocks),
            }
            for (topic, partition), blocks in sorted(_by_partition(report).items())
        ],
        "problems": [
            {
                "file": problem.file,
                "position": problem.position,
                "offset": problem.offset,
                "what": problem.what,
                "advice": problem.advice,
                "is_note": problem.is_note,
            }
            for problem in report.problems
        ],
    }
