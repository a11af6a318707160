"""``pymq cluster``: brokers and zkservers, and the placement of partitions."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path

import attrs

import pymq
from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.subcommands import leaf, word, words
from pymq.cli.units import time_text
from pymq.core.counts import clause, plural
from pymq.core.metadata.descriptions import BrokerDescription, ClusterDescription
from pymq.core.metadata.nodes import Loss
from pymq.errors import ConfigError
from pymq.nodes.local_cluster import BROKERS_FROM, LocalCluster
from pymq.nodes.local_cluster import run as run_cluster

HELP = "show brokers and zkservers, and move partitions between brokers"
MAX_BROKERS = 50  # in a trial cluster on one machine
STILL_S = 5.0  # after so many seconds without progress, print the reason


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    start = leaf(there, "start", "run a whole cluster on this machine until Ctrl-C")
    start.add_argument("dir", metavar="DIR", type=Path, help="the folder of all its data")
    start.add_argument("--brokers", metavar="N", type=int, default=3, help="(%(default)s)")
    start.add_argument(
        "--port", type=int, default=7878, help="of the first zkserver (%(default)s); brokers: +10"
    )
    start.add_argument("--http", metavar="HOST:PORT", help="where to serve the page (nowhere)")
    start.add_argument(
        "--coordinator",
        metavar="URL",
        help="zookeeper://HOSTS/ROOT or sqlite:PATH (zkserver.db in DIR)",
    )
    start.add_argument(
        "--curve-dir",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="keys and policy of 'pymq keys', for zkserver, broker-0, broker-1 and so on",
    )
    start.set_defaults(do=_start)
    word(there, "status", "show brokers and the active zkserver", _status)
    reassign = word(there, "reassign", "move a partition to other brokers", _reassign)
    reassign.add_argument("topic", metavar="TOPIC")
    reassign.add_argument("partition", metavar="PARTITION")
    reassign.add_argument(
        "brokers", metavar="BROKER", nargs="+", help="the first becomes the leader"
    )
    reassign.add_argument("--move-sealed", action="store_true", help="copy older records, too")
    away = word(there, "decommission", "move all partitions off a broker", _decommission)
    away.add_argument("broker", metavar="BROKER")
    away.add_argument(
        "--wait",
        action="store_true",
        help="wait until the broker holds nothing more, and show what it still holds",
    )
    back = word(there, "recommission", "undo a decommission", _recommission)
    back.add_argument("broker", metavar="BROKER")
    word(there, "balance", "spread leaders evenly over the brokers", _balance)
    recover = word(
        there, "recover", "recover a partition without a leader from what is left", _recover
    )
    recover.add_argument("topic", metavar="TOPIC")
    recover.add_argument("partition", metavar="PARTITION")
    recover.add_argument(
        "--accept-loss", action="store_true", help="accept that acknowledged records may be lost"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the nested command."""
    return int(args.do(args, show))


def _start(args: argparse.Namespace, show: Show) -> int:
    if args.url is not None:
        raise ConfigError("--url: 'pymq cluster start' starts a cluster, and uses none")
    if not 1 <= args.brokers <= MAX_BROKERS:
        raise ConfigError(f"--brokers: from 1 to {MAX_BROKERS}, not {args.brokers}")
    if not 1 <= args.port <= 65_535 - BROKERS_FROM - args.brokers:
        raise ConfigError(f"--port: {args.port} leaves no ports for the brokers")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    cluster = LocalCluster(
        data=args.dir,
        brokers=args.brokers,
        port=args.port,
        coordinator=args.coordinator,
        http=args.http,
        curve_dir=None if args.curve_dir is None else Path(args.curve_dir),
    )
    return run_cluster(cluster, stop, lambda line: print(line, flush=True))


def _status(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        found = mq.cluster()
    if show.is_json:
        show.result(attrs.asdict(found, recurse=True))
        return OK
    tell(found, show)
    return OK


def tell(found: ClusterDescription, show: Show) -> None:
    """Print brokers, zkservers and problems."""
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
        show.say("no broker has registered yet: start one with this zkserver", style="bold red")
    if found.leaderless:
        names = ", ".join(found.leaderless)
        show.say(f"{names}: no leader; 'pymq topic describe' says why", style="bold red")
    if found.under_replicated_blocks:
        few = plural(found.under_replicated_blocks, "sealed block")
        moving = f"{found.moving_blocks:,} {'is' if found.moving_blocks == 1 else 'are'}"
        show.say(f"too few copies of {few}; {moving} being copied")
    elif found.moving_blocks:
        show.say(f"{clause(found.moving_blocks, 'sealed block', 'is', 'are')} being copied")


_TEXTS = ("broker", "state", "rack", "endpoint")


def state(broker: BrokerDescription) -> str:
    """Return a broker's state in one word."""
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
    moved = "older records are being copied" if args.move_sealed else "no older records are copied"
    show.say(f"{args.topic}/{name} {how} on {', '.join(part.replicas)}; {moved}")
    return OK


def _decommission(args: argparse.Namespace, show: Show) -> int:
    with Interrupt() as interrupt, opened(args) as mq:
        count = mq.decommission(args.broker)
        found = _wait(mq, args.broker, show, interrupt) if args.wait else None
    if show.is_json:
        left = {} if found is None else {"blocks": found.blocks, "kept_by": found.kept_by}
        show.result({"broker": args.broker, "partitions": count} | left)
    show.say(
        f"{args.broker} gets no new blocks; "
        f"{clause(count, 'partition', 'is', 'are')} moving to other brokers"
    )
    if found is None:
        show.say("its older records are being copied to other brokers; --wait waits for that")
        return OK
    if found.blocks or found.kept_by:
        show.interrupted(f"interrupted; the broker still holds {plural(found.blocks, 'block')}")
        _tell_kept(found, show)
        return INTERRUPTED
    show.say("it may be stopped: other brokers have all of its records", style="green")
    return OK


class _Enough(Exception):  # not an error: it ends a wait
    """The user has interrupted the wait."""


def _wait(mq: pymq.Client, broker: str, show: Show, interrupt: Interrupt) -> BrokerDescription:
    """Wait until a broker holds no blocks, or until an interrupt; print why it still holds some."""
    last: list[BrokerDescription] = []
    total, changed_at, is_told = 0, time.monotonic(), False
    (first,) = [found for found in mq.cluster().brokers if found.name == broker]
    total = first.blocks

    with show.progress("moved", total, "block", is_told=False) as step:

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
        show.say(f"{clause(count, 'partition', 'gets', 'get')} another leader, one at a time")
    else:
        show.say("leaders are already spread evenly")
    return OK


def _recommission(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        changed = mq.recommission(args.broker)
    if show.is_json:
        show.result({"broker": args.broker, "changed": changed})
    again = "again" if changed else "as before"
    show.say(f"{args.broker} gets new blocks {again}")
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
    """Describe the records that a recovered partition may have lost."""
    if loss is None:
        show.say("nothing to recover: the partition has a leader, or will soon have one")
        return
    show.say(
        f"it continues with the records of {loss.holder or 'no broker'}; records from offset "
        f"{loss.offset:,} "
        f"on may have been lost at {time_text(loss.at_ms)}",
        style="bold yellow",
    )
