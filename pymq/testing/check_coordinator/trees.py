"""Checks of the tree: versions, conflicts, atomic commits, durability."""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.metadata.coordination import (
    Check,
    Commit,
    Committed,
    Conflicted,
    Create,
    Delete,
    Entry,
    Load,
    Loaded,
    Op,
    Put,
)
from pymq.errors import InvalidRequest
from pymq.testing.check_coordinator.suite import CoordinatorSuite, same


def check_versions(suite: CoordinatorSuite) -> None:
    """Versions begin at 0 and rise by one."""
    with suite.clients("versions") as (client,):
        assert client.load("/a") == (), "a root that does not exist must load as nothing"
        assert client.must() == (), "an empty commit has no versions"
        assert client.must(Create("/a", b"0")) == (0,), "a new node has version 0"
        assert client.must(Put("/a", b"1", 0)) == (1,), "each Put raises the version by one"
        assert client.must(Put("/a", b"1", 1)) == (2,), "a Put of the same data counts as well"
        assert client.must(Check("/a", 2)) == (2,), "Check answers with the version it found"
        same(client.load("/a"), [Entry("/a", b"1", 2)], "after two Puts")
        assert client.must(Delete("/a", 2)) == (-1,), "Delete answers with version -1"
        assert client.must(Create("/a", b"")) == (0,), "a node made again starts at 0 again"
        big = bytes(range(256)) * 2048
        client.must(Put("/a", big, 0))
        same(client.load("/a"), [Entry("/a", big, 1)], "512 KiB of every byte")


def check_conflicts(suite: CoordinatorSuite) -> None:
    """The backend refuses operations whose condition does not hold, and names the reason."""
    with suite.clients("conflicts") as (client,):
        client.refused(0, "no-parent", Create("/a/b", b""))
        client.refused(0, "missing", Put("/a", b"", 0))
        client.refused(0, "missing", Delete("/a", 0))
        client.refused(0, "missing", Check("/a", 0))
        client.must(Create("/a", b"a"), Create("/a/b", b"b"))
        client.refused(0, "exists", Create("/a", b"new"))
        for version in (1, 7):
            client.refused(0, "version", Put("/a", b"new", version))
            client.refused(0, "version", Check("/a", version))
            client.refused(0, "version", Delete("/a/b", version))
            # the version is checked before "not-empty"
            client.refused(0, "version", Delete("/a", version))
        client.refused(0, "not-empty", Delete("/a", 0))
        client.must(Create("/a/e", b"", ephemeral=True))
        client.refused(0, "no-parent", Create("/a/e/x", b""))  # an ephemeral node has no children
        wanted = [Entry("/a", b"a", 0), Entry("/a/b", b"b", 0)]
        same([e for e in client.load("/a") if e.path != "/a/e"], wanted, "after refused commits")


def check_atomicity(suite: CoordinatorSuite) -> None:
    """The backend carries out a commit completely or not at all."""
    with suite.clients("atomicity", 2) as (client, other):
        client.must(Create("/a", b"0"), Create("/a/b", b"0"), Create("/a/c", b"0"))
        before = client.load("/a")
        other.load("/a")
        since = len(other.seen)
        start: tuple[Op, ...] = (Put("/a", b"1", 0), Create("/a/d", b""), Delete("/a/b", 0))
        ends: list[tuple[str, Op]] = [
            ("version", Put("/a/c", b"1", 1)),
            ("version", Check("/a", 0)),  # the version is 1 at that point
            ("missing", Delete("/a/b", 0)),
            ("exists", Create("/a/d", b"")),
            ("no-parent", Create("/a/b/x", b"")),
            ("not-empty", Delete("/a", 1)),
        ]
        for reason, end in ends:
            client.refused(3, reason, *start, end)
            same(client.load("/a"), before, "a refused commit must change nothing")
        versions = client.must(
            *(Put("/a", b"1", 0), Put("/a", b"2", 1), Check("/a", 2)),
            *(Delete("/a/b", 0), Create("/a/b", b"again"), Create("/a/b/x", b"x")),
            *(Create("/a/t", b""), Delete("/a/t", 0), Delete("/a/c", 0)),
        )
        assert versions == (1, 2, 2, -1, 0, 0, 0, -1, -1), f"versions of one commit: {versions}"
        same(
            client.load("/a"),
            [Entry("/a", b"2", 2), Entry("/a/b", b"again", 0), Entry("/a/b/x", b"x", 0)],
            "each op must see the ops before it",
        )
        other.changed("/a/b/x", since)
        told = other.paths(since)
        assert "/a/d" not in told, "a refused commit was reported as a change"


def check_load_order(suite: CoordinatorSuite) -> None:
    """A load returns nodes in the order of their paths."""
    with suite.clients("load-order") as (client,):
        names = ("b", "a", "a-b", "a.b", "B", "10", "9", "ab")
        client.must(Create("/r", b""), Create("/ra", b""), Create("/q", b""))
        client.must(*(Create(f"/r/{name}", b"") for name in names))
        client.must(*(Create(f"/r/{name}/a", b"") for name in names))
        paths = [entry.path for entry in client.load("/r")]
        wanted = sorted(["/r", *(f"/r/{n}" for n in names), *(f"/r/{n}/a" for n in names)])
        assert paths == wanted, f"Load is ordered by path: got {paths}, expected {wanted}"
        paths = [entry.path for entry in client.load("/r/a")]
        assert paths == ["/r/a", "/r/a/a"], f"Load of /r/a gave {paths}"


def check_pipelining(suite: CoordinatorSuite) -> None:
    """Answers come in the order of the requests."""
    with suite.clients("pipelining") as (client,):
        tags = [client.start_load("/a"), client.start(Create("/a", b""))]
        for version in range(20):
            tags += [client.start(Put("/a", b"%d" % version, version)), client.start_load("/a")]
            tags += [client.start(Put("/a", b"late", version))]
        client.answer(tags[-1])
        answers = [e for e in client.seen if isinstance(e, (Committed, Conflicted, Loaded))]
        assert [answer.tag for answer in answers] == tags, "answers come in the order of requests"
        loads = [answer.entries for answer in answers if isinstance(answer, Loaded)]
        wanted = [(), *((Entry("/a", b"%d" % v, v + 1),) for v in range(20))]
        assert loads == wanted, f"a Load sees all commits submitted before it: {loads}"


def check_bad_requests(suite: CoordinatorSuite) -> None:
    """The backend refuses at once requests that no backend could carry out."""
    paths = ("", "a", "a/b", "//", "/a/", "/a//b", "//a", "/a/./b", "/..", "/a\0")
    bad: list[Commit | Load] = [Load(1, path) for path in paths]
    bad += [Commit(1, (Check("/ok", 0), Create(path, b""))) for path in ("/", *paths)]
    bad += [Commit(1, (op("/a", -1),)) for op in (Check, Delete)]
    bad += [Commit(1, (Put("/a", b"", -1),)), Commit(1, (Put("/a", bytes(524_289), 0),))]
    with suite.clients("bad-requests") as (client,):
        for request in bad:
            try:
                client.backend.submit(request)
            except InvalidRequest:
                continue
            raise AssertionError(f"submit must raise InvalidRequest for {str(request)[:200]}")
        client.must(Create("/a", b""))
        assert all(getattr(e, "tag", 1) == 1 for e in client.seen), "a bad request was answered"


def check_durability(suite: CoordinatorSuite, restart: Callable[[str], None]) -> None:
    """Committed nodes survive a restart, except ephemeral nodes."""
    wanted = [Entry("/a", b"2", 2), Entry("/a/b", b"again", 0), Entry("/a/c", bytes(70_000), 1)]
    with suite.clients("durability") as (client,):
        client.must(Create("/a", b"0"), Create("/a/b", b"0"), Create("/a/c", b"0"))
        client.must(Put("/a", b"1", 0), Delete("/a/b", 0), Create("/a/d", b""))
        client.must(Put("/a", b"2", 1), Create("/a/b", b"again"), Put("/a/c", bytes(70_000), 0))
        client.must(Delete("/a/d", 0), Create("/a/e", b"", ephemeral=True))
        client.refused(1, "exists", Put("/a", b"3", 2), Create("/a/b", b""))
    for _ in range(2):
        restart("durability")
        with suite.clients("durability") as (client,):
            same(client.load("/a"), wanted, "after a restart")
            client.refused(0, "version", Put("/a", b"", 1))
