"""``pymq keys``: the files that it writes, its output and its exit codes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pymq.access.rules import Kind, Operation, load_policy
from pymq.cli import main
from pymq.errors import ConfigError
from pymq.transport.curve.key_files import read_pair, read_public
from pymq.transport.curve.key_ring import KeyRing

Capture = pytest.CaptureFixture[str]


def said(capsys: Capture) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return found


def test_a_pair_is_made_that_nobody_else_can_read(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "keys"
    assert main(["keys", "make", str(folder), "alice"]) == 0
    pair = read_pair(folder / "alice.secret")
    assert stat.S_IMODE((folder / "alice.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert read_public(folder / "alice.pub").key == pair.public
    shown = capsys.readouterr()
    assert pair.public in shown.out
    assert pair.secret not in shown.out + shown.err + repr(pair)
    # An existing key is not overwritten, because it may be in use.
    assert main(["keys", "make", str(folder), "alice"]) == 2
    assert "has a key of 'alice' already; revoke that first" in capsys.readouterr().err
    assert read_pair(folder / "alice.secret") == pair


def test_keys_are_listed_and_revoked(tmp_path: Path, capsys: Capture) -> None:
    folder = str(tmp_path)
    assert main(["keys", "make", "--json", "--node", folder, "zkserver", "broker-0"]) == 0
    made = said(capsys)["made"]
    assert [(row["name"], row["node"]) for row in made] == [("zkserver", True), ("broker-0", True)]
    assert main(["keys", "make", folder, "zk-1", "--at", "tcp://10.0.0.1:7878"]) == 0
    assert main(["keys", "make", folder, "alice"]) == 0
    # only alice has the secret key, on another machine
    (tmp_path / "alice.secret").unlink()
    capsys.readouterr()
    assert main(["keys", "list", "--json", folder]) == 0
    rows = {row["name"]: row for row in said(capsys)["keys"]}
    assert list(rows) == ["alice", "broker-0", "zk-1", "zkserver"]
    assert rows["zk-1"]["endpoints"] == ["tcp://10.0.0.1:7878"]
    assert [name for name, row in rows.items() if row["secret"]] == ["broker-0", "zk-1", "zkserver"]

    assert main(["keys", "revoke", "--json", folder, "alice", "bob"]) == 1
    shown = capsys.readouterr()
    error = json.loads(shown.err)["error"]
    assert (error["code"], error["message"]) == ("CONFIG_ERROR", f"{folder} has no key of 'bob'")
    assert json.loads(shown.out) == {
        "revoked": [{"name": "alice", "public": rows["alice"]["public"]}],
        "missing": ["bob"],
    }
    assert main(["keys", "make", folder, "alice"]) == 0
    assert main(["keys", "revoke", folder, "alice"]) == 0
    with pytest.raises(ConfigError, match=r"alice\.secret .* keys of alice were revoked; .*make"):
        read_pair(tmp_path / "alice.secret")
    assert main(["keys", "make", folder, "alice"]) == 0
    capsys.readouterr()
    assert main(["keys", "list", folder]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[:2] for line in lines] == [
        ["alice", "principal"],
        ["broker-0", "node"],
        ["zk-1", "node"],
        ["zkserver", "node"],
        ["alice", "revoked"],
        ["alice", "revoked"],
    ]
    # If the old .pub file is copied back by accident, it is not valid.
    key = rows["alice"]["public"]
    (tmp_path / "alice.pub").write_text(f"public = '{key}'\n")
    assert KeyRing(tmp_path, "broker-0").principal(str(key)) is None


def test_a_policy_to_begin_with_is_one(tmp_path: Path, capsys: Capture) -> None:
    folder = str(tmp_path)
    assert main(["keys", "policy", folder]) == 2
    assert "create one with --node first" in capsys.readouterr().err
    assert main(["keys", "make", "--node", folder, "zkserver", "broker-0"]) == 0
    assert main(["keys", "policy", folder, "--superuser", "root"]) == 0
    policy = load_policy(tmp_path / "policy.toml")
    cluster = (Operation.CLUSTER_ACTION, Kind.CLUSTER, "")
    assert all(policy.allows(each, *cluster) for each in ("zkserver", "broker-0", "root"))
    assert not policy.allows("alice", *cluster)
    assert not policy.allows("broker-0", Operation.READ, Kind.TOPIC, "orders")
    assert main(["keys", "policy", folder]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["make", "DIR", "no/name"], "principal 'no/name' must be"),
        (["make", "DIR", "a", "b", "--at", "tcp://h:1"], "give --at with one name"),
        (["make", "DIR", "a", "--at", "h:1"], "is no endpoint"),
        (["list", "DIR/nowhere"], "is not a folder"),
        (["policy", "DIR", "--superuser", "*"], "principal '*' must be"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    tmp_path: Path, capsys: Capture, line: list[str], complaint: str
) -> None:
    assert main(["keys", *(word.replace("DIR", str(tmp_path)) for word in line)]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    assert main(["keys", "make", str(tmp_path), "alice"]) == 0
    (tmp_path / "alice.secret").chmod(0o640)
    with pytest.raises(Exception, match="can be read by others"):
        KeyRing(tmp_path)


def test_tokens_are_for_their_owner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "token", str(tmp_path), "alice", "bob", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["tokens"]
    assert [each["name"] for each in made] == ["alice", "bob"]
    first = (tmp_path / "alice.token").read_text()
    assert len(first.strip()) >= 32
    assert (tmp_path / "alice.token").stat().st_mode & 0o777 == 0o600
    assert main(["keys", "token", str(tmp_path), "alice"]) == 0
    said = capsys.readouterr().out
    again = (tmp_path / "alice.token").read_text()
    assert again != first
    assert again.strip() not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.token", "bob.token"]
    assert main(["keys", "token", str(tmp_path / "nothing"), "alice"]) == 2
    assert main(["keys", "token", str(tmp_path), "a/b"]) == 2


def test_a_secret_without_its_public_key_says_what_to_do(tmp_path: Path, capsys: Capture) -> None:
    """In an earlier version the hint said to revoke the key first, but there was no key to
    revoke.
    """
    assert main(["keys", "make", str(tmp_path), "alice"]) == 0
    (tmp_path / "alice.pub").unlink()
    assert main(["keys", "make", str(tmp_path), "alice"]) == 2
    assert "restore that, or remove this one" in capsys.readouterr().err


def test_whose_key_is_revoked_has_no_token_either(tmp_path: Path, capsys: Capture) -> None:
    folder = str(tmp_path)
    assert main(["keys", "make", folder, "alice"]) == 0
    assert main(["keys", "token", folder, "alice"]) == 0
    assert main(["keys", "revoke", folder, "alice"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.revoked"]
