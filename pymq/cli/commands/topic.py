"""``pymq topic``: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection

import attrs

import pymq
from pymq.cli.connect import described, opened
from pymq.cli.diagnosis.health import dead_brokers, unreadable
from pymq.cli.escape import escaped
from pymq.cli.show import FAILED, OK, Show
from pymq.cli.subcommands import word, words
from pymq.cli.units import duration_text, options, size_text, time_text
from pymq.client.admin.record_counts import records_of
from pymq.core.counts import plural
from pymq.core.metadata.descriptions import PartitionDescription, TopicDescription
from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import ConfigError, PymqError

HELP = "create, list, describe, alter and delete topics"
ACKS = ("raft", "leader", "none", "unset")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    create = word(there, "create", "make a topic", _create)
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("--partitions", type=int, metavar="N", default=1, help="%(default)s")
    create.add_argument(
        "--partition",
        metavar="NAME",
        action="append",
        help="name of a partition, instead of a number; repeatable",
    )
    create.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        default=1,
        help="replicas of each partition (%(default)s)",
    )
    create.add_argument("--acks", choices=ACKS, default="leader", help="ack mode (%(default)s)")
    create.add_argument("--if-not-exists", action="store_true", help="do nothing if it exists")

    listing = word(there, "list", "show all topics", _list)
    listing.add_argument("--names", action="store_true", help="print only the names")

    describe = word(there, "describe", "show a topic's configuration and partitions", _describe)
    describe.add_argument("topic", metavar="TOPIC")
    describe.add_argument("--blocks", action="store_true", help="show the blocks of each partition")

    alter = word(there, "alter", "change a topic's configuration, or add partitions", _alter)
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "--add-partition", metavar="NAME", action="append", default=[], help="repeatable"
    )
    for each in (create, alter):
        each.add_argument(
            "--config",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="an option, as retention_ms=7d or block_bytes=64MiB; repeatable",
        )

    delete = word(there, "delete", "delete topics and all their records", _delete)
    delete.add_argument("topics", metavar="TOPIC", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    state = word(there, "set-state", "change the ack mode or replicas of partitions", _set_state)
    state.add_argument("topic", metavar="TOPIC")
    state.add_argument("partition", metavar="PARTITION", help="its name, or 'all'")
    state.add_argument("acks", metavar="ACKS", choices=ACKS[:3], help=", ".join(ACKS[:3]))
    state.add_argument("--replicas", type=int, metavar="N", help="default: as before")


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the nested command."""
    return int(args.do(args, show))


def _create(args: argparse.Namespace, show: Show) -> int:
    config = options(args.config)
    partitions = args.partition or args.partitions
    with opened(args, makes=True) as mq:
        there = args.if_not_exists and args.topic in mq.topics()
        if not there:
            mq.create_topic(
                args.topic,
                partitions,
                args.replicas,
                args.acks,
                exist_ok=args.if_not_exists,
                **config,
            )
        found = mq.describe_topic(args.topic)
    show.say(
        f"{found.name} {'exists already' if there else 'is created'}: "
        f"{plural(len(found.partitions), 'partition')}"
    )
    if show.is_json:
        show.result({"created": not there} | as_json(found))
    return OK


def _list(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        if args.names:
            names = mq.topics()
            for name in names:
                show.say(name)
            if show.is_json:
                show.result({"topics": names})
            return OK
        found = list(described(mq))
        dead = dead_brokers(mq)
        rows = [] if show.is_json else [_row(mq, topic, dead) for topic in found]
    if show.is_json:
        show.result({"topics": [as_json(topic) for topic in found]})
    elif found:
        columns = "topic partitions replicas acks records size state".split()
        show.table(columns, rows, left=("topic", "acks", "state"))
    else:
        show.say("there is no topic yet; 'pymq topic create NAME' creates one")
    return OK


def _row(mq: pymq.Client, topic: TopicDescription, dead: Collection[str]) -> tuple[str, ...]:
    parts = topic.partitions
    replicas = sorted({len(part.replicas) for part in parts})
    acks = sorted({part.acks.name.lower() for part in parts})
    return (
        topic.name,
        f"{len(parts):,}",
        "-".join(map(str, dict.fromkeys((replicas[0], replicas[-1])))) if replicas else "0",
        ", ".join(acks),
        f"{records_of(mq.questions, topic):,}",
        size_text(sum(block.size_bytes for part in parts for block in part.blocks)),
        states(topic, dead),
    )


def states(topic: TopicDescription, dead: Collection[str] = ()) -> str:
    """Summarize leaders, in-sync sets and readability of a topic's partitions in a few words.

    A partition is partly unreadable if only *dead* brokers hold some of its records.
    """
    parts = topic.partitions
    unset = sum(part.acks is pymq.AckMode.UNSET for part in parts)
    stuck = sum(bool(part.problem) or not part.leader for part in parts) - unset
    lagging = sum(part.under_replicated or len(part.in_sync) < len(part.replicas) for part in parts)
    partly = sum(any(unreadable(part, dead)) for part in parts)
    counts = (
        (stuck, "stuck"),
        (partly, "partly unreadable"),
        (lagging, "under-replicated"),
        (unset, "unset"),
    )
    found = [f"{count} {what}" for count, what in counts if count > 0]
    return ", ".join(found) or "ok"


def _describe(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        topic = mq.describe_topic(args.topic)
        dead = dead_brokers(mq)
    if show.is_json:
        show.result(as_json(topic))
    else:
        tell(topic, show, dead)
        if args.blocks:
            _tell_blocks(topic, show)
    return OK


def tell(topic: TopicDescription, show: Show, dead: Collection[str] = ()) -> None:
    """Print a topic and its problems, without its blocks; *dead* brokers serve no reads."""
    show.say(f"{topic.name}: {plural(len(topic.partitions), 'partition')}, {states(topic, dead)}")
    defaults = TopicConfig()
    for name, found in topic.config.to_dict().items():
        if found != defaults[name]:
            show.say(f"  {name} = {_option(name, found)}")
    columns = "partition acks leader epoch replicas in-sync start end size".split()
    texts = ("partition", "acks", "leader", "replicas", "in-sync")
    show.table(columns, [_partition_row(part) for part in topic.partitions], left=texts)
    for part in topic.partitions:
        if part.end_offset > part.high_watermark:
            count = plural(part.end_offset - part.high_watermark, "record")
            show.say(f"partition {part.name}: {count} more, appended and not committed yet")
        if part.problem:
            show.say(f"partition {part.name}: {part.problem}", style="bold red")
        if part.offline:
            names = ", ".join(part.offline)
            show.say(f"partition {part.name}: offline on {names}", style="yellow")
        for found, _ in unreadable(part, dead):
            show.say(f"partition {part.name}: {found}", style="bold red")
        for loss in part.losses:
            show.say(
                f"partition {part.name}: records from offset {loss.offset:,} on may have been lost "
                f"at {time_text(loss.at_ms)}",
                style="yellow",
            )


def _option(name: str, found: object) -> str:
    if isinstance(found, int) and not isinstance(found, bool):
        if name.endswith("_ms"):
            return f"{found} ({duration_text(found)})"
        if name.endswith("_bytes"):
            return f"{found} ({size_text(found)})"
    return str(found)


def _partition_row(part: PartitionDescription) -> tuple[str, ...]:
    return (
        part.name,
        part.acks.name.lower(),
        part.leader or "nobody",
        str(part.epoch),
        ", ".join(part.replicas),
        # Usually all replicas are in sync, so print only those that are not.
        "all" if set(part.in_sync) == set(part.replicas) else ", ".join(part.in_sync) or "none",
        f"{part.start_offset:,}",
        f"{part.high_watermark:,}",
        size_text(sum(block.size_bytes for block in part.blocks)),
    )


def _tell_blocks(topic: TopicDescription, show: Show) -> None:
    rows = [
        (
            part.name,
            block.name,
            f"{block.start_offset:,}",
            "open" if block.end_offset is None else f"{block.end_offset:,}",
            block.acks.name.lower(),
            str(block.epoch),
            block.leader or "nobody",
            ", ".join(block.replicas),
            size_text(block.size_bytes),
            time_text(block.opened_ms) if block.opened_ms else "",
        )
        for part in topic.partitions
        for block in part.blocks
    ]
    columns = "partition block from to acks epoch leader replicas size opened".split()
    texts = ("partition", "block", "acks", "leader", "replicas", "opened")
    show.table(columns, rows, left=texts)


def _alter(args: argparse.Namespace, show: Show) -> int:
    config = options(args.config)
    if not config and not args.add_partition:
        raise ConfigError("nothing to change: give --config NAME=VALUE or --add-partition NAME")
    with opened(args) as mq:
        if config:
            mq.alter_topic(args.topic, **config)
        for name in args.add_partition:
            mq.create_partition(args.topic, name)
        topic = mq.describe_topic(args.topic)
    if show.is_json:
        show.result(as_json(topic))
    for name in config:
        show.say(f"{args.topic}: {name} = {_option(name, topic.config[name])}")
    if args.add_partition:
        count = plural(len(topic.partitions), "partition")
        show.say(f"{args.topic} has {count} now; keys are hashed over all of them")
    return OK


def _delete(args: argparse.Namespace, show: Show) -> int:
    failed: list[dict[str, str]] = []
    deleted = []
    with opened(args) as mq:
        if not args.yes and not _is_meant(mq, args.topics, show):
            show.error("nothing was deleted", "NOT_CONFIRMED")
            return FAILED
        for name in args.topics:
            try:
                mq.delete_topic(name)
            except PymqError as error:
                failed.append({"topic": name, "code": error.code, "message": str(error)})
                show.error(str(error), error.code, retriable=error.retriable)
            else:
                deleted.append(name)
                show.say(f"{name} is deleted")
    if show.is_json:
        show.result({"deleted": deleted, "failed": failed})
    return FAILED if failed else OK


def _is_meant(mq: pymq.Client, names: list[str], show: Show) -> bool:
    """Ask the user at the terminal for confirmation."""
    if show.is_json or sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            "all records would be deleted: give --yes if there is no terminal to confirm it"
        )
    count = sum(records_of(mq.questions, mq.describe_topic(name)) for name in names)
    print(
        f"Delete {escaped(', '.join(names))} with {plural(count, 'record')}? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _set_state(args: argparse.Namespace, show: Show) -> int:
    changed = {}
    with opened(args) as mq:
        names = [part.name for part in mq.describe_topic(args.topic).partitions]
        wanted = names if args.partition == "all" and "all" not in names else [args.partition]
        with show.progress("set-state", len(wanted), "partition", is_told=False) as step:
            for number, name in enumerate(wanted):
                changed[name] = mq.set_partition_state(args.topic, name, args.acks, args.replicas)
                step.at(number + 1)
        topic = mq.describe_topic(args.topic)
    if show.is_json:
        show.result({"changed": changed} | as_json(topic))
        return OK
    for part in topic.partitions:
        if part.name in changed:
            how = "is now" if changed[part.name] else "was already"
            on = ", ".join(part.replicas)
            show.say(f"{topic.name}/{part.name} {how} {part.acks.name.lower()} on {on}")
    return OK


# --- JSON ---------------------------------------------------------------------------------------


def as_json(topic: TopicDescription) -> dict[str, object]:
    """Return a topic as JSON, with names of ack modes."""
    return {
        "topic": topic.name,
        "config": topic.config.to_dict(),
        "partitions": [partition_as_json(part) for part in topic.partitions],
    }


def partition_as_json(part: PartitionDescription) -> dict[str, object]:
    """Return a partition as JSON."""
    found = attrs.asdict(part, recurse=True)
    found["acks"] = part.acks.name.lower()
    for row, block in zip(found["blocks"], part.blocks, strict=True):
        row["acks"] = block.acks.name.lower()
    return found
