"""``pymq explain TOPIC PARTITION OFFSET``: a record's block, replicas and state in its groups."""

from __future__ import annotations

import argparse
import time
from typing import Any

import attrs

import pymq
from pymq.cli import connect
from pymq.cli.connect import opened
from pymq.cli.diagnosis.record_status import RecordStatus, fates
from pymq.cli.record_text import as_json, printable, shorten
from pymq.cli.show import FAILED, OK, Show
from pymq.cli.units import duration_text, size_text, time_text
from pymq.core.batch.header import NO_PRODUCER
from pymq.core.batch.record import EncodedBatch
from pymq.core.counts import plural
from pymq.core.metadata.descriptions import BlockDescription, PartitionDescription
from pymq.core.values import value
from pymq.errors import ConfigError, PymqError

HELP = "show where a record is, which consumer has it, and why it is or is not delivered"
READ_S = 5.0
VALUE_SHOWN = 60


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("partition", metavar="PARTITION")
    parser.add_argument("offset", metavar="OFFSET", type=int)
    parser.add_argument("--group", help="its state in this group (default: in all groups)")


@value
class Found:
    """A record and its batch."""

    record: pymq.Record
    batch: EncodedBatch


def run(args: argparse.Namespace, show: Show) -> int:
    """Explain a record; return 1 if there is no record at that offset."""
    if args.offset < 0:
        raise ConfigError(f"OFFSET {args.offset}: offsets begin at 0")
    with opened(args) as mq:
        name = mq.questions.partition_name(args.topic, args.partition)
        part = _described(mq, args.topic, name)
        state, why = where(part, args.offset)
        found, problem = None, None
        if state == "visible":
            found, problem = _read(mq, args.topic, name, args.offset)
            if found is None and problem is None:
                state, why = "no record", _gap(part, args.offset)
        groups: list[RecordStatus] = []
        if state in ("visible", "not committed", "not written"):
            groups = fates(mq, args.topic, part, args.offset, args.group)
    block = block_of(part, args.offset)
    if show.is_json:
        told = {"topic": args.topic, "partition": name, "offset": args.offset}
        told |= {"state": state, "why": why, "problem": problem}
        told |= _block_as_json(part, block) | _record_as_json(found)
        show.result(told | {"groups": [attrs.asdict(fate) for fate in groups]})
    else:
        show.say(f"{args.topic}/{name} offset {args.offset:,}: {state}; {why}", style="bold")
        _tell_block(part, block, show)
        _tell_record(found, problem, show)
        _tell_groups(groups, args.group, show)
    return OK if state in ("visible", "not committed") else FAILED


def _described(mq: pymq.Client, topic: str, name: str) -> PartitionDescription:
    """Describe a partition; while no replica has reported, repeat this for up to READ_S seconds."""
    until = time.monotonic() + READ_S
    while True:
        (part,) = [part for part in mq.describe_topic(topic).partitions if part.name == name]
        if part.is_reported or time.monotonic() > until:
            return part


def where(part: PartitionDescription, offset: int) -> tuple[str, str]:
    """Return the state of an offset in the log, and the reason."""
    if offset < part.start_offset:
        return "removed", f"retention has deleted all records before {part.start_offset:,}"
    if offset >= part.end_offset:
        if not part.is_reported:
            return "not known", f"no replica has reported its end: {part.problem or 'all are slow'}"
        if part.leader is None:
            return (
                "not written",
                f"and no record can be written: {part.problem or 'the partition has no leader'}",
            )
        return "not written", f"the partition ends at {part.end_offset:,}"
    if offset >= part.high_watermark:
        missing = [name for name in part.replicas if name not in part.in_sync]
        lacking = f"; {', '.join(missing)} lag" if missing else ""
        return (
            "not committed",
            f"{part.leader or 'its leader'} has written it, and too few replicas have it yet: "
            f"consumers read up to {part.high_watermark:,}{lacking}",
        )
    return "visible", f"it is committed: the high watermark is {part.high_watermark:,}"


def _gap(part: PartitionDescription, offset: int) -> str:
    block = block_of(part, offset)
    if block is not None and len(block.replicas) > 1:
        return (
            "the offset is a control record of pymq (the start of an epoch), or compaction "
            "has removed the record"
        )
    return "compaction has removed the record, or the offset is a control record of pymq"


def block_of(part: PartitionDescription, offset: int) -> BlockDescription | None:
    """Return the block that an offset belongs to."""
    found = [block for block in part.blocks if block.start_offset <= offset]
    return found[-1] if found else None


def _read(
    mq: pymq.Client, topic: str, partition: str, offset: int
) -> tuple[Found | None, str | None]:
    """Return the record or None, and the reason if the record cannot be read."""
    try:
        with mq.consumer(topic, mode="psb", partition=partition, offset=offset) as consumer:
            until = time.monotonic() + READ_S
            while consumer.position(partition) <= offset and time.monotonic() < until:
                for view in consumer.poll_batches(max_bytes=1, timeout=0.5):
                    if view.offsets and view.offsets[0] == offset:
                        (record,) = view.part(offset, offset + 1, 1).records()
                        return Found(record, view.batch), None
                    return None, None
            is_there = consumer.position(partition) <= offset
            silence = consumer.status().idle or "no answer"
            return None, f"no answer within {READ_S:g} s: {silence}" if is_there else None
    except PymqError as error:
        return None, f"{error} ({error.code})"


# --- output -------------------------------------------------------------------------------------


def _holders(part: PartitionDescription, block: BlockDescription) -> list[tuple[str, str]]:
    """Print the replicas of a block, and whether each copy is complete."""
    found = []
    for broker in block.replicas:
        if broker in block.in_sync:
            has = "has all records" if block.end_offset is not None else "in sync"
        else:
            has = (
                "lacks some records" if block.end_offset is not None else "behind or not reachable"
            )
        is_leader = block.end_offset is None and broker == part.leader
        found.append((broker, f"{has}, leads" if is_leader else has))
    return found


def _tell_block(part: PartitionDescription, block: BlockDescription | None, show: Show) -> None:
    if block is None:
        return
    is_open = block.end_offset is None
    end = "open" if is_open else f"sealed at {block.end_offset:,}"
    opened = f"; it was opened {time_text(block.opened_ms)}" if block.opened_ms else ""
    shown = [
        ("block", f"{block.name}, from offset {block.start_offset:,}, {end}{opened}"),
        ("ack mode", f"{block.acks.name.lower()}, leader epoch {block.epoch}"),
        ("held by", "; ".join(f"{name} ({has})" for name, has in _holders(part, block))),
    ]
    if block.is_unclean:
        shown.append(("beware", "it was sealed when no replica was known to have all records"))
    if is_open and part.problem:
        shown.append(("problem", part.problem))
    show.fields(shown)


def _tell_record(found: Found | None, problem: str | None, show: Show) -> None:
    if problem is not None:
        show.say(f"it cannot be read here: {problem}", style="yellow")
    if found is None:
        return
    record, header = found.record, found.batch.header
    age = duration_text(max(0, time.time() * 1000 - record.timestamp_ms))
    shown = [
        ("time", f"{time_text(record.timestamp_ms)}, {age} ago"),
        ("key", "none" if record.key is None else shorten(printable(record.key), VALUE_SHOWN)),
        ("value", f"{size_text(len(record.value))}: {_start(record.value)}"),
    ]
    for name, item in record.headers:
        shown.append(("header", f"{name} = {_start(item)}"))
    end = header.base_offset + header.span
    shown.append(
        (
            "batch",
            f"offsets {header.base_offset:,} to {end - 1:,}, {plural(header.count, 'record')}, "
            f"{size_text(header.length)}, written in leader epoch {header.leader_epoch}",
        )
    )
    if header.producer_id != NO_PRODUCER:
        number = header.base_sequence + record.offset - header.base_offset
        shown.append(("producer", f"{header.producer_id:x}, its record {number:,}"))
    show.fields(shown)


def _start(data: bytes) -> str:
    return shorten(printable(data[: 4 * VALUE_SHOWN]), VALUE_SHOWN)


def _tell_groups(groups: list[RecordStatus], wanted: str | None, show: Show) -> None:
    if not groups and wanted is None:
        show.say("no group consumes this partition")
    for fate in groups:
        show.say(f"group {fate.group}: {fate.state}; {fate.why}")


# --- JSON ---------------------------------------------------------------------------------------


def _block_as_json(part: PartitionDescription, block: BlockDescription | None) -> dict[str, Any]:
    found = None
    if block is not None:
        found = attrs.asdict(block) | {"acks": block.acks.name.lower()}
    edges = {
        "leader": part.leader,
        "in_sync": part.in_sync,
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "high_watermark": part.high_watermark,
    }
    return {"log": edges, "block": found}


def _record_as_json(found: Found | None) -> dict[str, Any]:
    if found is None:
        return {"record": None, "batch": None}
    header = found.batch.header
    batch = {
        "base_offset": header.base_offset,
        "end_offset": header.base_offset + header.span,
        "records": header.count,
        "bytes": header.length,
        "leader_epoch": header.leader_epoch,
        "producer_id": None if header.producer_id == NO_PRODUCER else header.producer_id,
        "base_sequence": header.base_sequence,
    }
    return {"record": as_json(found.record), "batch": batch}
