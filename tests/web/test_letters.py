"""Dead letters over HTTP: which letters are shown, counted and sent back, and who may send them
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

import pymq
from pymq import web
from pymq.errors import RequestTimeout
from pymq.web import letters as module
from tests.web.helpers import TOKEN, Answer, ask, bury

LETTERS = "jobs.dlq"


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as client:
        bury(client, {b"a": "no price", b"b": "no stock", b"c": "no price: 7"})
        yield client


@pytest.fixture
def server(mq: pymq.Client) -> Iterator[web.Server]:
    with web.serve(mq, token=TOKEN, writable=True) as serving:
        yield serving


def redrive(server: web.Server, **given: object) -> Answer:
    return ask(server, "/api/redrive", "POST", body={"topic": LETTERS, **given})


def values(mq: pymq.Client) -> list[bytes]:
    with mq.consumer("jobs", mode="psb") as consumer:
        return [record.value for record in consumer.until_end()]


def test_letters_say_why_when_and_from_where(server: web.Server) -> None:
    found = ask(server, f"/api/letters?name={LETTERS}").json
    assert (found["letters"], found["chosen"], found["is_cut"]) == (3, 3, False)
    assert sorted(found["errors"]) == [["no price", 1], ["no price: 7", 1], ["no stock", 1]]
    first, second, _ = found["shown"]
    assert (first["partition"], first["offset"], first["error"]) == ("0", 0, "no price")
    assert first["from"] == ["jobs", "0", "0"]
    assert (first["group"], first["deliveries"]) == ("workers", "1")
    assert first["value"]["text"] == "a"
    assert second["from"] == ["jobs", "0", "1"]
    assert 0 < first["at_ms"] <= second["at_ms"]
    few = ask(server, f"/api/letters?name={LETTERS}&error={quote('no price')}").json
    assert [letter["value"]["text"] for letter in few["shown"]] == ["a", "c"]
    assert (few["letters"], few["chosen"]) == (3, 2)


def test_a_dry_run_sends_nothing_and_a_redrive_each_letter_once(
    server: web.Server, mq: pymq.Client
) -> None:
    would = redrive(server, error="price", dry_run=True).json
    assert would == {"count": 2, "stay": 1, "more": False}
    assert values(mq) == [b"a", b"b", b"c"]
    assert redrive(server, error="price").json == {"count": 2, "stay": 1, "more": False}
    assert redrive(server, error="price").json == {"count": 0, "stay": 1, "more": False}
    assert values(mq) == [b"a", b"b", b"c", b"a", b"c"]
    found = ask(server, f"/api/letters?name={LETTERS}").json
    assert [letter["value"]["text"] for letter in found["shown"]] == ["b"]
    assert redrive(server).json["count"] == 1
    assert ask(server, f"/api/letters?name={LETTERS}").json["letters"] == 0


def test_many_go_back_in_steps(
    server: web.Server, mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP", 2)
    steps = [redrive(server).json for _ in range(2)]
    assert steps == [
        {"count": 2, "stay": 0, "more": True},
        {"count": 1, "stay": 0, "more": False},
    ]
    assert values(mq) == [b"a", b"b", b"c"] * 2


def test_a_request_may_be_for_fewer_letters(server: web.Server, mq: pymq.Client) -> None:
    """A request can limit the number of letters. So a page that sends a number of letters a second
    can request them in parts.
    """
    assert redrive(server, limit=1).json == {"count": 1, "stay": 0, "more": True}
    assert redrive(server, limit=10_000).json == {"count": 2, "stay": 0, "more": False}
    assert values(mq) == [b"a", b"b", b"c"] * 2
    for wrong in (0, -1, "5", 1.5, True, None):
        assert redrive(server, limit=wrong).status == 400


def test_so_many_letters_are_looked_at_and_shown(
    server: web.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN_MAX", 1)
    found = ask(server, f"/api/letters?name={LETTERS}").json
    assert (len(found["shown"]), found["chosen"]) == (1, 3)
    monkeypatch.setattr(module, "LOOKED_MAX", 2)
    found = ask(server, f"/api/letters?name={LETTERS}").json
    assert (found["letters"], found["is_cut"]) == (2, True)
    assert redrive(server, dry_run=True).json == {"count": 2, "stay": 0, "more": True}
    monkeypatch.setattr(module, "LOOK_S", -1.0)
    assert ask(server, f"/api/letters?name={LETTERS}").json["letters"] == 0


def test_a_search_that_takes_too_long_ends_and_repeats_nothing(
    server: web.Server, mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "STEP_S", -1.0)
        answer = redrive(server)
        assert (answer.status, answer.json["code"]) == (504, RequestTimeout.code)
        assert "pymq dlq redrive" in answer.json["error"]
    assert redrive(server).json["count"] == 3
    assert values(mq) == [b"a", b"b", b"c"] * 2


def test_what_is_refused(server: web.Server, mq: pymq.Client) -> None:
    for path, status in (
        ("/api/letters?name=nothing.dlq", 404),
        ("/api/letters?name=__consumer_offsets", 403),
        ("/api/letters", 404),
    ):
        assert ask(server, path).status == status, path
    assert redrive(server, error=7).status == 400
    assert redrive(server, dry_run="no").status == 400
    assert redrive(server, topic="__consumer_offsets").status == 403
    assert redrive(server, topic="nothing.dlq").status == 404
    headers = {"Origin": "http://elsewhere.example"}
    body = {"topic": LETTERS}
    assert ask(server, "/api/redrive", "POST", body=body, headers=headers).status == 403
    assert ask(server, "/api/redrive", "POST", body=body, token=None).status == 401
    assert values(mq) == [b"a", b"b", b"c"]


def test_a_page_to_look_at_only_shows_and_sends_no_letters(mq: pymq.Client) -> None:
    with web.serve(mq, token=TOKEN) as server:
        assert ask(server, f"/api/letters?name={LETTERS}").status == 403
        assert redrive(server).status == 403
    assert values(mq) == [b"a", b"b", b"c"]
