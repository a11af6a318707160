"""A broker sent its report of a block's end to one zkserver, and the report arrives at the next
one.
"""

from __future__ import annotations

from functools import partial

import pytest

from pymq import Client
from pymq.core.message import Message, Seal, Sealed
from pymq.testing import Cluster
from pymq.testing.simulation.network import NetworkLink
from pymq.testing.simulation.process import Process
from tests.testing.test_takeovers import leader, slow_cluster

ZKSERVER = "zkserver-0"
Told = list[tuple[str, str, Message]]


def given_up(c: Cluster, mq: Client, old: str) -> Told:
    """Return the reports of followers to a zkserver that loses its session before it can take over.

    The leader then reaches the next zkserver again, and continues.
    """
    told: Told = []

    def hear(process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, Sealed) and message.error is None:
            told.append((process.name, source, message))

    for name in c.brokers:
        if name != old:
            c.brokers[name].on_send.setdefault(Sealed, []).append(hear)
    cut = c.cut(old, ZKSERVER)
    c.run_until(lambda: len(told) == len(c.brokers) - 1)
    c.heal(cut)
    c.expire_session(ZKSERVER)
    c.ensemble.latency_us = 500
    c.run_until(lambda: leader(mq) == old)
    return list(told)


def arrive(link: NetworkLink, source: str, message: Message, *_: object) -> None:
    """Deliver a message that was delayed."""
    link.receive(ZKSERVER, source, message)


def bring_late(c: Cluster, told: Told) -> None:
    """Deliver *told* as soon as the zkserver sends its request again."""
    left = list(told)

    def asked(process: Process, peer: str, source: str, message: Message) -> None:
        while left:
            name, machine, late = left.pop()
            link = c.network.link(name, ZKSERVER)
            c.world.after(1, partial(arrive, link, machine, late))

    c.zkservers[ZKSERVER].on_send.setdefault(Seal, []).append(asked)


@pytest.mark.parametrize("is_takeover", [False, True])
def test_what_was_told_to_the_zkserver_before_does_not_end_the_block(*, is_takeover: bool) -> None:
    """Since that report the leader has continued in the block, and has acknowledged records."""
    with slow_cluster(brokers=3) as c:
        mq = c.client()
        mq.create_topic("t", acks="leader", replicas=3)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result()
            old = leader(mq)
            assert old is not None
            told = given_up(c, mq, old)
            for number in range(10):
                producer.send("t", b"%d" % number).result()
            c.run(seconds=1)
            bring_late(c, told)
            if is_takeover:
                c.crash(old, "all")
            else:
                mq.reassign("t", "0", [name for name in c.brokers if name != old])
            c.run(seconds=5)
        reader = mq.consumer("t", mode="psb", offset="begin")
        assert [record.value for record in reader.until_end()][1:] == [
            b"%d" % number for number in range(10)
        ]
