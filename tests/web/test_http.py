"""The HTTP server's answers and refusals to several kinds of clients."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pymq
from pymq import web
from pymq.core.batch.view import RecordBatch
from pymq.core.observe.metrics import Metrics
from pymq.errors import ConfigError
from pymq.testing import Cluster
from pymq.web.app import FILES, WebApp
from pymq.web.authentication import Authentication
from pymq.web.server import BODY_MAX, CONNECTIONS_MAX
from pymq.web.snapshots import ClusterSnapshot
from tests.web.helpers import TOKEN, ask

PAGE = Path(web.__file__).parent / "page"
PATHS = ("/", "/app.js", "/style.css", "/api/state", "/metrics", "/health", "/nothing", "/login")


@pytest.fixture
def server(mq: pymq.Client) -> Iterator[web.Server]:
    with web.serve(mq, token=TOKEN) as serving:
        yield serving


def test_metrics_are_what_prometheus_reads(server: web.Server) -> None:
    answer = ask(server, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("topic", "orders") == "orders"
    }
    assert found["pymq_messages_in_total"] == 102
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert found["process_start_time_seconds"] <= time.time()


def test_the_whole_and_its_parts(server: web.Server) -> None:
    state = ask(server, "/api/state").json
    assert state["problem"] is None
    assert not state["writable"]
    assert [broker["alive"] for broker in state["cluster"]["brokers"]] == [True]
    orders = next(topic for topic in state["topics"] if topic["name"] == "orders")
    assert (orders["partitions"], orders["blocks"], orders["records"]) == (2, 3, 102)
    assert orders["acks"] == ["leader", "raft"]
    (group,) = state["groups"]
    assert (group["name"], group["lag"], group["members"]) == ("billing", 92, 0)
    topic = ask(server, "/api/topic?name=orders").json
    first, second = topic["partitions"][0]["blocks"]
    assert (first["start"], first["end"], first["acks"], first["open"]) == (0, 100, "leader", False)
    assert (second["start"], second["end"], second["acks"]) == (100, 101, "raft")
    assert second["open"]
    assert topic["config"]["block_bytes"] == 128 << 20
    offsets = ask(server, "/api/group?name=billing").json["offsets"]
    assert sum(offset["lag"] for offset in offsets) == 92


def test_records_are_shown_and_cut(server: web.Server, mq: pymq.Client) -> None:
    def records(**query: object) -> Any:
        text = "&".join(f"{name}={found}" for name, found in query.items())
        return ask(server, f"/api/records?topic=orders&{text}").json

    before = mq.metrics()["pymq_consumers"]
    last = records(partition=0)
    shown = last["records"]
    assert (last["from"], last["to"], last["end"], len(shown)) == (51, 101, 101, 50)
    assert shown[0]["value"] == {"size": 9, "text": '{"n": 51}', "cut": False}
    assert shown[-1]["value"] == {"size": 2, "hex": "00 ff", "cut": False}
    assert shown[-1]["key"]["text"] == "k"
    assert shown[-1]["headers"] == [["trace", {"size": 3, "text": "abc", "cut": False}]]
    (large,) = records(partition=1)["records"]
    assert large["value"] == {"size": 5_000, "text": "x" * 4_096, "cut": True}
    few = records(partition=0, offset=7, limit=2)
    assert [r["offset"] for r in few["records"]] == [7, 8]
    assert records(partition=0, offset=10**9)["from"] == 101
    at = shown[-1]["timestamp_ms"]
    assert records(partition=0, time_ms=at)["from"] in range(102)
    assert records(partition=0, time_ms=at + 10**9)["records"] == []
    assert mq.metrics()["pymq_consumers"] == before
    for query, status in (
        ("topic=orders&partition=9", 404),
        ("topic=nothing", 404),
        ("topic=orders&offset=-1", 400),
        ("topic=orders&limit=x", 400),
        ("topic=__consumer_offsets", 403),
        ("", 404),
    ):
        assert ask(server, f"/api/records?{query}").status == status, query


def test_whoever_has_no_token_learns_nothing(server: web.Server) -> None:
    for token in (None, "", "x", TOKEN + "x", TOKEN[:-1], "\u00fc"):
        for path in ("/api/state", "/api/topic?name=orders", "/metrics"):
            answer = ask(server, path, token=token)
            # 429: too many wrong tokens
            assert answer.status == 401 or (answer.status == 429 and token)
            assert "orders" not in answer.text
    assert TOKEN not in server.address
    assert server.url.endswith(f"#token={TOKEN}")


def test_a_browser_gets_a_cookie_for_its_token(server: web.Server) -> None:
    assert ask(server, "/login", "POST", body={"token": "wrong"}, token=None).status == 401
    assert ask(server, "/login", "POST", body=["token"], token=None).status == 401
    answer = ask(server, "/login", "POST", body={"token": TOKEN}, token=None)
    cookie, *flags = answer.headers["set-cookie"].split("; ")
    assert set(flags) >= {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert TOKEN not in cookie
    sent = {"Cookie": f"other=1; {cookie}"}
    assert ask(server, "/api/state", token=None, headers=sent).status == 200
    assert ask(server, "/logout", "POST", body={}, token=None, headers=sent).status == 200
    assert ask(server, "/api/state", token=None, headers=sent).status == 401


def test_every_answer_keeps_a_browser_from_being_talked_into_things(server: web.Server) -> None:
    for path in PATHS:
        for token in (TOKEN, None):
            headers = ask(server, path, token=token).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            for kind in ("opener", "resource"):
                assert headers[f"cross-origin-{kind}-policy"] == "same-origin"


def test_other_sites_cannot_speak_for_the_user(server: web.Server) -> None:
    """A page of another site cannot send requests in the user's name, neither by a host name that
    resolves to this server nor by forms.
    """
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", ""):
        assert ask(server, "/api/state", headers={"Host": host}).status == 421
    for host in ("localhost", f"LOCALHOST:{server.port}", "[::1]:1"):
        assert ask(server, "/api/state", headers={"Host": host}).status == 200
    body = {"token": TOKEN}
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        answer = ask(server, "/login", "POST", body=body, headers={"Origin": origin})
        assert answer.status == 403
    own = {"Origin": server.address.rstrip("/")}
    assert ask(server, "/login", "POST", body=body, headers=own).status == 200
    plain = {"Content-Type": "text/plain"}
    assert ask(server, "/login", "POST", body=body, headers=plain).status == 403


def test_it_is_read_only_unless_it_was_allowed(server: web.Server, mq: pymq.Client) -> None:
    new = {"topic": "new", "partitions": 3, "replicas": 1, "acks": "raft"}
    assert ask(server, "/api/create", "POST", body=new).status == 403
    assert "new" not in mq.topics()
    with web.serve(mq, token=TOKEN, writable=True) as writable:
        assert ask(writable, "/api/create", "POST", body=new).status == 200
        assert len(mq.describe_topic("new").partitions) == 3
        assert ask(writable, "/api/create", "POST", body=new).status == 409
        change = {"topic": "new", "partition": "0", "acks": "leader"}
        assert ask(writable, "/api/acks", "POST", body=change).status == 200
        record = {"topic": "new", "key": "k", "value": "v"}
        where = ask(writable, "/api/send", "POST", body=record).json
        assert where["offset"] == 0
        for path, body in (
            ("send", {"topic": "new", "value": 1}),
            ("send", {}),
            ("create", {**new, "partitions": "3"}),
            ("create", {**new, "topic": "a/b"}),
            ("nothing", new),
        ):
            assert ask(writable, f"/api/{path}", "POST", body=body).status == 400, path
        assert ask(writable, "/api/create", "POST", body=new, token=None).status == 401


def test_bad_requests_are_answered(server: web.Server) -> None:
    assert ask(server, "/nothing").status == 404
    assert ask(server, "/../../etc/passwd").status == 404
    assert ask(server, "/page/app.js").status == 404
    assert ask(server, "/", "HEAD").text == ""
    assert ask(server, "/", "PUT").status == 501
    assert ask(server, "/api/state?" + "&".join("a=1" for _ in range(100))).status == 400
    assert ask(server, "/login", "POST", body="x" * BODY_MAX).status == 413


def test_connections_are_bounded_and_end_with_the_server(mq: pymq.Client) -> None:
    """Silent clients neither keep others out forever nor delay the server's end."""
    server = web.serve(mq, token=TOKEN)
    idle = [
        socket.create_connection((server.host, server.port)) for _ in range(CONNECTIONS_MAX + 5)
    ]
    try:
        refused: list[socket.socket] = []
        until = time.monotonic() + 30
        while len(refused) < 5:
            assert time.monotonic() < until
            refused = select.select(idle, [], [], 1)[0]
        assert len(refused) == 5
        next(connection for connection in idle if connection not in refused).close()
        until = time.monotonic() + 30
        while True:
            try:
                assert ask(server, "/health").status == 200
                break
            # the server has not noticed yet that a client has left
            except (ConnectionError, OSError):
                assert time.monotonic() < until
        server.close()
        server.close()
        assert all(map(_is_closed, idle))
        with pytest.raises(ConnectionRefusedError):
            ask(server, "/health")
    finally:
        server.close()
        for connection in idle:
            connection.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        connection.settimeout(10)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize(
    "listen",
    ["8080", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:99999", "a b:1", "\N{SNOWMAN}:1"],
)
def test_what_is_no_address_is_refused(mq: pymq.Client, listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        web.serve(mq, listen)


def test_the_network_is_not_listened_to_by_chance(mq: pymq.Client, server: web.Server) -> None:
    for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
        with pytest.raises(ConfigError, match="open to the network"):
            web.serve(mq, listen)
    with pytest.raises(ConfigError, match="cannot be listened to"):
        web.serve(mq, f"127.0.0.1:{server.port}")


def test_the_page_needs_nothing_from_outside() -> None:
    """The page loads nothing from other hosts, creates no markup from text, and its policy has no
    exception.
    """
    for path in sorted(PAGE.iterdir()):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text
        ), path
        assert not re.search(r"\bstyle\s*=|<style|\son[a-z]+\s*=\s*[\"']", text), path
    assert {path.name for path in PAGE.iterdir()} == {name for name, _ in FILES.values()}


# --- what a stranger may try --------------------------------------------------------------------


def raw(server: web.Server, data: bytes) -> bytes:
    """Send some bytes; returns all output until the server ends the connection."""
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
    return found


def test_what_is_no_text_is_no_token_and_no_record(mq: pymq.Client) -> None:
    """Half of a surrogate pair in JSON is an error of the client, without a traceback in the
    log.
    """
    with web.serve(mq, token=TOKEN, writable=True) as server:
        assert ask(server, "/login", "POST", token=None, body={"token": "\ud800"}).status == 401
        for record in ({"value": "\ud800"}, {"value": "x", "key": "\udfff"}):
            answer = ask(server, "/api/send", "POST", body={"topic": "orders", **record})
            assert (answer.status, answer.json["code"]) == (400, "INVALID_REQUEST")


def test_cookies_of_others_on_this_host_do_not_hide_ours(server: web.Server) -> None:
    given = ask(server, "/login", "POST", token=None, body={"token": TOKEN}).headers["set-cookie"]
    ours = given.split(";")[0]
    for others in ('theme={"dark": true}; ', "a b=c; ", "=; ;", 'x="'):
        cookie = f"{others}; {ours}"
        assert ask(server, "/api/state", token=None, headers={"Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: " + "9" * 5_000,
        "Content-Length: -1",
        "Content-Length: 2\r\nContent-Length: 40",
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked",
    ],
)
def test_a_body_has_one_plain_length(server: web.Server, lengths: str) -> None:
    """A request must have exactly one plain length.

    Otherwise two servers may disagree on its end.
    """
    head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lengths}"
    found = raw(server, head.encode() + b"\r\n\r\n{}GET /health HTTP/1.1\r\n\r\n")
    assert found.count(b"HTTP/1.1 ") == found.count(b"HTTP/1.1 413 ") == 1


def test_the_body_of_a_request_without_one_is_no_request(server: web.Server) -> None:
    hidden = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hidden)}\r\n\r\n"
    found = raw(server, head.encode() + hidden)
    assert found.count(b"HTTP/1.1 ") == found.count(b"HTTP/1.1 200 ") == 1


def test_who_says_a_byte_now_and_then_is_let_go(
    mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that sends a byte from time to time is closed: some dozen of these would keep
    all other clients out.
    """
    monkeypatch.setattr("pymq.web.server.REQUEST_S", 0.5)
    with web.serve(mq, token=TOKEN) as server:
        with socket.create_connection((server.host, server.port)) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\n")
            until = time.monotonic() + 60
            while not _is_over(slow):
                assert time.monotonic() < until
        assert ask(server, "/health").status == 200


def _is_over(connection: socket.socket) -> bool:
    """Send a byte, and return whether the connection has ended."""
    try:
        connection.sendall(b"X: y\r\n")
        connection.settimeout(0.1)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("listen", ["127.0.0.1.example:0", "127.1:0", "localhost.example:0"])
def test_a_name_that_only_looks_local_is_the_networks(mq: pymq.Client, listen: str) -> None:
    with pytest.raises(ConfigError, match="open to the network"):
        web.serve(mq, listen)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_closes_nothing_of_its_parents(server: web.Server) -> None:
    """A forked child does not wait for a thread of the parent."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        server.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert ask(server, "/health").status == 200


def test_a_large_batch_is_not_decoded_for_a_few_records(
    mq: pymq.Client, server: web.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    records = RecordBatch.records

    def counted(view: RecordBatch) -> list[pymq.Record]:
        decoded.append(len(view))
        return records(view)

    monkeypatch.setattr(RecordBatch, "records", counted)
    with mq.producer() as producer:
        producer.send_many("clicks", [b"x"] * 20_000, partition=0)
    for offset in ("begin", "19000", "end"):
        found = ask(server, f"/api/records?topic=clicks&offset={offset}&limit=5").json
        assert len(found["records"]) == 5
    assert sum(decoded) == 15


def test_brokers_are_shown_when_nobody_coordinates_groups() -> None:
    """Without an active zkserver the page shows the brokers, which an operator needs just then."""
    with Cluster(brokers=3, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("orders", replicas=3, acks="raft")
        mq.reset_group("billing", "orders", 0)
        desk = ClusterSnapshot(mq, lambda: cluster.now)
        assert [group["name"] for group in desk.state()["groups"]] == ["billing"]
        cluster.crash("broker-1")
        cluster.crash("broker-2")
        cluster.run(seconds=20)
        state = desk.state()
        assert state["problem"] is None
        alive = {broker["name"]: broker["alive"] for broker in state["cluster"]["brokers"]}
        assert alive == {"broker-0": True, "broker-1": False, "broker-2": False}
        assert [group["name"] for group in state["groups"]] == ["billing"]
        assert "does not answer" in state["notes"][0]


def test_silent_connections_keep_nobody_out(server: web.Server) -> None:
    """The largest allowed number of silent connections does not keep other clients out."""
    silent = [socket.create_connection((server.host, server.port)) for _ in range(CONNECTIONS_MAX)]
    try:
        for _ in range(10):
            assert ask(server, "/health").status == 200
    finally:
        for connection in silent:
            connection.close()


def test_who_does_not_read_his_answers_keeps_nobody_out(server: web.Server) -> None:
    """A client that reads no answers counts as slow, and its connection makes room for others."""
    requests = b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
    slow = [socket.create_connection((server.host, server.port)) for _ in range(CONNECTIONS_MAX)]
    try:
        for connection in slow:
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.sendall(requests)
        assert select.select(slow, [], [], 30)[0]
        assert ask(server, "/health").status == 200
    finally:
        for connection in slow:
            connection.close()


def test_headers_are_bounded_together(server: web.Server) -> None:
    """The limit covers all headers together: a hundred of 64 KiB would be 6 MiB for each client."""
    field = b"X: " + b"y" * 60_000 + b"\r\n"
    found = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + 3 * field + b"\r\n")
    assert found.startswith(b"HTTP/1.1 431 ")
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert raw(server, head + field + b"\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.2:0", "localhost:0"])
def test_what_is_listened_to_here_is_answered_by_its_own_name(mq: pymq.Client, listen: str) -> None:
    """A server that listens on 127.0.0.2 accepts requests to that address, and does not refuse them
    as requests to a foreign host name.
    """
    with web.serve(mq, listen, token=TOKEN) as server:
        assert ask(server, "/health").status == 200
        for name in ("127.0.0.2.example", "127.1", "0.0.0.0", "192.0.2.1", "[::]", ""):
            assert ask(server, "/health", headers={"Host": name}).status == 421


def test_the_end_waits_for_all_requests_together(
    mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits once for all requests together, not the full time for each."""
    monkeypatch.setattr("pymq.web.server.CLOSE_S", 2.0)
    release, arrived = threading.Event(), threading.Semaphore(0)

    def metrics() -> Metrics:
        arrived.release()
        release.wait(60)
        return Metrics()

    server = web.Server("127.0.0.1:0", WebApp(Authentication(None), metrics))
    asking = [socket.create_connection((server.host, server.port)) for _ in range(6)]
    try:
        for connection in asking:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert arrived.acquire(timeout=30)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 8
    finally:
        release.set()
        for connection in asking:
            connection.close()


OUT_OF_DESCRIPTORS = """
import os, resource, socket, time
import pymq
from pymq import web

turns = 0

def count():
    global turns
    turns += 1

with pymq.open("memory:") as mq, web.serve(mq) as server:
    server._http.service_actions = count  # is called in each turn
    client = socket.socket()
    client.settimeout(60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    spare = []
    try:
        while True:
            spare.append(os.dup(0))
    except OSError:
        pass
    client.connect((server.host, server.port))
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        time.sleep(0.05)  # How often it tries is what is measured.
    print(turns)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.sendall(b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print(client.recv(100).split()[1].decode())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_who_cannot_be_accepted_does_not_take_all_the_time() -> None:
    """Without a free descriptor, a waiting connection does not make the server's thread spin."""
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    turns, status = found.stdout.split()
    assert int(turns) < 100
    assert status == "200"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_port(mq: pymq.Client) -> None:
    """After the end a client's connection is refused, also while a child still runs."""
    reading, writing = os.pipe()
    with web.serve(mq, token=TOKEN) as server:
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # read until the parent has closed its end of the pipe
            os._exit(0)
    try:
        with pytest.raises(ConnectionRefusedError):
            ask(server, "/health")
        with web.serve(mq, f"127.0.0.1:{server.port}", token=TOKEN) as again:
            assert ask(again, "/health").status == 200
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
