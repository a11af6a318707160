"""What is served over HTTP, to whom, and what is not."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pymq
from pymq import web
from pymq.errors import ConfigError
from pymq.web.app import FILES
from pymq.web.server import BODY_MAX, CONNECTIONS_MAX
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
            assert answer.status == 401
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


def test_other_sites_cannot_speak_for_the_user(server: web.Server) -> None:
    """Neither by a name of theirs that leads here, nor by a form of theirs."""
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
    """Who says nothing does not keep others out for ever, nor the server from ending."""
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
            except (ConnectionError, OSError):  # until its thread has found that it is gone
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


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:99999"])
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
    """No other host, no markup out of text, nothing that its policy would have to allow."""
    for path in sorted(PAGE.iterdir()):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text
        ), path
        assert not re.search(r"\bstyle\s*=|<style|\son[a-z]+\s*=\s*[\"']", text), path
    assert {path.name for path in PAGE.iterdir()} == {name for name, _ in FILES.values()}
