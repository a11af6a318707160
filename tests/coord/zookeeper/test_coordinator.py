"""The coordinator on a real ZooKeeper without faults: its contract and its limits."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

import pymq.coord
from pymq.coord.base import Coordinator
from pymq.coord.tree import MAX_DATA_BYTES
from pymq.core.metadata.coordination import (
    Changed,
    Check,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    Create,
    Delete,
    Failed,
    Load,
    Loaded,
    Put,
    Suspended,
    Uncertain,
)
from pymq.errors import AuthorizationFailed, Closed, Disconnected, ForkedError, InvalidRequest
from pymq.testing import check_coordinator
from pymq.testing.zookeeper import ZooKeeper
from tests.coord.sessions import Session, kazoo, session

pytestmark = pytest.mark.zookeeper


def test_contract(zookeeper: ZooKeeper) -> None:
    """ZooKeeper keeps the same contract as memory and SQLite."""

    def make(name: str) -> Coordinator:
        return pymq.coord.open(f"zookeeper://{zookeeper.hosts}/contract/{name}")

    check_coordinator(make, restart=lambda name: None, commits=500)


# --- the root -----------------------------------------------------------------------------------


def test_the_root_is_made_and_keeps_clusters_apart(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/deep/er/one") as one, session(zookeeper.hosts, "/two") as two:
        one.must(Create("/a", b"1"))
        two.must(Create("/a", b"2"))
        assert [entry.data for entry in one.load("/")] == [b"1"]
        assert [entry.data for entry in two.load("/")] == [b"2"]
    with kazoo(zookeeper.hosts) as raw:
        assert raw.get("/deep/er/one/a")[0] == b"1"


def test_without_a_root_the_tree_is_at_the_top_and_leaves_zookeepers_own_nodes_out(
    tmp_path: Path, needs_zookeeper: None
) -> None:
    with ZooKeeper(tmp_path) as own, session(own.hosts, "") as one:
        one.must(Create("/a", b""), Create("/a/b", b"", ephemeral=True))
        since = len(one.seen)
        assert one.paths("/") == ["/a", "/a/b"]
        with kazoo(own.hosts) as raw:
            raw.create("/zookeeper/quota/x", b"")
            raw.create("/c", b"")
        one.until(lambda: Changed("/c") in one.seen[since:], "change")
        assert not [e for e in one.seen if isinstance(e, Changed) and "zookeeper" in e.path]


def test_a_root_that_is_taken_away_is_a_refused_commit_and_no_crash(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/taken") as one, kazoo(zookeeper.hosts) as raw:
        raw.delete("/taken")
        answer = one.commit(Create("/a", b""))
        assert answer == Conflicted(1, 0, "no-parent")
        assert one.load("/") == ()


# --- who may ------------------------------------------------------------------------------------


def test_with_credentials_every_node_is_the_creators_alone(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    auth = tmp_path / "auth"
    auth.write_text("pymq:secret\n")
    auth.chmod(0o600)
    mine = make_digest_acl("pymq", "secret", all=True)
    with session(zookeeper.hosts, "/own/ed", f"&auth_file={auth}") as owner:
        owner.must(Create("/a", b""), Create("/a/b", b"", ephemeral=True))
        with kazoo(zookeeper.hosts, auth_data=[("digest", "pymq:secret")]) as raw:
            for path in ("/own", "/own/ed", "/own/ed/a", "/own/ed/a/b"):
                assert raw.get_acls(path)[0] == [mine], path
        for options in ("", f"&auth_file={_other(tmp_path)}"):
            with (
                pytest.raises(AuthorizationFailed, match="/own/ed"),
                session(zookeeper.hosts, "/own/ed", options),
            ):
                pass
    with session(zookeeper.hosts, "/own/ed", f"&auth_file={auth}") as owner:
        assert owner.paths("/") == ["/a"]  # the same credentials, in another session


def _other(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.write_text("pymq:guess\n")
    other.chmod(0o600)
    return other


def test_what_is_denied_later_is_told_and_changes_nothing(zookeeper: ZooKeeper) -> None:
    """If a node in the tree has another owner, the session reports an error, and nothing is
    changed.
    """
    with session(zookeeper.hosts, "/denied") as one, kazoo(zookeeper.hosts) as raw:
        one.must(Create("/a", b""))
        raw.add_auth("digest", "other:secret")
        raw.create("/denied/b", b"", acl=[make_digest_acl("other", "secret", all=True)])
        for answer in (
            one.commit(Put("/a", b"1", 0), Put("/b", b"", 0)),
            one.commit(Put("/a", b"1", 0), Create("/b/c", b"")),
            one.answer(one.start_load("/b")),
            one.answer(one.start_load("/")),
        ):
            assert isinstance(answer, Failed), answer
            assert isinstance(answer.error, AuthorizationFailed)
        assert [entry.version for entry in one.load("/a")] == [0]
        assert one.must(Put("/a", b"1", 0)) == (1,)


# --- sizes --------------------------------------------------------------------------------------


def test_a_commit_of_thousands_of_nodes(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/many") as one:
        paths = [f"/a/{n:05}" for n in range(5_000)]
        one.must(Create("/a", b""), *(Create(path, b"x" * 100) for path in paths))
        assert one.paths("/a") == ["/a", *paths]
        one.must(*(Delete(path, 0) for path in paths), Delete("/a", 0))
        assert one.load("/") == ()


def test_a_commit_that_is_too_large_is_refused_before_it_does_harm(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/large") as one:
        one.must(Create("/a", bytes(MAX_DATA_BYTES)))
        one.must(Put("/a", bytes(MAX_DATA_BYTES), 0), Create("/b", bytes(MAX_DATA_BYTES - 9_000)))
        ops = (Put("/a", bytes(MAX_DATA_BYTES), 1), Put("/b", bytes(MAX_DATA_BYTES), 0))
        with pytest.raises(InvalidRequest, match=r"2 nodes in 10486\d\d bytes.*jute.maxbuffer"):
            one.start(*ops)
        assert one.must(Check("/a", 1)) == (1,)
        assert not [event for event in one.seen if isinstance(event, (Suspended, Uncertain))]


def test_the_limit_is_the_servers(tmp_path: Path, needs_zookeeper: None) -> None:
    """If jute.maxbuffer is raised on both sides, larger commits fit.

    With a wrong setting the connection breaks.
    """
    big = tuple(Create(f"/{n}", bytes(400_000)) for n in range(5))
    more = ZooKeeper(tmp_path / "more", java=("-Djute.maxbuffer=4194304",))
    with more, session(more.hosts, "/x", "&max_request_bytes=4000000") as one:
        assert one.must(*big) == (0,) * 5
    less = ZooKeeper(tmp_path / "less")
    with less, session(less.hosts, "/x", "&max_request_bytes=4000000") as one:
        assert isinstance(one.commit(*big), Uncertain)
        assert one.load("/") == ()


# --- reading while others write -----------------------------------------------------------------


def test_a_folder_may_be_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_zookeeper: None
) -> None:
    """A relative folder works, as in ``local_cluster.py --data cluster``."""
    monkeypatch.chdir(tmp_path)
    with ZooKeeper("relative") as started:
        assert started.hosts
    assert (tmp_path / "relative" / "zookeeper-1" / "zoo.cfg").exists()


def test_a_load_is_of_one_moment(zookeeper: ZooKeeper) -> None:
    """Every commit writes the same number into all nodes.

    No load ever returns two different numbers.
    """
    nodes, commits = 30, 150
    with session(zookeeper.hosts, "/torn") as writer, session(zookeeper.hosts, "/torn") as reader:
        paths = [f"/a/{n:02}" for n in range(nodes)]
        writer.must(Create("/a", b"0"), *(Create(path, b"0") for path in paths))
        loads = 0
        for number in range(commits):
            tag = writer.start(*(Put(path, b"%d" % number, number) for path in ["/a", *paths]))
            answer = reader.answer(reader.start_load("/a"))
            assert isinstance(answer, Loaded)
            found = {entry.data for entry in answer.entries}
            assert len(found) == 1, f"{answer.entries} are of two moments"
            assert len(answer.entries) == nodes + 1
            loads += 1
            assert isinstance(writer.answer(tag), Committed)
            reader.seen.clear()
        assert loads == commits


def test_a_storm_of_changes_takes_no_more_room_than_there_are_nodes(zookeeper: ZooKeeper) -> None:
    nodes, rounds = 20, 100
    with session(zookeeper.hosts, "/storm") as writer, session(zookeeper.hosts, "/storm") as reader:
        paths = [f"/a/{n}" for n in range(nodes)]
        writer.must(Create("/a", b""), *(Create(path, b"") for path in paths))
        reader.load("/")
        for version in range(rounds):
            writer.must(*(Put(path, b"x", version) for path in paths))
        tag = reader.start_load("/")  # the answer to this load comes after all events
        events: list[CoordEvent] = []
        end = time.monotonic() + 20
        while not [event for event in events if isinstance(event, Loaded)]:
            assert time.monotonic() < end
            time.sleep(0.05)
            events += reader.backend.poll()
        changes = [event for event in events if isinstance(event, Changed)]
        assert {change.path for change in changes} == set(paths)
        assert len(changes) < 10 * nodes, f"{len(changes)} of {nodes * rounds}, tag {tag}"


# --- opening and closing ------------------------------------------------------------------------


def test_nobody_there() -> None:
    began = time.monotonic()
    with (
        pytest.raises(Disconnected, match=r"no answer from ZooKeeper at 127.0.0.1:1 within 0.3 s"),
        session("127.0.0.1:1", "/x", timeout_s=0.3),
    ):
        pass
    assert time.monotonic() - began < 10


def test_closing_twice_and_using_what_is_closed(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/closed") as one:
        one.must(Create("/a", b"", ephemeral=True))
        one.backend.close()
        one.backend.close()
        assert one.backend.poll() == ()
        with pytest.raises(Closed):
            one.backend.submit(Load(1, "/"))
    with session(zookeeper.hosts, "/closed") as one:
        assert one.load("/") == ()


def test_whoever_sleeps_is_waked(zookeeper: ZooKeeper) -> None:
    waked = threading.Event()
    url = f"zookeeper://{zookeeper.hosts}/wake"
    backend = pymq.coord.open(url, wake=waked.set)
    try:
        for request in (
            Commit(1, (Create("/a", b""),)),
            Load(2, "/"),
            Commit(3, (Check("/a", 0),)),
        ):
            tags: set[object] = set()
            waked.clear()
            backend.submit(request)
            while request.tag not in tags:
                assert waked.wait(10)
                waked.clear()
                tags |= {getattr(event, "tag", None) for event in backend.poll()}
    finally:
        backend.close()


def test_a_forked_child_may_not_use_the_session(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/forked") as one:
        child = os.fork()
        if not child:  # pragma: no cover
            code = 1
            try:
                # closing the client in the child must not end the parent's session
                one.backend.close()
                for use in (one.backend.poll, lambda: one.backend.submit(Load(1, "/"))):
                    try:
                        use()
                    except ForkedError:
                        code = 0
                        continue
                    code = 2
                    break
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert one.must(Create("/a", b"")) == (0,)
        assert isinstance(one, Session)
