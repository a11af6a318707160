"""Checks of sessions: watches, order, ephemeral nodes."""

from __future__ import annotations

from pymq.core.metadata.coordination import (
    Changed,
    Check,
    Committed,
    Conflicted,
    Create,
    Delete,
    Op,
    Put,
)
from pymq.testing.check_coordinator.suite import CoordinatorSuite


def check_watches(suite: CoordinatorSuite) -> None:
    """A session gets notices of changes of the nodes that it has loaded, and of no other
    changes.
    """
    with suite.clients("watches", 3) as (writer, reader, stranger):
        writer.must(Create("/a", b""), Create("/ab", b""), Create("/b", b""))
        for root in ("/a", "/later", "/a"):  # loading a root twice must be harmless
            reader.load(root)
        stranger.load("/b")
        # If changes outside the roots were reported, they would come before the events for which
        # the check waits below.
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


def check_answer_before_change(suite: CoordinatorSuite) -> None:
    """The answer to a commit comes before the notices of its changes."""
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


def check_sessions(suite: CoordinatorSuite) -> None:
    """The end of a session removes its ephemeral nodes."""
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
        # Another session may change an ephemeral node, but the node still belongs to its creator.
        witness.sees("/a", 4)
        assert witness.must(Put("/a/too", b"1", 0)) == (1,)
        witness.must(Create("/a/mine", b"", ephemeral=True))
        since = len(witness.seen)
        mortal.backend.close()
        mortal.backend.close()  # a second call must be harmless
        witness.changed("/a/gone", since)
        witness.changed("/a/too", since)
        left = [(entry.path, entry.owner) for entry in witness.load("/a")]
        wanted_left = [("/a", None), ("/a/kept", None), ("/a/mine", names[1])]
        assert left == wanted_left, f"after its session was closed: {left}"
        assert witness.must(Create("/a/gone", b"")) == (0,), "its path must be free again"
    with suite.clients("sessions", 2) as (first, second):
        reused = {first.backend.session, second.backend.session} & set(names)
        assert not reused, f"sessions that ended are named again: {reused}"


def check_race(suite: CoordinatorSuite) -> None:
    """Exactly one of two conflicting commits succeeds."""
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
