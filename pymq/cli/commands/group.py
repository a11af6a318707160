"""``pymq group``: lag and members of consumer groups; resets their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import attrs

import pymq
from pymq.cli.connect import opened
from pymq.cli.offset_args import FORMS, offsets_of, parse_place
from pymq.cli.show import OK, Show
from pymq.cli.subcommands import word, words
from pymq.core.counts import plural
from pymq.errors import InvalidRequest, UnknownGroup, UnknownTopic

HELP = "list, describe, reset and delete consumer groups"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    word(there, "list", "show all groups and their lag", _list)
    describe = word(there, "describe", "show a group's members and committed offsets", _describe)
    describe.add_argument("group", metavar="GROUP")
    delete = word(there, "delete", "delete a group without consumers, and its offsets", _delete)
    delete.add_argument("group", metavar="GROUP")
    unsubscribe = word(
        there, "unsubscribe", "unsubscribe a group from topics; its offsets stay", _unsubscribe
    )
    unsubscribe.add_argument("group", metavar="GROUP")
    unsubscribe.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all of them")
    reset = word(there, "reset", "set the offsets of a group without consumers", _reset)
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument("topic", metavar="TOPIC")
    reset.add_argument(
        "--partition", metavar="NAME", action="append", help="only this one; repeatable"
    )
    reset.add_argument("--to", metavar="PLACE", required=True, help=FORMS)
    how = reset.add_mutually_exclusive_group()
    how.add_argument("--execute", action="store_true", help="do it")
    how.add_argument("--dry-run", action="store_true", help="only show the changes (the default)")


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the nested command."""
    return int(args.do(args, show))


def _list(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        found = [group for name in mq.groups() if (group := _described(mq, name)) is not None]
    if show.is_json:
        show.result({"groups": [as_json(group) for group in found]})
    elif not found:
        show.say("there is no group yet; the first consumer with a group creates one")
    else:
        rows = [
            (
                group.name,
                ", ".join(sorted({topic for topic, _ in group.committed})),
                f"{len(group.members):,}",
                f"{sum(group.lag.values()):,}",
                f"{sum(group.in_flight.values()):,}",
                f"{sum(group.waiting.values()):,}",
            )
            for group in found
        ]
        columns = "group topics consumers lag in-flight redeliver".split()
        show.table(columns, rows, left=2)
    return OK


def _described(mq: pymq.Client, name: str) -> pymq.GroupDescription | None:
    try:
        return mq.describe_group(name)
    except UnknownGroup:
        return None  # the group has been deleted


def _describe(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        group = mq.describe_group(args.group)
        fresh = _not_begun(mq, group)
    if show.is_json:
        found = [{"topic": topic, "partition": partition} for topic, partition in fresh]
        show.result(as_json(group) | {"not_begun": found})
        return OK
    lag = sum(group.lag.values())
    consumers = plural(len(group.members), "consumer") if group.members else "no consumer"
    show.say(f"{group.name}: {consumers}, generation {group.generation}, lag {lag:,}")
    if group.consumers:
        rows = [
            (
                member.name,
                member.client,
                member.topic,
                ", ".join(member.partitions) or "none",
                waits_for(member),
                f"{member.silent_s:.1f} s",
            )
            for member in group.consumers
        ]
        columns = ("consumer", "client", "topic", "assigned", "asks for", "seen before")
        show.table(columns, rows, left=5)
    if group.committed or fresh:
        show.table(
            "topic partition committed end lag in-flight redeliver consumer".split(),
            [_row(group, *name) for name in sorted([*group.committed, *fresh])],
            left=("topic", "partition", "consumer"),
        )
    if fresh:
        show.say("-: no record of this partition was consumed yet")
    for topic, route in group.routes.items():
        show.say(f"topic {topic} routes records to a group: {route}")
    return OK


def _not_begun(mq: pymq.Client, group: pymq.GroupDescription) -> list[tuple[str, str]]:
    """Return the partitions of the group's topics without a committed offset."""
    topics = {topic for topic, _ in group.committed} | {c.topic for c in group.consumers}
    found = []
    for topic in sorted(topics):
        try:
            parts = mq.describe_topic(topic).partitions
        except UnknownTopic:
            continue  # the topic has been deleted
        found += [(topic, part.name) for part in parts]
    return [name for name in found if name not in group.committed]


def waits_for(member: pymq.MemberDescription) -> str:
    """Return the reason why a member waits, in a word or two."""
    if member.asks is None:
        return "nothing now"
    paused = [name for name in member.partitions if name not in member.asks]
    return f"all but {', '.join(paused)}" if paused else "all"


def _row(group: pymq.GroupDescription, topic: str, partition: str) -> tuple[str, ...]:
    name = (topic, partition)
    owners = [
        member.name
        for member in group.consumers
        if member.topic == topic and partition in member.partitions
    ]
    owner = ", ".join(owners) or "none"
    if name not in group.committed:
        return (topic, partition, *["-"] * 5, owner)
    numbers = (
        group.committed[name],
        group.end[name],
        group.lag[name],
        group.in_flight[name],
        group.waiting[name],
    )
    return (topic, partition, *(f"{number:,}" for number in numbers), owner)


def _delete(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        mq.delete_group(args.group)
    if show.is_json:
        show.result({"group": args.group, "deleted": True})
    else:
        show.say(f"group {args.group} is deleted")
    return OK


def _unsubscribe(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        topics = mq.unsubscribe(args.group, args.topics or None)
    if show.is_json:
        show.result({"group": args.group, "unsubscribed": topics})
    elif topics:
        show.say(
            f"group {args.group} consumes {', '.join(topics)} is unsubscribed; its offsets stay"
        )
    else:
        show.say(f"group {args.group} was not subscribed to any topic")
    return OK


def _reset(args: argparse.Namespace, show: Show) -> int:
    place = parse_place(args.to)
    with opened(args) as mq:
        parts = {part.name: part for part in mq.describe_topic(args.topic).partitions}
        for name in args.partition or ():
            # raises an error that lists the existing names
            mq.questions.partition_name(args.topic, name)
        wanted = {name: part for name, part in parts.items() if name in (args.partition or parts)}
        before = _committed(mq, args.group, args.topic, is_changed=args.execute)
        plan = offsets_of(mq, args.topic, place, wanted)
        if args.execute:
            mq.reset_group(args.group, args.topic, plan)
    ends = {name: part.high_watermark for name, part in wanted.items()}
    rows = [(name, before.get(name), offset, ends[name] - offset) for name, offset in plan.items()]
    if show.is_json:
        found = [
            {"partition": name, "from": old, "to": new, "lag": lag} for name, old, new, lag in rows
        ]
        place_of = {"group": args.group, "topic": args.topic}
        show.result(place_of | {"executed": args.execute, "partitions": found})
    else:
        _tell_reset(args, rows, show)
    return OK


def _committed(mq: pymq.Client, group: str, topic: str, *, is_changed: bool) -> dict[str, int]:
    """Return a group's committed offsets in a topic; none if the group does not exist.

    Raises:
        InvalidRequest: the command resets the group, and the group has members.
    """
    try:
        found = mq.describe_group(group)
    except UnknownGroup:
        return {}
    if is_changed and found.consumers:
        clients = ", ".join(sorted({member.client for member in found.consumers}))
        raise InvalidRequest(
            f"group {group!r} has {plural(len(found.members), 'consumer')} ({clients}); "
            "close them first, or they continue from their own positions"
        )
    return {partition: at for (name, partition), at in found.committed.items() if name == topic}


def _tell_reset(
    args: argparse.Namespace, rows: Sequence[tuple[str, int | None, int, int]], show: Show
) -> None:
    shown = [
        (
            name,
            "-" if old is None else f"{old:,}",
            f"{new:,}",
            "-" if old is None else f"{new - old:+,}",
            f"{lag:,}",
        )
        for name, old, new, lag in rows
    ]
    show.table("partition from to change lag-then".split(), shown)
    if args.execute:
        show.say(f"group {args.group} continues from there", style="bold")
    else:
        show.say("nothing was changed; add --execute to change it", style="bold")


def as_json(group: pymq.GroupDescription) -> dict[str, Any]:
    """Return a group as JSON."""
    return {
        "group": group.name,
        "generation": group.generation,
        "lag": sum(group.lag.values()),
        "consumers": [attrs.asdict(member) for member in group.consumers],
        "partitions": [
            {
                "topic": name[0],
                "partition": name[1],
                "committed": group.committed[name],
                "delivered": group.delivered[name],
                "end": group.end[name],
                "lag": group.lag[name],
                "in_flight": group.in_flight[name],
                "waiting": group.waiting[name],
            }
            for name in sorted(group.committed)
        ],
        "routes": group.routes,
    }
