"""``pymq cluster``: who is there, and where partitions are to lie."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import attrs

import pymq
from pymq.cli.amounts import plural, time_text
from pymq.cli.connect import described, opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.words import word, words
from pymq.core.metadata import BrokerDescription, ClusterDescription, Loss, TopicDescription
from pymq.core.types import OFFSETS_TOPIC, is_internal
from pymq.core.values import value
from pymq.errors import AuthorizationFailed, ConfigError, UnknownTopic

HELP = "show brokers and zkservers, and move partitions between brokers"
LOOK_S = 0.5  # between two looks at what a broker still has
SHOWN_MAX = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    word(there, "status", "show the brokers, and who is in charge", _status)
    reassign = word(there, "reassign", "put a partition's next records on other brokers", _reassign)
    reassign.add_argument("topic", metavar="TOPIC")
    reassign.add_argument("partition", metavar="PARTITION")
    reassign.add_argument("brokers", metavar="BROKER", nargs="+", help="the first is to lead")
    away = word(there, "decommission", "let a broker lead and take nothing more", _decommission)
    away.add_argument("broker", metavar="BROKER")
    away.add_argument(
        "--wait", action="store_true", help="until it is in no open block, and say what it keeps"
    )
    back = word(there, "recommission", "take a decommission back", _recommission)
    back.add_argument("broker", metavar="BROKER")
    recover = word(
        there, "recover", "let a partition that nobody can lead go on with what is left", _recover
    )
    recover.add_argument("topic", metavar="TOPIC")
    recover.add_argument("partition", metavar="PARTITION")
    recover.add_argument(
        "--accept-loss", action="store_true", help="records that were acknowledged may be lost"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Do what was asked for."""
    return int(args.do(args, show))


def _status(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        found = mq.cluster()
    if show.is_json:
        show.result(attrs.asdict(found, recurse=True))
        return OK
    tell(found, show)
    return OK


def tell(found: ClusterDescription, show: Show) -> None:
    """Who is there, and what is wrong."""
    show.say(
        f"active zkserver {found.controller}, epoch {found.controller_epoch}; "
        f"{plural(found.topics, 'topic')}, {plural(found.partitions, 'partition')}"
    )
    rows = [
        (broker.name, state(broker), f"{broker.leads:,}", broker.rack or "-", broker.endpoint)
        for broker in found.brokers
    ]
    show.table("broker state leads rack endpoint".split(), rows, left=(*_TEXTS,))
    if not found.brokers:
        show.say("no broker has ever registered: start one with this zkserver", style="bold red")
    if found.leaderless:
        names = ", ".join(found.leaderless)
        show.say(f"nobody leads {names}; 'pymq topic describe' says why", style="bold red")


_TEXTS = ("broker", "state", "rack", "endpoint")


def state(broker: BrokerDescription) -> str:
    """What a broker does, in a word."""
    if not broker.alive:
        return "dead"
    return "draining" if broker.is_draining else "alive"


def _reassign(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        changed = mq.reassign(args.topic, args.partition, args.brokers)
        name = mq.questions.partition_name(args.topic, args.partition)
        (part,) = [p for p in mq.describe_topic(args.topic).partitions if p.name == name]
    if show.is_json:
        last = {"leader": part.leader, "replicas": part.replicas, "epoch": part.epoch}
        show.result({"topic": args.topic, "partition": name, "changed": changed} | last)
    how = "is from now on" if changed else "was already"
    show.say(f"{args.topic}/{name} {how} on {', '.join(part.replicas)}; no data has moved")
    return OK


def _decommission(args: argparse.Namespace, show: Show) -> int:
    with Interrupt() as interrupt, opened(args) as mq:
        count = mq.decommission(args.broker)
        found = _wait(mq, args.broker, show, interrupt) if args.wait else None
    if show.is_json:
        kept = {} if found is None else {"left": found.open, "alone": found.alone}
        show.result({"broker": args.broker, "partitions": count} | kept)
    show.say(f"{args.broker} is given nothing new; {plural(count, 'partition')} move away from it")
    if found is None:
        show.say("what it holds of older records stays with it; --wait says what that is")
        return OK
    if found.open:
        show.interrupted(f"interrupted; it is still in {', '.join(found.open[:SHOWN_MAX])}")
        return INTERRUPTED
    if found.alone:
        names = ", ".join(found.alone[:SHOWN_MAX])
        more = f" and {len(found.alone) - SHOWN_MAX} more" if len(found.alone) > SHOWN_MAX else ""
        show.say(
            f"keep it running: nobody else has {plural(len(found.alone), 'older block')}, {names}"
            f"{more}; they go when retention takes them",
            style="yellow",
        )
    else:
        show.say("it may be stopped: others have all that it has", style="green")
    return OK


@value
class Holdings:
    """What a broker has of the topics."""

    open: list[str]  # partitions, the open block of which it is in
    alone: list[str]  # sealed blocks with records of users that nobody else has all of


def holdings(topics: Iterable[TopicDescription], broker: str) -> Holdings:
    """What *broker* has of some topics."""
    found = Holdings([], [])
    for topic in topics:
        for part in topic.partitions:
            *sealed, last = part.blocks
            if broker in last.replicas:
                found.open.append(f"{topic.name}/{part.name}")
            for block in sealed:
                others = [name for name in block.in_sync if name != broker]
                is_empty = block.end_offset == block.start_offset
                if broker in block.replicas and not (others or is_empty or is_internal(topic.name)):
                    found.alone.append(f"{topic.name}/{part.name} {block.name}")
    return found


def _all(mq: pymq.Client) -> Iterator[TopicDescription]:
    """All topics; that of the groups' offsets, too, if we may look at it."""
    yield from described(mq)
    try:
        yield mq.describe_topic(OFFSETS_TOPIC)
    except (AuthorizationFailed, UnknownTopic):
        pass  # There are no groups yet; or others see to it.


def _wait(mq: pymq.Client, broker: str, show: Show, interrupt: Interrupt) -> Holdings:
    """Wait until a broker is in no open block, or until an interrupt."""
    found = holdings(_all(mq), broker)
    total = len(found.open)
    with show.progress("moved", total, is_told=False) as step:
        while found.open and not interrupt.is_asked:
            mq.driver.pause(LOOK_S)  # Nobody tells a client that a partition has moved.
            found = holdings(_all(mq), broker)
            step.at(total - len(found.open))
    return found


def _recommission(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        changed = mq.recommission(args.broker)
    if show.is_json:
        show.result({"broker": args.broker, "changed": changed})
    again = "again" if changed else "as before"
    show.say(f"{args.broker} is given new blocks {again}")
    return OK


def _recover(args: argparse.Namespace, show: Show) -> int:
    if not args.accept_loss:
        raise ConfigError(
            "this may lose records that were acknowledged: 'pymq topic describe' says whom to wait "
            "for instead; say --accept-loss to go on without"
        )
    with opened(args) as mq:
        loss = mq.recover_partition(args.topic, args.partition)
    if show.is_json:
        found = None if loss is None else attrs.asdict(loss)
        show.result({"topic": args.topic, "partition": args.partition, "loss": found})
    tell_loss(loss, show)
    return OK


def tell_loss(loss: Loss | None, show: Show) -> None:
    """What may be lost of a partition that goes on."""
    if loss is None:
        show.say("nothing is lost: somebody leads it, or soon will")
        return
    show.say(
        f"it goes on with what {loss.holder or 'nobody'} had; records from offset {loss.offset:,} "
        f"on may have been lost at {time_text(loss.at_ms)}",
        style="bold yellow",
    )
