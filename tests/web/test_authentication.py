"""Authentication over HTTP: who is admitted and for how long.

The memory that it needs is bounded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pymq.errors import QuotaExceeded
from pymq.web.authentication import (
    SESSION_S,
    SESSIONS_MAX,
    SESSIONS_OF_A_TOKEN,
    Authentication,
    OneToken,
    TokenFolder,
)
from pymq.web.login_throttle import ALL_BURST, ALL_PER_S, FREE

TOKEN = "0123456789abcdef"


class Clock:
    """A clock that the test moves."""

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
    gate = Authentication(OneToken(TOKEN, "alice"), clock)
    cookie = gate.sign_in(TOKEN)
    clock.now = SESSION_S - 1
    assert gate.principal(None, cookie) == "alice"
    clock.now = SESSION_S
    assert gate.principal(None, cookie) is None
    assert gate.principal(TOKEN, cookie) == "alice"


def test_who_has_left_has_left() -> None:
    gate = Authentication(OneToken(TOKEN))
    cookie, other = gate.sign_in(TOKEN), gate.sign_in(TOKEN)
    gate.sign_out(cookie)
    gate.sign_out("nonsense")
    assert gate.principal(None, cookie) is None
    assert gate.principal(None, other) is not None


class Many:
    """Tokens whose principals have the tokens' names."""

    def principal(self, token: str) -> str | None:
        return token if token.startswith("t") else None


def test_so_many_cookies_are_remembered_of_each_token() -> None:
    """The number of cookies of a token is bounded separately, so its owner cannot sign out other
    users.
    """
    gate = Authentication(Many())
    others = [gate.sign_in(f"t{n}") for n in range(40)]
    cookies = [gate.sign_in("t-evil") for _ in range(SESSIONS_MAX + 10)]
    known = [gate.principal(None, cookie) is not None for cookie in cookies]
    assert known == [False] * (len(known) - SESSIONS_OF_A_TOKEN) + [True] * SESSIONS_OF_A_TOKEN
    assert all(gate.principal(None, cookie) for cookie in others)


def test_so_many_cookies_are_remembered_in_all() -> None:
    gate = Authentication(Many())
    heavy = [gate.sign_in("t-heavy") for _ in range(SESSIONS_OF_A_TOKEN)]
    light = [gate.sign_in(f"t{n}") for n in range(SESSIONS_MAX - 10)]
    assert sum(gate.principal(None, cookie) is not None for cookie in heavy + light) == SESSIONS_MAX
    assert gate.principal(None, heavy[-1]) is not None, "the oldest of who has most goes first"
    assert all(gate.principal(None, cookie) for cookie in light)


def test_guesses_are_slowed_more_with_each_and_written_down() -> None:
    clock, told = Clock(), list[str]()
    gate = Authentication(OneToken(TOKEN, "alice"), clock, told.append)
    tried = 0
    for second in range(600):
        clock.now = float(second)
        for _ in range(100):
            try:
                assert gate.principal("wrong", None, "10.0.0.1") is None
                tried += 1
            except QuotaExceeded:
                pass
    assert tried <= FREE + 10
    assert len(told) == 60_000
    with pytest.raises(QuotaExceeded):
        gate.sign_in(TOKEN, "10.0.0.1")  # from this address the token is not even checked ...
    # ... but from another address it is accepted.
    assert gate.principal(TOKEN, None, "10.0.0.2") == "alice"
    clock.now += 900 + 300
    assert gate.sign_in(TOKEN, "10.0.0.1") is not None


def test_guesses_from_many_addresses_are_slowed_together() -> None:
    """Wrong tokens from many addresses do not keep out a client that was admitted before, at its
    own address.
    """
    clock = Clock()
    gate = Authentication(OneToken(TOKEN, "alice"), clock)
    assert gate.principal(TOKEN, None, "10.1.1.1") == "alice"
    cookie = gate.sign_in(TOKEN, "10.1.1.2")
    tried = 0
    for second in range(10):
        clock.now = float(second)
        for number in range(1_000):
            try:
                gate.principal("wrong", None, f"10.0.{second}.{number}")
                tried += 1
            except QuotaExceeded:
                pass
    assert tried <= ALL_BURST + 10 * ALL_PER_S
    assert gate.principal(TOKEN, None, "10.1.1.1") == "alice"
    assert gate.principal(None, cookie, "10.9.9.9") == "alice"
    with pytest.raises(QuotaExceeded):
        gate.principal(TOKEN, None, "10.1.1.3")


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
    gate = Authentication(tokens, clock)
    give(tmp_path, "alice", TOKEN)
    give(tmp_path, "bob", TOKEN[::-1])
    cookie = gate.sign_in(TOKEN)
    assert [tokens.principal(each) for each in (TOKEN, TOKEN[::-1], "x")] == ["alice", "bob", None]
    (tmp_path / "alice.token").unlink()
    revoked.add("bob")
    clock.now = 2
    assert tokens.principal(TOKEN) is tokens.principal(TOKEN[::-1]) is None
    assert gate.principal(None, cookie) is None
