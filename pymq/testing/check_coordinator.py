"""Proves that a coordinator backend keeps the contract of :mod:`pymq.coord.base`.

A backend's own test is one call::

    def test_contract(tmp_path):
        trees = {}

        def make(name):
            if name not in trees:
                trees[name] = SqliteTree(tmp_path / name)
            return SqliteCoordinator(trees[name])

        def restart(name):
            trees.pop(name).close()

        check_coordinator(make, restart=restart)

Backends may be remote and slow: the checks wait for answers, but never for something not to happen.
What must not be reported is shown by a later event that has overtaken it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pymq.coord.base import Coordinator
from pymq.core.coordination import (
    Changed,
    Check,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    Create,
    Delete,
    Entry,
    Load,
    Loaded,
    Op,
    Put,
)
from pymq.errors import InvalidRequest

__all__ = ["check_coordinator"]

Make = Callable[[str], Coordinator]


def check_coordinator(
    make: Make,
    *,
    restart: Callable[[str], None] | None = None,
    commits: int = 2_000,
    seed: int = 0,
    timeout_s: float = 10.0,
) -> None:
    """Raise :class:`AssertionError`, saying what is broken, unless the backend keeps every rule.

    *make(name)* opens a new session on the tree called *name*: the same name is the same tree, a
    new name an empty one. Sessions that *make* gave are closed here; trees are the caller's.

    *restart(name)*, for durable backends, forgets all that is in memory about a tree that has no
    open session, as the end of the process would; the next *make(name)* must find it again.

    *commits* random commits, drawn from *seed*, are compared with a plain dict. No single answer
    may take longer than *timeout_s*.
    """
    suite = _Suite(make, timeout_s)
    for check in _CHECKS:
        with _named(check.__name__):
            check(suite)
    with _named("random"):
        _check_random(suite, commits, random.Random(seed))
    if restart is not None:
        with _named("durability"):
            _check_durability(suite, restart)


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"in check_coordinator: {name.removeprefix('_check_')}")
        raise


class _Suite:
    """Opens sessions for one check and closes them after it."""

    def __init__(self, make: Make, timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s

    @contextmanager
    def clients(self, tree: str, count: int = 1) -> Iterator[Sequence[_Client]]:
        opened: list[_Client] = []
        try:
            opened.extend(_Client(self._make(tree), self._timeout_s) for _ in range(count))
            yield opened
        finally:
            for client in opened:
                client.backend.close()


class _Client:
    """A session whose answers can be waited for; ``seen`` are all its events so far, in order."""

    def __init__(self, backend: Coordinator, timeout_s: float) -> None:
        self.backend = backend
        self.seen: list[CoordEvent] = []
        self._timeout_s = timeout_s
        self._tag = 0

    def start(self, *ops: Op) -> int:
        self._tag += 1
        self.backend.submit(Commit(self._tag, ops))
        return self._tag

    def start_load(self, root: str) -> int:
        self._tag += 1
        self.backend.submit(Load(self._tag, root))
        return self._tag

    def commit(self, *ops: Op) -> Committed | Conflicted:
        answer = self.answer(self.start(*ops))
        assert isinstance(answer, (Committed, Conflicted)), (
            f"a Commit was answered with {answer}, though nobody cut the connection"
        )
        return answer

    def must(self, *ops: Op) -> tuple[int, ...]:
        answer = self.commit(*ops)
        assert isinstance(answer, Committed), f"{_list(ops)} should have been done, but: {answer}"
        return answer.versions

    def refused(self, index: int, reason: str, *ops: Op) -> None:
        answer = self.commit(*ops)
        wanted = f"{_list(ops)} should have been refused at op {index} with {reason!r}"
        assert isinstance(answer, Conflicted), f"{wanted}, but: {answer}"
        assert (answer.index, answer.reason) == (index, reason), f"{wanted}, but: {answer}"

    def load(self, root: str) -> tuple[Entry, ...]:
        answer = self.answer(self.start_load(root))
        assert isinstance(answer, Loaded), f"a Load was answered with {answer}"
        return answer.entries

    def sees(self, root: str, count: int) -> None:
        """Wait until *count* nodes are loaded; what others did may take a while to be seen."""
        end = time.monotonic() + self._timeout_s
        while (found := len(self.load(root))) != count:
            assert time.monotonic() < end, f"{found} nodes at {root}, expected {count}"
            time.sleep(0.001)

    def answer(self, tag: int) -> CoordEvent:
        return self.wait(lambda event: getattr(event, "tag", None) == tag, f"the answer to {tag}")

    def changed(self, path: str, since: int) -> None:
        """Wait until a change of *path* is reported, after the first *since* events."""
        self.wait(lambda event: event == Changed(path), f"Changed({path!r})", since)

    def wait(self, wanted: Callable[[CoordEvent], bool], what: str, since: int = 0) -> CoordEvent:
        end = time.monotonic() + self._timeout_s
        while True:
            for event in self.seen[since:]:
                if wanted(event):
                    return event
            since = len(self.seen)
            self.seen += self.backend.poll()
            if len(self.seen) == since:
                assert time.monotonic() < end, f"{what} did not come within {self._timeout_s} s"
                time.sleep(0.001)

    def paths(self, since: int) -> list[str]:
        """The paths that were reported as changed after the first *since* events."""
        return [event.path for event in self.seen[since:] if isinstance(event, Changed)]


def _list(ops: Sequence[Op]) -> str:
    return ", ".join(map(str, ops)) or "an empty commit"


def _same(found: Sequence[Entry], wanted: Sequence[Entry], when: str) -> None:
    assert tuple(found) == tuple(wanted), f"{when}: loaded {found}, expected {wanted}"


def _check_versions(suite: _Suite) -> None:
    with suite.clients("versions") as (client,):
        assert client.load("/a") == (), "a root that does not exist must load as nothing"
        assert client.must() == (), "an empty commit has no versions"
        assert client.must(Create("/a", b"0")) == (0,), "a new node has version 0"
        assert client.must(Put("/a", b"1", 0)) == (1,), "each Put raises the version by one"
        assert client.must(Put("/a", b"1", 1)) == (2,), "a Put of the same data counts as well"
        assert client.must(Check("/a", 2)) == (2,), "Check answers with the version it found"
        _same(client.load("/a"), [Entry("/a", b"1", 2)], "after two Puts")
        assert client.must(Delete("/a", 2)) == (-1,), "Delete answers with version -1"
        assert client.must(Create("/a", b"")) == (0,), "a node made again starts at 0 again"
        big = bytes(range(256)) * 2048
        client.must(Put("/a", big, 0))
        _same(client.load("/a"), [Entry("/a", big, 1)], "512 KiB of every byte")


def _check_conflicts(suite: _Suite) -> None:
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
            client.refused(0, "version", Delete("/a", version))  # before "not-empty" is looked at
        client.refused(0, "not-empty", Delete("/a", 0))
        client.must(Create("/a/e", b"", ephemeral=True))
        client.refused(0, "no-parent", Create("/a/e/x", b""))  # an ephemeral node has no children
        wanted = [Entry("/a", b"a", 0), Entry("/a/b", b"b", 0)]
        _same([e for e in client.load("/a") if e.path != "/a/e"], wanted, "after refused commits")


def _check_atomicity(suite: _Suite) -> None:
    with suite.clients("atomicity", 2) as (client, other):
        client.must(Create("/a", b"0"), Create("/a/b", b"0"), Create("/a/c", b"0"))
        before = client.load("/a")
        other.load("/a")
        since = len(other.seen)
        start: tuple[Op, ...] = (Put("/a", b"1", 0), Create("/a/d", b""), Delete("/a/b", 0))
        ends: list[tuple[str, Op]] = [
            ("version", Put("/a/c", b"1", 1)),
            ("version", Check("/a", 0)),  # it is 1 by then
            ("missing", Delete("/a/b", 0)),
            ("exists", Create("/a/d", b"")),
            ("no-parent", Create("/a/b/x", b"")),
            ("not-empty", Delete("/a", 1)),
        ]
        for reason, end in ends:
            client.refused(3, reason, *start, end)
            _same(client.load("/a"), before, "a refused commit must change nothing")
        versions = client.must(
            *(Put("/a", b"1", 0), Put("/a", b"2", 1), Check("/a", 2)),
            *(Delete("/a/b", 0), Create("/a/b", b"again"), Create("/a/b/x", b"x")),
            *(Create("/a/t", b""), Delete("/a/t", 0), Delete("/a/c", 0)),
        )
        assert versions == (1, 2, 2, -1, 0, 0, 0, -1, -1), f"versions of one commit: {versions}"
        _same(
            client.load("/a"),
            [Entry("/a", b"2", 2), Entry("/a/b", b"again", 0), Entry("/a/b/x", b"x", 0)],
            "each op must see the ops before it",
        )
        other.changed("/a/b/x", since)
        told = other.paths(since)
        assert "/a/d" not in told, "a refused commit was reported as a change"


def _check_load_order(suite: _Suite) -> None:
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


def _check_pipelining(suite: _Suite) -> None:
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


def _check_watches(suite: _Suite) -> None:
    with suite.clients("watches", 3) as (writer, reader, stranger):
        writer.must(Create("/a", b""), Create("/ab", b""), Create("/b", b""))
        for root in ("/a", "/later", "/a"):  # twice the same root must be harmless
            reader.load(root)
        stranger.load("/b")
        # If these were reported, then before everything that is waited for below.
        writer.must(Create("/ab/x", b""), Put("/b", b"", 0), Check("/a", 0))
        steps: list[tuple[Op, ...]] = [
            (Create("/a/x", b""),),
            (Put("/a/x", b"1", 0),),
            (Create("/a/x/y", b""), Create("/a/x/y/z", b"")),
            (Put("/a/x/y/z", b"1", 0),),
            (Delete("/a/x/y/z", 1), Delete("/a/x/y", 0)),
            (Delete("/a/x", 1),),
            (Put("/a", b"1", 0),),
            (Create("/later", b""), Create("/later/x", b"")),
            (Delete("/a", 1),),
            (Create("/a", b""), Create("/a/x", b"")),
        ]
        for ops in steps:
            since = len(reader.seen)
            writer.must(*ops)
            for op in ops:
                reader.changed(op.path, since)
        foreign = [p for p in reader.paths(0) if p.split("/")[1] not in ("a", "later")]
        assert not foreign, f"{foreign} changed, which is not below a root that was loaded"
        writer.must(Create("/b/last", b""))
        stranger.changed("/b", 0)
        stranger.changed("/b/last", 0)
        foreign = [path for path in stranger.paths(0) if path not in ("/b", "/b/last")]
        assert not foreign, f"{foreign} changed, but only /b was loaded"
        assert not writer.paths(0), "a session that loaded nothing hears of no change"


def _check_answer_before_change(suite: _Suite) -> None:
    with suite.clients("answer-before-change") as (client,):
        client.must(Create("/a", b""))
        client.load("/a")
        tags = {}
        for i in range(30):
            tags[client.start(Create(f"/a/{i}", b""))] = f"/a/{i}"
        client.changed("/a/29", 0)
        answered = set()
        for event in client.seen:
            if isinstance(event, Committed) and event.tag in tags:
                answered.add(tags[event.tag])
            elif isinstance(event, Changed) and event.path in tags.values():
                assert event.path in answered, (
                    f"{event} came before the commit that made it was answered to its submitter"
                )
        assert answered == set(tags.values()), "a change came, but the answers before it did not"


def _check_sessions(suite: _Suite) -> None:
    with suite.clients("sessions", 2) as (mortal, witness):
        names = [mortal.backend.session, witness.backend.session]
        assert len(set(names)) == 2, f"two open sessions have the same name: {names}"
        mortal.must(
            *(Create("/a", b""), Create("/a/kept", b"")),
            *(Create("/a/gone", b"", ephemeral=True), Create("/a/too", b"", ephemeral=True)),
        )
        mortal.must(Put("/a/gone", b"1", 0))
        owners = {entry.path: entry.owner for entry in mortal.load("/a")}
        wanted = {"/a": None, "/a/kept": None, "/a/gone": names[0], "/a/too": names[0]}
        assert owners == wanted, f"owners are {owners}, expected {wanted}"
        # Another session may change an ephemeral node; it belongs to its maker all the same.
        witness.sees("/a", 4)
        assert witness.must(Put("/a/too", b"1", 0)) == (1,)
        witness.must(Create("/a/mine", b"", ephemeral=True))
        since = len(witness.seen)
        mortal.backend.close()
        mortal.backend.close()  # must be harmless
        witness.changed("/a/gone", since)
        witness.changed("/a/too", since)
        left = [(entry.path, entry.owner) for entry in witness.load("/a")]
        wanted_left = [("/a", None), ("/a/kept", None), ("/a/mine", names[1])]
        assert left == wanted_left, f"after its session was closed: {left}"
        assert witness.must(Create("/a/gone", b"")) == (0,), "its path must be free again"
    with suite.clients("sessions", 2) as (first, second):
        reused = {first.backend.session, second.backend.session} & set(names)
        assert not reused, f"sessions that ended are named again: {reused}"


def _check_race(suite: _Suite) -> None:
    with suite.clients("race", 2) as clients:
        first, second = clients
        first.must(Create("/a", b""))
        second.sees("/a", 1)
        for version in range(50):
            racers = clients if version % 2 else (second, first)
            tags = [(racer, racer.start(Put("/a", b"", version))) for racer in racers]
            answers = [racer.answer(tag) for racer, tag in tags]
            won = [answer for answer in answers if isinstance(answer, Committed)]
            lost = [answer for answer in answers if isinstance(answer, Conflicted)]
            assert len(won) == len(lost) == 1, f"exactly one of two must win, but: {answers}"
            assert won[0].versions == (version + 1,), f"the winner was told {won[0]}"
            assert lost[0].reason == "version", f"the loser was told {lost[0]}"


def _check_bad_requests(suite: _Suite) -> None:
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


def _check_random(suite: _Suite, commits: int, rng: random.Random) -> None:
    """Random commits by three sessions give what a plain dict gives."""
    with suite.clients("random", 3) as clients:
        twin = _Twin()
        paths = ["/r", *(f"/r/{a}" for a in "abc"), *(f"/r/{a}/{b}" for a in "abc" for b in "xy")]
        clients[0].load("/r")
        for number in range(commits):
            client = rng.choice(clients)
            ops = tuple(twin.draw(rng, paths) for _ in range(rng.randint(1, 5)))
            wanted = twin.do(ops, client.backend.session)
            answer = client.commit(*ops)
            got: object = answer
            if isinstance(answer, Committed):
                got = answer.versions
            elif isinstance(answer, Conflicted):
                got = (answer.index, answer.reason)
            assert got == wanted, f"random commit {number}, {_list(ops)}: {answer} but {wanted}"
            client.seen.clear()
            if rng.random() < 0.05:
                _same(client.load("/r"), twin.entries(), f"after random commit {number}")


class _Twin:
    """The tree again, as simple as it gets: a dict that is copied for each commit."""

    def __init__(self) -> None:
        self.nodes: dict[str, Entry] = {}

    def draw(self, rng: random.Random, paths: Sequence[str]) -> Op:
        path = rng.choice(paths)
        known = self.nodes.get(path)
        version = known.version if known and rng.random() < 0.9 else rng.randint(0, 3)
        kind = rng.random()
        if kind < 0.4 or (known is None and kind < 0.8):
            return Create(path, rng.randbytes(3), ephemeral=rng.random() < 0.2)
        if kind < 0.7:
            return Put(path, rng.randbytes(3), version)
        return Delete(path, version) if kind < 0.9 else Check(path, version)

    def do(self, ops: Sequence[Op], session: str) -> object:
        nodes, versions = dict(self.nodes), []
        for index, op in enumerate(ops):
            reason = self._refuse(nodes, op)
            if reason:
                return (index, reason)
            if isinstance(op, Create):
                nodes[op.path] = Entry(op.path, op.data, 0, session if op.ephemeral else None)
            elif isinstance(op, Put):
                owner = nodes[op.path].owner
                nodes[op.path] = Entry(op.path, op.data, op.version + 1, owner)
            elif isinstance(op, Delete):
                del nodes[op.path]
            versions.append(nodes[op.path].version if op.path in nodes else -1)
        self.nodes = nodes
        return tuple(versions)

    def _refuse(self, nodes: dict[str, Entry], op: Op) -> str | None:
        parent = op.path.rpartition("/")[0]
        if isinstance(op, Create):
            if parent and (parent not in nodes or nodes[parent].owner):
                return "no-parent"
            return "exists" if op.path in nodes else None
        if op.path not in nodes:
            return "missing"
        if nodes[op.path].version != op.version:
            return "version"
        if isinstance(op, Delete) and any(path.startswith(op.path + "/") for path in nodes):
            return "not-empty"
        return None

    def entries(self) -> list[Entry]:
        return [self.nodes[path] for path in sorted(self.nodes)]


def _check_durability(suite: _Suite, restart: Callable[[str], None]) -> None:
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
            _same(client.load("/a"), wanted, "after a restart")
            client.refused(0, "version", Put("/a", b"", 1))


_CHECKS: tuple[Callable[[_Suite], None], ...] = (
    _check_versions,
    _check_load_order,
    _check_conflicts,
    _check_sessions,
    _check_atomicity,
    _check_pipelining,
    _check_watches,
    _check_answer_before_change,
    _check_race,
    _check_bad_requests,
)
