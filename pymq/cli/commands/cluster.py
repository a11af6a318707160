"""``pymq cluster``: who is there, and where partitions are to lie."""

from __future__ import annotations

import argparse
import time

import attrs

import pymq
from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.subcommands import word, words
from pymq.cli.units import plural, time_text
from pymq.core.metadata.nodes import BrokerDescription, ClusterDescription, Loss
from pymq.errors import ConfigError

HELP = "show brokers and zkservers, and move partitions between brokers"
STILL_S = 5.0  # without progress, before it is said what keeps a broker


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    word(there, "status", "show the brokers, and who is in charge", _status)
    reassign = word(there, "reassign", "put a partition's next records on other brokers", _reassign)
    reassign.add_argument("topic", metavar="TOPIC")
    reassign.add_argument("partition", metavar="PARTITION")
    reassign.add_argument("brokers", metavar="BROKER", nargs="+", help="the first is to lead")
    reassign.add_argument(
        "--move-sealed", action="store_true", help="copy the older records there, too"
    )
    away = word(there, "decommission", "let a broker lead and take nothing more", _decommission)
    away.add_argument("broker", metavar="BROKER")
    away.add_argument(
        "--wait", action="store_true", help="until nothing is left on it, and say what keeps it"
    )
    back = word(there, "recommission", "take a decommission back", _recommission)
    back.add_argument("broker", metavar="BROKER")
    word(there, "balance", "let brokers lead as many partitions as each other", _balance)
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
        (
            broker.name,
            state(broker),
            f"{broker.leads:,}",
            f"{broker.blocks:,}",
            broker.rack or "-",
            broker.endpoint,
        )
        for broker in found.brokers
    ]
    show.table("broker state leads blocks rack endpoint".split(), rows, left=(*_TEXTS,))
    if not found.brokers:
        show.say("no broker has ever registered: start one with this zkserver", style="bold red")
    if found.leaderless:
        names = ", ".join(found.leaderless)
        show.say(f"nobody leads {names}; 'pymq topic describe' says why", style="bold red")
    if found.under_replicated_blocks:
        few = plural(found.under_replicated_blocks, "sealed block")
        show.say(f"too few copies of {few}; {found.moving_blocks:,} are being copied")
    elif found.moving_blocks:
        show.say(f"{plural(found.moving_blocks, 'sealed block')} are being copied")


_TEXTS = ("broker", "state", "rack", "endpoint")


def state(broker: BrokerDescription) -> str:
    """What a broker does, in a word."""
    if not broker.alive:
        return "dead"
    return "draining" if broker.is_draining else "alive"


def _reassign(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        changed = mq.reassign(
            args.topic, args.partition, args.brokers, move_sealed=args.move_sealed
        )
        name = mq.questions.partition_name(args.topic, args.partition)
        (part,) = [p for p in mq.describe_topic(args.topic).partitions if p.name == name]
    if show.is_json:
        last = {"leader": part.leader, "replicas": part.replicas, "epoch": part.epoch}
        show.result({"topic": args.topic, "partition": name, "changed": changed} | last)
    how = "is from now on" if changed else "was already"
    moved = "older records follow" if args.move_sealed else "no data has moved"
    show.say(f"{args.topic}/{name} {how} on {', '.join(part.replicas)}; {moved}")
    return OK


def _decommission(args: argparse.Namespace, show: Show) -> int:
    with Interrupt() as interrupt, opened(args) as mq:
        count = mq.decommission(args.broker)
        found = _wait(mq, args.broker, show, interrupt) if args.wait else None
    if show.is_json:
        left = {} if found is None else {"blocks": found.blocks, "kept_by": found.kept_by}
        show.result({"broker": args.broker, "partitions": count} | left)
    show.say(f"{args.broker} is given nothing new; {plural(count, 'partition')} move away from it")
    if found is None:
        show.say("what it holds of older records is copied to others; --wait waits for that")
        return OK
    if found.blocks or found.kept_by:
        show.interrupted(f"interrupted; it still holds {plural(found.blocks, 'block')}")
        _tell_kept(found, show)
        return INTERRUPTED
    show.say("it may be stopped: others have all that it had", style="green")
    return OK


class _Enough(Exception):  # not an error: it ends a wait
    """The user does not want to wait any longer."""


def _wait(mq: pymq.Client, broker: str, show: Show, interrupt: Interrupt) -> BrokerDescription:
    """Wait until a broker is empty, or until an interrupt; says what keeps it."""
    last: list[BrokerDescription] = []
    total, changed_at, is_told = 0, time.monotonic(), False
    (first,) = [found for found in mq.cluster().brokers if found.name == broker]
    total = first.blocks

    with show.progress("moved", total, is_told=False) as step:

        def see(found: BrokerDescription) -> None:
            nonlocal changed_at, is_told
            if not last or last[-1].blocks != found.blocks:
                changed_at, is_told = time.monotonic(), False
            elif not is_told and time.monotonic() > changed_at + STILL_S:
                is_told = True
                _tell_kept(found, show)
            last[:] = [found]
            step.at(max(0, total - found.blocks))
            if interrupt.is_asked:
                raise _Enough

        try:
            mq.decommission(broker, wait=True, on_progress=see)
        except _Enough:
            pass
    return last[-1]


def _tell_kept(found: BrokerDescription, show: Show) -> None:
    for why in found.kept_by:
        show.say(f"what keeps it: {why}", style="yellow")


def _balance(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        count = mq.balance()
    if show.is_json:
        show.result({"partitions": count})
    if count:
        show.say(f"{plural(count, 'partition')} get another leader, one after the other")
    else:
        show.say("leaders are spread evenly")
    return OK


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
