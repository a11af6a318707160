"""The memory backend fulfils the contract, and the contract's checks find backends that do not."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from pymq.coord.base import Coordinator
from pymq.coord.memory import MemoryCoordinator, MemoryTree
from pymq.coord.tree import CommitPlan
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    CoordRequest,
    Create,
    Load,
    Loaded,
    Put,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.errors import Closed, InvalidRequest
from pymq.testing import check_coordinator


def maker(
    kind: type[MemoryCoordinator] = MemoryCoordinator, hub: type[MemoryTree] = MemoryTree
) -> Callable[[str], Coordinator]:
    """Return a function that opens sessions on trees by name."""
    trees: dict[str, MemoryTree] = {}
    return lambda name: kind(trees.setdefault(name, hub()))


def test_contract() -> None:
    """The backend passes all checks."""
    check_coordinator(maker())


def test_expired_session() -> None:
    """An expired session loses its nodes and watches, others are notified, and it gets a
    new name.
    """
    hub = MemoryTree()
    one, two = MemoryCoordinator(hub, session="one"), MemoryCoordinator(hub, session="two")
    for client in (one, two):
        client.submit(Load(1, "/"))
    one.submit(Commit(2, (Create("/e", b"", ephemeral=True), Create("/k", b""))))
    one.poll(), two.poll()
    hub.expire("one")
    assert one.poll() == [SessionExpired("session-1")]
    assert one.session == "session-1"
    assert two.poll() == [Changed("/e")]
    two.submit(Commit(3, (Put("/k", b"", 0),)))
    assert one.poll() == []
    assert [entry.path for entry in hub.entries()] == ["/k"]
    assert hub.sessions == ("two", "session-1")
    with pytest.raises(InvalidRequest):
        hub.expire("one")


def test_suspended_session_survives() -> None:
    """Unanswered commits are uncertain, requests wait.

    Possible changes are reported after Resumed.
    """
    hub = MemoryTree()
    one, two = MemoryCoordinator(hub), MemoryCoordinator(hub)
    one.submit(Load(1, "/"))
    one.poll()
    one.submit(Commit(2, (Create("/a", b"", ephemeral=True),)))
    one.submit(Commit(3, (Create("/a", b""),)))
    one.suspend()
    one.suspend()
    assert one.poll() == [Uncertain(2), Changed("/a"), Uncertain(3), Suspended()]
    one.submit(Commit(4, (Create("/b", b""),)))
    one.submit(Load(5, "/b"))
    two.submit(Commit(1, (Create("/c", b""),)))
    assert one.poll() == []
    assert [entry.path for entry in hub.entries()] == ["/a", "/c"]
    one.resume()
    one.resume()
    assert one.poll() == [
        *(Resumed(), Changed("/"), Committed(4, (0,)), Changed("/b")),
        Loaded(5, hub.entries("/b")),
    ]


def test_suspended_session_expires() -> None:
    """The suspended session is expired when it returns.

    The commits of the session are uncertain, and its loads are answered.
    """
    hub = MemoryTree()
    one, two = MemoryCoordinator(hub, session="one"), MemoryCoordinator(hub, session="two")
    one.submit(Load(1, "/"))
    one.submit(Commit(2, (Create("/a", b"", ephemeral=True),)))
    one.poll()
    one.suspend()
    one.submit(Commit(3, (Create("/b", b""),)))
    one.submit(Load(4, "/"))
    hub.expire("one")
    assert hub.sessions == ("two",)
    two.submit(Commit(1, (Create("/c", b""),)))
    assert one.poll() == [Suspended()]
    assert one.session == "one"
    one.resume()
    assert one.poll() == [Uncertain(3), SessionExpired("session-1"), Loaded(4, hub.entries())]
    assert [entry.path for entry in hub.entries()] == ["/c"]
    one.submit(Commit(5, (Create("/d", b""),)))
    assert one.poll() == [Committed(5, (0,)), Changed("/d")]


def test_closed_session() -> None:
    """Closing twice is allowed, also after an expiry; later requests raise."""
    hub = MemoryTree()
    one = MemoryCoordinator(hub, session="one")
    with pytest.raises(InvalidRequest):
        MemoryCoordinator(hub, session="one")
    one.suspend()
    hub.expire("one")
    again = MemoryCoordinator(hub, session="one")
    one.close()
    one.close()
    assert hub.sessions == ("one",)
    again.close()
    assert again.poll() == []
    with pytest.raises(Closed):
        again.submit(Load(1, "/"))


def test_threads_share_a_tree() -> None:
    """Four threads that count with conditional writes lose no increment and no event."""
    hub = MemoryTree()
    first = MemoryCoordinator(hub)
    first.submit(Commit(1, (Create("/n", b""),)))
    first.submit(Load(2, "/n"))
    first.poll()

    def count() -> None:
        client, version, left = MemoryCoordinator(hub), 0, 500
        while left:
            client.submit(Commit(1, (Put("/n", b"", version),)))
            (answer,) = client.poll()
            left -= isinstance(answer, Committed)
            version = hub.entries("/n")[0].version

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    changes = 0
    while any(thread.is_alive() for thread in threads):
        changes += len(first.poll())
    assert hub.entries("/n")[0].version == 2_000
    assert changes + len(first.poll()) == 2_000


def trace() -> str:
    """Return a digest of all events of a fixed course of actions."""
    hub = MemoryTree()
    clients = [MemoryCoordinator(hub) for _ in range(3)]
    events: list[CoordEvent] = []
    for number in range(50):
        client = clients[number % 3]
        client.submit(Load(number, f"/{number % 5}"))
        ops = tuple(Create(f"/{number % 5 + i}", b"", ephemeral=i == 1) for i in range(3))
        client.submit(Commit(number, ops))
        if number % 7 == 6:
            hub.expire(client.session)
        for each in clients:
            events += each.poll()
    return hashlib.sha256(repr(events).encode()).hexdigest()


def test_events_do_not_depend_on_the_hash_seed() -> None:
    """The same actions give the same events in the same order in any process."""
    script = "import runpy, sys; print(runpy.run_path(sys.argv[1])['trace']())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == trace()


# --- the checks notice ----------------------------------------------------------------------------


class ForgetsConflict(MemoryCoordinator):
    """Reports every commit as done."""

    def poll(self) -> Sequence[CoordEvent]:
        return [Committed(e.tag, (0,)) if isinstance(e, Conflicted) else e for e in super().poll()]


class WrongIndex(MemoryCoordinator):
    """A coordinator that names the first op of a commit as the refused one."""

    def poll(self) -> Sequence[CoordEvent]:
        return [
            Conflicted(e.tag, 0, e.reason) if isinstance(e, Conflicted) else e
            for e in super().poll()
        ]


class HalfDone(MemoryCoordinator):
    """A backend that keeps the changes of a refused commit before its refused op."""

    def submit(self, request: CoordRequest) -> None:
        super().submit(request)
        answer = self.arrivals[-1]
        if isinstance(request, Commit) and isinstance(answer, Conflicted):
            self._hub._tree.apply(Commit(0, request.ops[: answer.index]), self.session)


class Unordered(MemoryCoordinator):
    """Loads in a wrong order."""

    def poll(self) -> Sequence[CoordEvent]:
        return [
            Loaded(e.tag, e.entries[::-1]) if isinstance(e, Loaded) else e for e in super().poll()
        ]


class Hasty(MemoryCoordinator):
    """Reports changes before answers."""

    def poll(self) -> Sequence[CoordEvent]:
        return sorted(super().poll(), key=lambda event: not isinstance(event, Changed))


class Gossip(MemoryCoordinator):
    """Reports all changes, watched or not."""

    def submit(self, request: CoordRequest) -> None:
        self._hub._watches.add(self.session, "/")
        super().submit(request)


class Deaf(MemoryTree):
    """Reports no change."""

    def _announce(self, plan: CommitPlan) -> None:
        pass


class NoDeletions(MemoryTree):
    """Does not report deletions."""

    def _announce(self, plan: CommitPlan) -> None:
        super()._announce(CommitPlan((), {p: e for p, e in plan.changes.items() if e is not None}))


class Undead(MemoryTree):
    """A backend that keeps ephemeral nodes when their session ends."""

    def _end(self, session: str) -> None:
        self._clients.pop(session, None)


class Lenient(MemoryCoordinator):
    """Accepts any request."""

    def submit(self, request: CoordRequest) -> None:
        try:
            super().submit(request)
        except InvalidRequest:
            self.arrivals.append(Conflicted(request.tag, 0, "missing"))


class Namesake(MemoryCoordinator):
    """Gives every session the same name."""

    @property
    def session(self) -> str:
        return "me"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (maker(ForgetsConflict), "should have been refused"),
        (maker(WrongIndex), "at op 3"),
        (maker(HalfDone), "refused commit must change nothing"),
        (maker(Unordered), "ordered by path"),
        (maker(Hasty), "before the commit"),
        (maker(Gossip), "not below a root"),
        (maker(hub=Deaf), "did not come"),
        (maker(hub=NoDeletions), "did not come"),
        (maker(hub=Undead), "did not come"),
        (maker(Lenient), "InvalidRequest"),
        (maker(Namesake), "same name"),
    ],
)
def test_checks_notice(make: Callable[[str], Coordinator], words: str) -> None:
    """The checks name the rule that a faulty backend breaks."""
    with pytest.raises(AssertionError, match=words):
        check_coordinator(make, timeout_s=0.05)


def test_checks_notice_what_is_not_durable() -> None:
    """After a restart a durable backend must find its tree again."""
    trees: dict[str, MemoryTree] = {}
    with pytest.raises(AssertionError, match="after a restart"):
        check_coordinator(
            lambda name: MemoryCoordinator(trees.setdefault(name, MemoryTree())),
            restart=lambda name: trees.clear(),
        )
