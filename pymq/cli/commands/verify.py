"""``pymq verify DIR``: reads every byte of a folder and reports damage."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pymq.cli.show import Show
from pymq.coord.known_blocks import known_blocks
from pymq.coord.sqlite import SqliteTree, read_entries
from pymq.core.counts import plural
from pymq.core.ready import RemoveBlock
from pymq.core.types import BlockId
from pymq.errors import StoreError
from pymq.nodes.embedded import METADATA, broker_folders
from pymq.store.file.file_store import FileStore
from pymq.store.file.folder import BLOCK
from pymq.store.verification.verify import BlockResult, Problem, Report, Unknown, verify

HELP = "check every block of a folder without changing it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("dir", metavar="DIR", help="the folder of pymq.open() or of a broker")
    parser.add_argument(
        "--remove-unknown",
        action="store_true",
        help="show block files that the metadata do not name",
    )
    parser.add_argument("--yes", action="store_true", help="with --remove-unknown: delete them")


def run(args: argparse.Namespace, show: Show) -> int:
    """Check a folder; return 1 if anything is damaged."""
    folder = args.dir
    if not os.path.isdir(folder):
        raise StoreError(f"there is no folder {folder}; name the one that pymq.open() was given")
    metadata = os.path.join(folder, METADATA)
    # The folder of a cluster's broker has no metadata, because the coordinator backend keeps the
    # metadata.
    is_whole = os.path.exists(metadata)
    if args.remove_unknown and not is_whole:
        raise StoreError(
            f"{metadata} is missing, so it is unknown which blocks belong to the queue"
        )
    results, is_ok = [], True
    folders = broker_folders(folder)
    for each in folders or [folder]:
        report = _verify(each, metadata if is_whole else None, show)
        is_ok = is_ok and report.is_ok
        may_remove = args.remove_unknown and report.is_locked and report.is_ok
        removed = _remove(each, metadata, report.unknown) if may_remove and args.yes else []
        results.append(_as_json(report) | {"removed": [file for u in removed for file in u.files]})
        if not show.is_json:
            _tell(report, show)
            if args.remove_unknown:
                _tell_unknown(report, removed, may_remove, show)
    if show.is_json:
        show.result({"path": folder, "ok": is_ok, "brokers": results} if folders else results[0])
    return 0 if is_ok else 1


def _verify(folder: str, metadata: str | None, show: Show) -> Report:
    """Check a folder; on a terminal, show the remaining time."""
    done, known = 0, None
    if metadata is not None:
        known = partial(_known, metadata)
    with show.progress("read", _size(folder), "byte", is_told=False) as step:

        def on_read(size: int) -> None:
            nonlocal done
            done += size
            step.at(done)

        return verify(folder, known=known, on_read=on_read)


def _size(folder: str) -> int:
    """Return the size of all block files of a folder, in bytes."""
    size = 0
    for parent, _, names in os.walk(os.path.join(folder, "blocks")):
        for name in names:
            if name.endswith(BLOCK):
                with suppress(FileNotFoundError):  # retention may remove the block meanwhile
                    size += os.path.getsize(os.path.join(parent, name))
    return size


def _known(metadata: str) -> frozenset[BlockId]:
    return known_blocks(read_entries(metadata))


def _remove(folder: str, metadata: str, unknown: Sequence[Unknown]) -> list[Unknown]:
    """Remove unknown blocks durably, except blocks that the present metadata name.

    Returns the removed files.
    """
    store = FileStore(folder)
    try:
        tree = SqliteTree(metadata)
        try:
            known = known_blocks(tree.entries())
        finally:
            tree.close()
        removed = [found for found in unknown if found.block not in known]
        for failure in store.write([RemoveBlock(found.block) for found in removed]):
            raise failure.error
    finally:
        store.close()
    return removed


def _tell_unknown(report: Report, removed: Sequence[Unknown], may_remove: bool, show: Show) -> None:
    if not may_remove:
        show.say("nothing was removed: the folder is in use or damaged", style="bold")
        return
    for found in removed or report.unknown:
        for file in found.files:
            show.say(f"{'removed' if removed else 'to be removed'}: {file}")
    if not report.unknown:
        show.say("nothing to remove: the metadata name all blocks")
    elif not removed:
        size = sum(found.bytes for found in report.unknown)
        show.say(f"nothing was removed; add --yes to remove {plural(size, 'byte')}", style="bold")


def _tell(report: Report, show: Show) -> None:
    rows = []
    for (topic, partition), blocks in sorted(_by_partition(report).items()):
        bad = sum(not block.is_ok for block in blocks)
        rows.append(
            (
                topic or "?",  # unknown if the block's header is damaged
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
            show.say(f"         next: {problem.advice}")
    for problem in report.problems:
        if problem.is_note:
            show.say(f"note: {_where(problem)}: {problem.what}; {problem.advice}", style="yellow")
    damaged = sum(not problem.is_note for problem in report.problems)
    totals = (
        f"{plural(len(report.blocks), 'block')}, {plural(report.batches, 'batch')}, "
        f"{plural(report.records, 'record')}, {plural(report.bytes, 'byte')}"
    )
    if damaged:
        found = plural(damaged, "problem")
        show.say(f"{report.path}: {found}; still good: {totals}", style="bold")
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
        "unknown": [file for found in report.unknown for file in found.files],
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
