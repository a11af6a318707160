"""``pymq doctor``: finds out why a client cannot connect or a consumer gets no records."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

import pymq
from pymq.cli import connect
from pymq.cli.connect import folder_of, url_of
from pymq.cli.diagnosis.checks import Finding, fail, ok
from pymq.cli.diagnosis.connectivity import (
    ANSWER_S,
    answer_check,
    endpoint_checks,
    folder_checks,
    key_checks,
)
from pymq.cli.diagnosis.health import cluster_checks, group_checks, guarded, topic_checks
from pymq.cli.diagnosis.kafka import kafka_check
from pymq.cli.show import FAILED, OK, Show
from pymq.core import message as msg
from pymq.core.counts import plural
from pymq.errors import PymqError, RequestTimeout

if TYPE_CHECKING:
    from pymq.nodes.remote import ClusterAddress
    from pymq.transport.tcp.transport import TcpTransport
    from pymq.transport.zeromq.transport import ZmqTransport

HELP = "find out why a connection or a delivery fails"
FIRST_S = 0.5  # timeout of the first request to a zkserver; doubles with each retry
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("--topic", help="check only this one")
    parser.add_argument("--group", help="check only this one")


def run(args: argparse.Namespace, show: Show) -> int:
    """Run all checks and print each result at once; return 1 if one fails."""
    found = []
    for check in _checks(args):
        found.append(check)
        show.say(f"{check.state:<4}  {check.name}: {check.found}", style=STYLES[check.state])
        if check.next_step is not None:
            show.say(f"      next: {check.next_step}")
    failed = sum(check.state == "fail" for check in found)
    warned = sum(check.state == "warn" for check in found)
    if show.is_json:
        show.result({"ok": not failed, "checks": [attrs.asdict(check) for check in found]})
    elif failed or warned:
        show.say(f"{plural(len(found), 'check')}, {failed} failed, {warned} with a warning")
    else:
        show.say(f"{plural(len(found), 'check')}, all passed")
    return FAILED if failed else OK


def _checks(args: argparse.Namespace) -> Iterator[Finding]:
    yield ok("pymq", f"version {pymq.__version__}, protocol {_protocol()}")
    url = url_of(args)
    folder = folder_of(url)
    if folder is not None:
        yield from _of_folder(args, folder)
    else:
        yield from _of_cluster(args, url)


def _protocol() -> str:
    try:
        from pymq.transport.wire import VERSIONS
    except ImportError:
        return "none: pyzmq is not installed"
    return "-".join(map(str, sorted(set(VERSIONS))))


def _of_folder(args: argparse.Namespace, folder: str) -> Iterator[Finding]:
    is_there = True
    for check in folder_checks(folder):
        is_there = is_there and check.state != "fail"
        yield check
    if not is_there:
        return
    try:
        mq = pymq.open(folder)
    except PymqError as error:
        step = {
            "STORE_LOCKED": "one process at a time can open a folder: stop the other one, or start "
            "a broker for several processes",
            "STORE_FULL": "free some space on the disk",
        }.get(error.code, f"'pymq verify {folder}' says what is damaged")
        yield fail(f"folder {folder}", f"{error} ({error.code})", step)
        return
    with mq:
        yield ok(f"folder {folder}", "it opens")
        yield from _health(mq, args)


def _health(mq: pymq.Client, args: argparse.Namespace) -> Iterator[Finding]:
    yield from guarded("brokers", cluster_checks(mq))
    yield from guarded("topics", topic_checks(mq, args.topic))
    yield from guarded("groups", group_checks(mq, args.topic, args.group))


# --- clusters -----------------------------------------------------------------------------------


def _of_cluster(args: argparse.Namespace, url: str) -> Iterator[Finding]:
    from pymq.nodes.remote import parse_url  # on demand: most commands need no network

    try:
        where = parse_url(url, args.curve_dir, args.principal, args.tls_dir)
    except PymqError as error:
        yield fail("url", str(error), "a folder, or zmq+tcp://HOST:PORT,HOST:PORT of zkservers")
        return
    count = plural(len(where.controllers), "zkserver")
    yield ok("url", f"{count}: {', '.join(where.controllers)}")
    has_keys = where.curve_dir is not None
    if where.curve_dir is not None:
        checks = list(key_checks(where.curve_dir, where.principal, where.controllers))
        yield from checks
        if checks[0].state == "fail":
            return
    there = []
    for endpoint in where.controllers:
        state = ""
        for check in endpoint_checks("zkserver", endpoint, has_keys=has_keys):
            state = check.state
            yield check
        if state == "ok":
            there.append(endpoint)
    if there:
        yield from _asked(args, where, there)


def _asked(args: argparse.Namespace, where: ClusterAddress, there: list[str]) -> Iterator[Finding]:
    """Check that each reachable zkserver answers; then check the cluster's health through the
    active one.
    """
    from pymq.nodes.remote import connect as connected
    from pymq.nodes.remote import open_transport

    with ExitStack() as stack:
        transport = open_transport(where)
        try:
            mq = stack.enter_context(connected(transport.node, transport, where.controllers))
        except BaseException:
            transport.close()
            raise
        active = None
        for endpoint in there:
            cluster, error = _who(mq, endpoint, transport)
            active = cluster or active
            yield answer_check(endpoint, error, transport.problem)
        if active is None:
            yield fail(
                "controller",
                "no zkserver is active",
                "a zkserver becomes active once it reaches its coordinator (ZooKeeper): see the "
                "zkservers' logs",
            )
            return
        yield ok("controller", f"{active.controller}, epoch {active.controller_epoch}")
        for broker in active.brokers:
            if broker.alive:
                has_keys = where.curve_dir is not None
                what = f"broker {broker.name}"
                for check in endpoint_checks(what, broker.endpoint, has_keys=has_keys):
                    yield _advertised(check)
                if broker.kafka:
                    yield kafka_check(f"{what} for Kafka's clients", broker.kafka)
        yield from _health(mq, args)


def _who(
    mq: pymq.Client, endpoint: str, transport: ZmqTransport | TcpTransport
) -> tuple[pymq.ClusterDescription | None, PymqError | None]:
    """Return a zkserver's description of itself; do not wait long for a zkserver that refuses the
    key.
    """
    patience, until = FIRST_S, time.monotonic() + ANSWER_S
    while True:
        try:
            return mq.questions.ask(msg.DescribeCluster, peer=endpoint, timeout=patience), None
        except RequestTimeout as error:
            if transport.problem or time.monotonic() >= until:
                return None, error
        except PymqError as error:
            return None, error
        patience *= 2


def _advertised(check: Finding) -> Finding:
    if check.state != "fail":
        return check
    step = (
        "clients connect to the endpoint that a broker advertises: start it with an --advertise "
        f"tcp://HOST:PORT that works from here; or {check.next_step}"
    )
    return attrs.evolve(check, next_step=step)
