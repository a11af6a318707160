"""Who comes in over HTTP, for how long, and how much of that is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymq.web.gate import SESSION_S, SESSIONS_MAX, Gate, OneToken, TokenFolder

TOKEN = "0123456789abcdef"


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def give(folder: Path, name: str, token: str, mode: int = 0o600) -> None:
    path = folder / f"{name}.token"
    path.touch(0o600)
    path.write_text(f"{token}\n", encoding="utf-8")
    path.chmod(mode)


def test_a_cookie_ends() -> None:
    clock = Clock()
    gate = Gate(OneToken(TOKEN, "alice"), clock)
    cookie = gate.sign_in(TOKEN)
    clock.now = SESSION_S - 1
    assert gate.principal(None, cookie) == "alice"
    clock.now = SESSION_S
    assert gate.principal(None, cookie) is None
    assert gate.principal(TOKEN, cookie) == "alice"


def test_who_has_left_has_left() -> None:
    gate = Gate(OneToken(TOKEN))
    cookie, other = gate.sign_in(TOKEN), gate.sign_in(TOKEN)
    gate.sign_out(cookie)
    gate.sign_out("nonsense")
    assert gate.principal(None, cookie) is None
    assert gate.principal(None, other) is not None


def test_so_many_cookies_are_remembered() -> None:
    """Whoever has a token could else fill the memory; the oldest go first."""
    gate = Gate(OneToken(TOKEN))
    cookies = [gate.sign_in(TOKEN) for _ in range(SESSIONS_MAX + 10)]
    known = [gate.principal(None, cookie) is not None for cookie in cookies]
    assert known == [False] * 10 + [True] * SESSIONS_MAX


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_can_read_proves_nothing(tmp_path: Path, mode: int) -> None:
    give(tmp_path, "alice", TOKEN, mode)
    assert TokenFolder(tmp_path).principal(TOKEN) is None


@pytest.mark.parametrize("token", ["", TOKEN[1:], "\N{SNOWMAN}" * 16])
def test_what_could_be_guessed_is_no_token(tmp_path: Path, token: str) -> None:
    give(tmp_path, "alice", token)
    assert TokenFolder(tmp_path).principal(token) is None


def test_a_folder_is_looked_at_again(tmp_path: Path) -> None:
    clock, revoked = Clock(), set[str]()
    tokens = TokenFolder(tmp_path, clock, is_revoked=revoked.__contains__)
    gate = Gate(tokens, clock)
    give(tmp_path, "alice", TOKEN)
    give(tmp_path, "bob", TOKEN[::-1])
    cookie = gate.sign_in(TOKEN)
    assert [tokens.principal(each) for each in (TOKEN, TOKEN[::-1], "x")] == ["alice", "bob", None]
    (tmp_path / "alice.token").unlink()
    revoked.add("bob")
    clock.now = 2
    assert tokens.principal(TOKEN) is tokens.principal(TOKEN[::-1]) is None
    assert gate.principal(None, cookie) is None
