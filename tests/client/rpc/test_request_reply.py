"""Request and reply, on every kind of queue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq import aio
from pymq.client.rpc.mailbox import REPLIES, REPLY_TO, REQUEST_ID, Pending, ReplyMailbox
from pymq.client.rpc.responder import Responder
from pymq.core.batch.record import Record
from pymq.errors import (
    ConfigError,
    InvalidName,
    NoResponders,
    RequestFailed,
    RequestTimeout,
)
from pymq.testing import Cluster
from pymq.testing.child import environment
from tests.client.helpers import produce, wait_until

SECONDS = 60.0


def upper(request: pymq.Request) -> bytes:
    return request.value.upper()


# --- requests -----------------------------------------------------------------------------------


def test_a_reply_comes_back(mq: pymq.Client) -> None:
    seen: list[pymq.Request] = []

    @mq.reply("greet")
    def greet(request: pymq.Request) -> bytes:
        seen.append(request)
        return b"hello, " + request.value

    reply = mq.request("greet", b"Ada", SECONDS, key=b"k", headers=[("h", b"1")])
    assert reply.value == b"hello, Ada"
    (request,) = seen
    assert (request.service, request.key, request.delivery_count) == ("greet", b"k", 1)
    assert ("h", b"1") in request.headers
    assert request.deadline_ms is not None
    assert greet(request) == b"hello, Ada"  # the decorated function is the same as before
    assert mq.describe_group("greet").members != ()


def test_each_request_gets_its_own_reply(mq: pymq.Client) -> None:
    """Many threads send requests to a few responders, and each gets its own reply."""
    mq.reply("upper", upper, workers=3)
    wrong: list[bytes] = []

    def ask(name: bytes) -> None:
        for number in range(20):
            value = b"%b-%d" % (name, number)
            if mq.request("upper", value, SECONDS).value != value.upper():
                wrong.append(value)

    threads = [threading.Thread(target=ask, args=(b"%c" % (97 + i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert wrong == []
    assert set(mq.topics()) == {"upper", REPLIES}


def test_nobody_answers(mq: pymq.Client) -> None:
    """The call raises at once, with and without a topic and a group of that name."""
    with pytest.raises(NoResponders, match="nobody answers requests of 'nothing'"):
        mq.request("nothing", b"x", timeout=1e6)
    mq.create_topic("jobs")
    with pytest.raises(NoResponders):
        mq.request("jobs", b"x", timeout=1e6)
    with mq.reply("jobs", upper):
        assert mq.request("jobs", b"x", SECONDS).value == b"X"
    with pytest.raises(NoResponders):
        mq.request("jobs", b"x", timeout=1e6)
    assert mq.topics() == ["jobs", REPLIES]


def test_a_handler_that_fails(mq: pymq.Client) -> None:
    """The asking client gets the handler's error, and the next request gets its reply."""

    @mq.reply("divide")
    def divide(request: pymq.Request) -> bytes:
        return b"%d" % (100 // int(request.value))

    with pytest.raises(RequestFailed, match="ZeroDivisionError: "):
        mq.request("divide", b"0", SECONDS)
    with pytest.raises(RequestFailed, match="ValueError: invalid literal"):
        mq.request("divide", b"x", SECONDS)
    assert mq.request("divide", b"4", SECONDS).value == b"25"


def test_what_a_handler_may_return(mq: pymq.Client) -> None:
    answers: dict[bytes, Any] = {b"none": None, b"bytes": bytearray(b"x"), b"text": "x"}
    mq.reply("echo", lambda request: answers[request.value])
    assert mq.request("echo", b"none", SECONDS).value == b""
    assert mq.request("echo", b"bytes", SECONDS).value == b"x"
    with pytest.raises(RequestFailed, match="a handler returns bytes or None, not str"):
        mq.request("echo", b"text", SECONDS)


def test_a_request_that_is_late(mq: pymq.Client) -> None:
    """A late request is abandoned, its reply is ignored, and an expired one is not carried out."""
    may_go_on, has_begun = threading.Event(), threading.Event()
    done: list[bytes] = []

    def slow(request: pymq.Request) -> bytes:
        done.append(request.value)
        has_begun.set()
        may_go_on.wait(SECONDS)
        return request.value

    mq.reply("slow", slow)
    with pytest.raises(RequestTimeout, match="no reply of 'slow' in time"):
        mq.request("slow", b"first", 0.2)
    assert has_begun.wait(SECONDS)
    with pytest.raises(RequestTimeout):
        mq.request("slow", b"second", 0.05)
    may_go_on.set()
    assert mq.request("slow", b"third", SECONDS).value == b"third"
    assert done == [b"first", b"third"]


def test_an_ordinary_record_is_worked_on_too(mq: pymq.Client) -> None:
    """A record without headers of a request gets no reply."""
    done = threading.Event()
    mq.create_topic("jobs")
    produce(mq, "jobs", [b"x"])
    mq.reply("jobs", lambda request: done.set())
    assert done.wait(SECONDS)
    wait_until(lambda: sum(mq.describe_group("jobs").lag.values()) == 0)
    assert mq.topics() == ["jobs"]


def test_a_request_chooses_no_topic_for_its_reply(mq: pymq.Client) -> None:
    """If the partition for the reply does not exist, only that request fails."""
    mq.reply("upper", upper)
    assert mq.request("upper", b"a", SECONDS).value == b"A"
    with mq.producer() as producer:
        for bad in (b"999", b"\xff", b"other/0", b""):
            headers = [(REPLY_TO, bad), (REQUEST_ID, b"1")]
            producer.send("upper", b"x", headers=headers).result(SECONDS)
    assert mq.request("upper", b"b", SECONDS).value == b"B"


def test_replies_of_others_are_left_out() -> None:
    mailbox = ReplyMailbox(b"me", "0")
    pending = Pending()
    id = mailbox.add(pending)
    other = Record(REPLIES, "0", 0, 0, None, b"other", ((REQUEST_ID, b"you-1"),))
    mine = Record(REPLIES, "0", 1, 0, None, b"mine", ((REQUEST_ID, id),))
    mailbox.deliver([other, other._replace(headers=()), mine, mine._replace(value=b"again")])
    assert pending.result() == mine


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda mq: mq.request("x", b"v", timeout=0), ConfigError),
        (lambda mq: mq.request("x", b"v", timeout="2"), ConfigError),
        (lambda mq: mq.request("a/b", b"v"), InvalidName),
        (lambda mq: mq.reply("a/b"), InvalidName),
        (lambda mq: mq.reply("x", 5), ConfigError),
        (lambda mq: mq.reply("x", upper, workers=0), ConfigError),
        (lambda mq: mq.reply("x", upper, ack_wait=5), ConfigError),
    ],
)
def test_wrong_calls_are_refused(mq: pymq.Client, call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(mq)


def test_closing_ends_the_request_at_work() -> None:
    """The responder leaves no thread."""
    before = set(threading.enumerate())
    has_begun, may_go_on = threading.Event(), threading.Event()
    replies: list[bytes] = []

    def slow(request: pymq.Request) -> bytes:
        has_begun.set()
        may_go_on.wait(SECONDS)
        return b"done"

    with pymq.open("memory:") as mq:
        responder = mq.reply("slow", slow, workers=2)
        asking = threading.Thread(
            target=lambda: replies.append(mq.request("slow", b"x", SECONDS).value)
        )
        asking.start()
        assert has_begun.wait(SECONDS)
        closing = threading.Thread(target=responder.close)
        closing.start()
        may_go_on.set()
        closing.join(SECONDS)
        asking.join(SECONDS)
        assert replies == [b"done"]
    assert {thread for thread in threading.enumerate() if "reply" in thread.name} <= before


# --- three brokers ------------------------------------------------------------------------------

WORKER = """
import sys, time, pymq
with pymq.open(sys.argv[1]) as mq:
    def handler(request):
        print("got", request.delivery_count, flush=True)
        if sys.argv[2] == "stuck":
            time.sleep(1000)
        return b"by the second"
    mq.reply("work", handler, session_timeout_s=1.0)
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def worker(url: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_responder_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """On three brokers: after a kill another process gets the request, with delivery count 2."""
    with pymq.ZkServer(offsets_partitions=1).start() as zkserver:
        brokers = [
            pymq.Broker(f"broker-{i}", zkservers=[zkserver.endpoint], data=tmp_path / str(i))
            for i in range(3)
        ]
        for broker in brokers:
            broker.start()
        url = f"zmq+{zkserver.endpoint}"
        found: list[bytes] = []
        try:
            with pymq.open(url) as mq, worker(url, "stuck") as stuck:
                assert stuck.stdout is not None
                asking = threading.Thread(
                    target=lambda: found.append(mq.request("work", b"x", SECONDS).value)
                )
                asking.start()
                assert stuck.stdout.readline() == "got 1\n"
                with worker(url, "quick") as quick:
                    assert quick.stdout is not None
                    stuck.kill()
                    assert quick.stdout.readline() == "got 2\n"
                    asking.join(SECONDS)
                replies = mq.describe_topic(REPLIES)
                assert len(replies.partitions[0].replicas) == 3
        finally:
            for broker in brokers:
                broker.close()
    assert found == [b"by the second"]


# --- in a simulation ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_leaders_that_crash_lose_no_request(seed: int) -> None:
    """Each request is answered, although the leaders of requests or replies crash meanwhile."""
    with Cluster(brokers=3, seed=seed) as cluster:
        asking, answering = cluster.client(), cluster.client()
        asking.create_topic("upper", replicas=3, acks="raft")
        responder = Responder(answering, "upper", upper, 1, {})
        requester = asking._requests()
        for number in range(8):
            value = b"x%d" % number
            id, pending, until = requester.submit("upper", value, None, None, 120.0)
            topic = "upper" if number % 2 == 0 else REPLIES
            if number in (2, 5):
                partition = requester._mailbox.partition if requester._mailbox else "0"
                name = "0" if topic == "upper" else partition
                parts = {p.name: p for p in asking.describe_topic(topic).partitions}
                leader = parts[name].leader
                assert leader is not None
                cluster.crash(leader)
                cluster.restart(leader)
            # If an acknowledgement is lost with a broker, its request is answered a second time
            # before the pending one.
            while pending.reply is None and cluster.now < until:
                responder.serve(0.05)
                requester.read(pending, 0.05)
            assert requester.wait("upper", id, pending, until).value == value.upper()
        responder.close()


def test_a_responder_that_has_just_left_is_missed_at_once() -> None:
    """The same holds for a client that asked the service less than a second ago."""
    with Cluster(brokers=3) as cluster:
        asking, answering = cluster.client(), cluster.client()
        asking.create_topic("upper", replicas=3, acks="raft")
        responder = Responder(answering, "upper", upper, 1, {})
        requester = asking._requests()
        id, pending, until = requester.submit("upper", b"x", None, None, 60.0)
        while pending.reply is None:
            responder.serve(0.05)
            requester.read(pending, 0.05)
        assert requester.wait("upper", id, pending, until).value == b"X"
        responder.close()
        began = cluster.now
        with pytest.raises(NoResponders):
            asking.request("upper", b"x", timeout=60)
        assert cluster.now - began < 0.2


class Died(BaseException):
    """Ends a process in the middle of a handler."""


def test_a_responder_that_dies_at_work_is_replaced() -> None:
    """The request was not acknowledged, so another responder answers it."""

    def dies(request: pymq.Request) -> bytes:
        raise Died

    with Cluster(brokers=1) as cluster:
        asking, dying, other = cluster.client(), cluster.client("dying"), cluster.client()
        asking.create_topic("upper")
        first = Responder(dying, "upper", dies, 1, {"session_timeout_s": 1.0})
        requester = asking._requests()
        id, pending, until = requester.submit("upper", b"x", None, None, 60.0)
        with pytest.raises(Died):
            first.serve(5.0)
        cluster.crash("dying")
        second = Responder(other, "upper", upper, 1, {})
        assert second.serve(30.0) == 1
        requester.read(pending, 5.0)
        assert requester.wait("upper", id, pending, until).value == b"X"
        second.close()


# --- asyncio ------------------------------------------------------------------------------------


def test_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.open(tmp_path / "data") as mq:
            with pytest.raises(NoResponders):
                await mq.request("upper", b"x", timeout=1e6)
            most = now = 0

            async def slow(request: pymq.Request) -> bytes:
                nonlocal most, now
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.01)
                now -= 1
                if request.value == b"bad":
                    raise ValueError("no price")
                return request.value.upper()

            async with mq.reply("upper", slow, workers=8) as responder:
                assert responder.service == "upper"
                asked = [mq.request("upper", b"x%d" % i, SECONDS) for i in range(40)]
                replies = await asyncio.gather(*asked)
                assert [reply.value for reply in replies] == [b"X%d" % i for i in range(40)]
                assert 1 < most <= 8
                with pytest.raises(RequestFailed, match="ValueError: no price"):
                    await mq.request("upper", b"bad", SECONDS)
                with pytest.raises(RequestTimeout):
                    await mq.request("upper", b"late", 0.005)
            with pytest.raises(NoResponders):
                await mq.request("upper", b"x", timeout=1e6)

            @mq.reply("lower")
            def lower(request: pymq.Request) -> bytes:
                return request.value.lower()

            await asyncio.wait(mq._starting)
            assert (await mq.request("lower", b"X", SECONDS)).value == b"x"

    asyncio.run(asyncio.wait_for(run(), 120))
