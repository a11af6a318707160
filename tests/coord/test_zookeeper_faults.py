"""The coordinator on a ZooKeeper that is killed, paused or restarted, or that ends sessions."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

import pymq.coord
from pymq.coord.zookeeper.session import session_name
from pymq.core.metadata.coordination import (
    Changed,
    Check,
    Committed,
    Create,
    Entry,
    Loaded,
    Put,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.testing.zookeeper import ZooKeeper
from tests.coord import sessions
from tests.coord.relay import Relay
from tests.coord.sessions import SESSION_MS, WAIT_S, Session, cut_off, expire

pytestmark = pytest.mark.zookeeper
session = partial(sessions.session, session_ms=SESSION_MS)


@pytest.fixture
def own(tmp_path: Path, needs_zookeeper: None) -> ZooKeeper:
    """Return a server for one test, not started."""
    return ZooKeeper(tmp_path)


def kinds(one: Session, since: int) -> list[type]:
    wanted = (Suspended, Resumed, SessionExpired, Uncertain)
    return [type(event) for event in one.seen[since:] if isinstance(event, wanted)]


# --- sessions -----------------------------------------------------------------------------------


def test_a_session_that_expires(zookeeper: ZooKeeper) -> None:
    """An expired session loses its ephemeral nodes and watches.

    The next session has a new name and works.
    """
    hosts = zookeeper.hosts
    with session(hosts, "/expires") as one, session(hosts, "/expires") as witness:
        witness.load("/")
        one.must(Create("/kept", b""), Create("/mine", b"", ephemeral=True))
        one.load("/")
        before, since = one.backend.session, len(one.seen)
        expire(one, hosts)
        witness.until_changed("/mine", len(witness.seen))
        expired = one.wait(SessionExpired, since)
        assert kinds(one, since) == [Suspended, SessionExpired]
        assert expired.session == one.backend.session != before
        since = len(one.seen)
        witness.must(Put("/kept", b"1", 0))
        # the answer to this commit would come after a change
        one.must(Create("/mine", b"", ephemeral=True))
        assert not [event for event in one.seen[since:] if isinstance(event, Changed)]
        assert [entry.owner for entry in one.load("/")] == [None, one.backend.session]


def test_what_was_kept_for_a_session_that_expired_is_uncertain(zookeeper: ZooKeeper) -> None:
    with session(zookeeper.hosts, "/kept") as one:
        one.must(Create("/a", b""))
        with cut_off(one, zookeeper.hosts):
            since = len(one.seen)
            commit, load = one.start(Put("/a", b"1", 0)), one.start_load("/")
            one.start(Create("/mine", b"", ephemeral=True))
            expire(one, zookeeper.hosts)
        assert one.answer(commit) == Uncertain(commit)
        assert one.answer(load) == Loaded(load, (Entry("/a", b"", 0),))
        assert kinds(one, since) == [Uncertain, Uncertain, SessionExpired]


def test_no_request_of_one_session_is_sent_in_the_next(zookeeper: ZooKeeper) -> None:
    """A request of one session is not sent in the next session, even if the owner does not yet know
    of that session.
    """
    with session(zookeeper.hosts, "/late") as one:
        one.must(Create("/a", b""))
        old = one.backend.session
        expire(one, zookeeper.hosts)
        client = one.backend._link._client
        end = time.monotonic() + WAIT_S
        while client.client_id is None or session_name(client.client_id[0]) == old:
            assert time.monotonic() < end
            time.sleep(0.01)
        tag = one.start(Create("/mine", b"", ephemeral=True))
        assert one.answer(tag) == Uncertain(tag)
        one.wait(SessionExpired)
        assert one.paths("/") == ["/a"]


def test_a_client_that_was_stopped_knows_that_its_session_may_be_gone(
    zookeeper: ZooKeeper,
) -> None:
    """A paused client first reports that its state is uncertain, before any answer."""
    script = """
        import sys, time
        from tests.coord.sessions import *
        from pymq.core.metadata.coordination import *
        with session(sys.argv[1], "/stopped", session_ms=SESSION_MS) as one:
            one.must(Create("/mine", b"", ephemeral=True))
            print("ready", flush=True)
            last = time.monotonic()
            while True:
                time.sleep(0.01)
                last, before = time.monotonic(), last
                if last - before > 0.7:
                    break  # it was stopped
                one.poll()
            one.seen.clear()
            one.poll()
            print([type(event).__name__ for event in one.seen], flush=True)
            one.wait(SessionExpired)
            print([type(event).__name__ for event in one.seen], flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), zookeeper.hosts]
    with (
        session(zookeeper.hosts, "/stopped") as witness,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert witness.paths("/") == ["/mine"]
            process.send_signal(signal.SIGSTOP)
            witness.until_changed("/mine", len(witness.seen))
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "['Suspended']\n"
            assert process.stdout.readline() == "['Suspended', 'SessionExpired']\n"
        finally:
            process.kill()


# --- one server ---------------------------------------------------------------------------------


def test_a_server_that_is_restarted(own: ZooKeeper) -> None:
    """The session survives a restart.

    Waiting requests are carried out, and missed changes are reported.
    """
    with own, session(own.hosts, "/x") as one:
        one.must(Create("/a", b""), Create("/mine", b"", ephemeral=True))
        one.load("/a")
        one.load("/later")
        name = one.backend.session
        since = len(one.seen)
        own.servers[0].kill()
        one.wait(Suspended, since)
        tags = one.start(Put("/a", b"", 0)), one.start_load("/")
        own.servers[0].start()
        answer = one.answer(tags[0])
        assert isinstance(one.answer(tags[1]), Loaded)
        # A server that is not up yet may take the first connection, and close it with the request.
        times = 1 if answer == Committed(tags[0], (1,)) else 2
        assert times == 1 or answer == Uncertain(tags[0])
        news = [kind for kind in kinds(one, since) if kind is not Uncertain]
        assert news == [Suspended, Resumed] * times
        for root in ("/a", "/later"):
            one.until_changed(root, since)
        assert one.backend.session == name
        with session(own.hosts, "/x") as other:
            since = len(one.seen)
            other.must(Create("/later", b""))
            one.until_changed("/later", since)


def test_nobody_waits_for_a_zookeeper_that_comes_later(own: ZooKeeper) -> None:
    backend = pymq.coord.open(f"zookeeper://{own.hosts}/x?session_ms={SESSION_MS}", timeout_s=0)
    one = Session(backend)  # type: ignore[arg-type] # the address says which backend it is
    try:
        tag = one.start(Create("/a", b""))
        assert one.poll() == [Suspended()]
        assert backend.session == ""
        with own:
            assert one.answer(tag) == Committed(tag, (0,))
            assert kinds(one, 0) == [Suspended, Resumed]
            assert backend.session
    finally:
        backend.close()


def test_a_commit_without_an_answer_is_uncertain_and_settled(own: ZooKeeper) -> None:
    """A server dies with pending commits.

    A load shows which commits were done, and no other one is done later.
    """
    with own, session(own.hosts, "/x") as one:
        one.must(Create("/a", b""))
        outcomes = set()
        for number in range(2):
            tags = {one.start(Create(f"/a/{number}-{n}", b"")): n for n in range(40)}
            one.poll()
            own.servers[0].kill()
            one.wait(Suspended, len(one.seen) - 1 if number else 0)
            own.servers[0].start()
            found = set(one.paths("/a"))
            for tag, n in tags.items():
                answer, is_there = one.answer(tag), f"/a/{number}-{n}" in found
                assert isinstance(answer, (Committed, Uncertain)), answer
                assert is_there or isinstance(answer, Uncertain), "acknowledged, and gone"
                outcomes.add((type(answer), is_there))
            one.must(Check("/a", 0))
            assert set(one.paths("/a")) == found, "an uncertain commit was done after it was told"
        assert outcomes & {(Uncertain, True), (Uncertain, False)}


def test_a_load_whose_connection_ends_tells_all_or_nothing(zookeeper: ZooKeeper) -> None:
    """If the connection is cut at any point of a load, nodes without an answer are never reported
    as missing.
    """
    topics = [f"/a/{n}" for n in range(3)]
    nodes = ["/a", *(path for topic in topics for path in (topic, f"{topic}/b", f"{topic}/b/c"))]
    with (
        Relay(zookeeper.hosts) as relay,
        session(relay.hosts, "/cut", session_ms=10_000) as one,
    ):
        one.must(*(Create(path, b"") for path in nodes))
        for answers in range(1000):
            relay.cut_after(answers)
            assert one.paths("/a") == nodes, f"after {answers} answers"
            if not relay.is_cut:
                break
    assert answers > len(nodes)


def test_a_server_that_hangs_is_noticed_before_the_session_ends(own: ZooKeeper) -> None:
    """A hanging server is noticed even during constant requests, which kazoo counts as signs of
    life.
    """
    with own, session(own.hosts, "/x") as one:
        one.must(Create("/a", b""))
        for is_busy in (False, True):
            one.seen.clear()
            own.servers[0].pause()
            began = time.monotonic()
            while Suspended() not in one.poll():
                assert time.monotonic() - began < SESSION_MS / 1000, f"not noticed, busy={is_busy}"
                if is_busy:
                    one.start(Check("/a", 0))
                time.sleep(0.01)
            own.servers[0].resume()
            one.until(
                lambda: any(isinstance(e, (Resumed, SessionExpired)) for e in one.seen), "return"
            )
            one.must(Check("/a", 0))


def test_closing_does_not_wait_for_a_server_that_hangs(own: ZooKeeper) -> None:
    with own:
        with session(own.hosts, "/x") as one:
            own.servers[0].pause()
            began = time.monotonic()
            one.backend.close()
            assert time.monotonic() - began < 8
        own.servers[0].resume()


# --- an ensemble --------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_ensemble_loses_its_leader_and_its_majority(
    tmp_path: Path, needs_zookeeper: None
) -> None:
    with ZooKeeper(tmp_path, 3) as ensemble:
        lose_the_leader(ensemble)
        lose_the_majority(ensemble)


def lose_the_leader(ensemble: ZooKeeper) -> None:
    """No acknowledged commit is lost, none is done twice, and sessions survive."""
    with session(ensemble.hosts, "/leader") as one:
        one.must(Create("/n", b"0"), Create("/mine", b"", ephemeral=True))
        version, gaps = 0, []
        leader = ensemble.leader()
        leader.kill()
        began = time.monotonic()
        for _ in range(50):
            # After an uncertain commit, read the node, and repeat the commit if it was not done.
            answer = one.commit(Put("/n", b"%d" % (version + 1), version))
            if isinstance(answer, Uncertain):
                (entry,) = one.load("/n")
                assert entry.version in (version, version + 1)
                if entry.version == version:
                    continue
            else:
                assert isinstance(answer, Committed), answer
                assert answer.versions == (version + 1,)
                gaps.append(time.monotonic() - began)
            began = time.monotonic()
            version += 1
        leader.start()
        ensemble.wait()
        with session(ensemble.hosts, "/leader") as other:
            entries = {entry.path: entry for entry in other.load("/")}
        assert entries["/n"].version == version
        assert entries["/n"].data == b"%d" % version
        assert max(gaps) < WAIT_S
        assert "/mine" in entries or SessionExpired in kinds(one, 0)


def lose_the_majority(ensemble: ZooKeeper) -> None:
    """A minority can commit nothing."""
    with session(ensemble.hosts, "/minority") as one:
        one.must(Create("/a", b""))
        for server in ensemble.servers[:2]:
            server.kill()
        one.wait(Suspended)
        tag = one.start(Put("/a", b"1", 0))
        end = time.monotonic() + SESSION_MS / 1000
        while time.monotonic() < end:
            assert not [event for event in one.poll() if isinstance(event, Committed)]
        for server in ensemble.servers[:2]:
            server.start()
        answer = one.answer(tag)
        assert isinstance(answer, (Committed, Uncertain))
        (entry,) = one.load("/a")
        assert entry.version or isinstance(answer, Uncertain)
        assert one.load("/a") == (entry,)
