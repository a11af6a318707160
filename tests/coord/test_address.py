"""An address is parsed, or refused with the reason; passwords come from files only."""

from pathlib import Path

import pytest

import pymq.coord
from pymq.coord.address import (
    DEFAULT_SESSION_MS,
    MemoryAddress,
    SqliteAddress,
    ZookeeperAddress,
    parse,
    read_credentials,
)
from pymq.coord.memory import MemoryCoordinator
from pymq.coord.sqlite import SqliteCoordinator
from pymq.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("memory:", MemoryAddress()),
        ("sqlite:meta.db", SqliteAddress("meta.db")),
        ("sqlite:/var/lib/pymq/meta.db", SqliteAddress("/var/lib/pymq/meta.db")),
        ("zookeeper://zk1", ZookeeperAddress(("zk1:2181",))),
        ("zookeeper://zk1/", ZookeeperAddress(("zk1:2181",))),
        ("zookeeper://127.0.0.1:2181/pymq", ZookeeperAddress(("127.0.0.1:2181",), "/pymq")),
        ("zookeeper://a:1,b,[::1]:3/x/y/", ZookeeperAddress(("a:1", "b:2181", "[::1]:3"), "/x/y")),
        (
            "zookeeper://a/x?session_ms=900&auth_file=/etc/pymq%20zk",
            ZookeeperAddress(("a:2181",), "/x", 900, "/etc/pymq zk"),
        ),
        ("zookeeper://a?session_ms=900", ZookeeperAddress(("a:2181",), "", 900)),
    ],
)
def test_address(url: str, wanted: object) -> None:
    assert parse(url) == wanted


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "not a coordinator"),
        ("memory", "not a coordinator"),
        ("zk://a", "not a coordinator"),
        ("zookeeper:a", "not a coordinator"),
        ("memory:x", "has no name"),
        ("sqlite:", "names no file"),
        ("zookeeper://", "not HOST"),
        ("zookeeper://a,,b", "not HOST"),
        ("zookeeper://a:0", "not HOST"),
        ("zookeeper://a:65536", "not HOST"),
        ("zookeeper://a:port", "not HOST"),
        ("zookeeper://a b", "not HOST"),
        ("zookeeper://me:secret@a/x", "auth_file"),
        ("zookeeper://a/x//y", "the root"),
        ("zookeeper://a/../y", "the root"),
        ("zookeeper://a/zookeeper/x", "the root"),
        ("zookeeper://a/x?session_ms=99", "session_ms must be 100 to 600000"),
        ("zookeeper://a/x?session_ms=-1", "session_ms must be"),
        ("zookeeper://a/x?max_request_bytes=1", "max_request_bytes must be 65536 to"),
        ("zookeeper://a/x?auth_file=", "unknown option"),
        ("zookeeper://a/x?password=x", "unknown option 'password'"),
    ],
)
def test_bad_address(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as found:
        pymq.coord.open(url)
    assert "secret" not in str(found.value)


def test_default_session() -> None:
    address = parse("zookeeper://a")
    assert isinstance(address, ZookeeperAddress)
    assert address.session_ms == DEFAULT_SESSION_MS


def test_open(tmp_path: Path) -> None:
    memory = pymq.coord.open("memory:")
    assert isinstance(memory, MemoryCoordinator)
    memory.close()
    sqlite = pymq.coord.open(f"sqlite:{tmp_path / 'meta.db'}")
    assert isinstance(sqlite, SqliteCoordinator)
    sqlite.close()


def test_credentials(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.write_text("me:se:cret\n")
    file.chmod(0o640)
    assert read_credentials(str(file)) == "me:se:cret"
    for text in ("", "me", "me:", ":secret", "me:secret\nmore\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="one line user:password"):
            read_credentials(str(file))
    file.write_text("me:secret")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody"):
        read_credentials(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_credentials(str(tmp_path / "none"))
