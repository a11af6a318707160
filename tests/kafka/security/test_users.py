"""The users file: what it may contain, and that a running broker follows it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from pymq.cli import main
from pymq.errors import ConfigError
from pymq.kafka.security.scram import HASHES
from pymq.kafka.security.users import UsersFile, load_users, new_user, write_users


def test_users_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    users = {"alice": new_user("wonder"), "b.o-b_1": new_user("builder")}
    write_users(path, users)
    assert load_users(path) == users
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "is not TOML"),
        ("[a b]", "is not TOML"),
        ('["a b"]\nPLAIN = "x"', "user name"),
        ("alice = 1", "is no user"),
        ("[alice]", "is no user"),
        ('[alice]\nPLAIN = "x"', "PLAIN is none of"),
        ('[alice]\nSCRAM-SHA-256 = "x"', "SCRAM-SHA-256"),
        ("[alice]\nSCRAM-SHA-256 = 5", "SCRAM-SHA-256 is none of"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=why):
        load_users(path)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    write_users(path, {"alice": new_user("x")})
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        load_users(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_users(tmp_path / "missing")


def test_a_changed_file_is_read_again_and_a_malformed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    write_users(path, {"alice": new_user("one")})
    users = UsersFile(path, b"secret")
    assert users.plain("alice", "one")
    write_users(path, {"alice": new_user("two")})
    users.refresh(100.0)
    assert users.plain("alice", "two")
    assert not users.plain("alice", "one")
    path.write_text("malformed")
    users.refresh(200.0)
    assert users.plain("alice", "two")
    write_users(path, {})
    users.refresh(300.0)
    assert not users.plain("alice", "two")


def test_an_unknown_user_looks_like_a_known_one(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    write_users(path, {"alice": new_user("x")})
    users = UsersFile(path, b"secret")
    for mechanism in HASHES:
        known, unknown = users.verifier(mechanism, "alice"), users.verifier(mechanism, "eve")
        assert (len(known.salt), known.iterations) == (len(unknown.salt), unknown.iterations)
        assert unknown == users.verifier(mechanism, "eve")
        assert unknown.salt != users.verifier(mechanism, "mallory").salt
    assert not users.plain("eve", "")


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users.toml"

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert main(["keys", "kafka-user", str(path), *arguments]) == code
        return capsys.readouterr()

    passwords = json.loads(run("alice", "bob", "--json")[0])["passwords"]
    users = UsersFile(path, b"")
    assert users.plain("alice", passwords["alice"])
    assert users.plain("bob", passwords["bob"])
    monkeypatch.setattr("sys.stdin", io.StringIO("chosen\n"))
    assert "chosen" not in "".join(run("alice", "--stdin"))
    assert UsersFile(path, b"").plain("alice", "chosen")
    run("bob", "--remove")
    assert set(load_users(path)) == {"alice"}
    assert "no user 'bob'" in run("bob", "--remove", code=2)[1]
