"""Sessions of a backend under test, with helpers for the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pymq.coord.base import Coordinator
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    Entry,
    Load,
    Loaded,
    Op,
)

Make = Callable[[str], Coordinator]
# Pause between two polls. The contract has no call that waits; the pause only saves processor time,
# and its length decides no check.
PAUSE_S = 0.001


@contextmanager
def named(name: str) -> Iterator[None]:
    """Name the check in which an assertion failed."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"in check_coordinator: {name.removeprefix('_check_')}")
        raise


class CoordinatorSuite:
    """Opens sessions for one check and closes them after it."""

    def __init__(self, make: Make, timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s

    @contextmanager
    def clients(self, tree: str, count: int = 1) -> Iterator[Sequence[SuiteClient]]:
        opened: list[SuiteClient] = []
        try:
            opened.extend(SuiteClient(self._make(tree), self._timeout_s) for _ in range(count))
            yield opened
        finally:
            for client in opened:
                client.backend.close()


class SuiteClient:
    """A session with calls that wait for answers; ``seen`` has all its events so far, in order."""

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
        assert isinstance(answer, Committed), f"{listed(ops)} should have been done, but: {answer}"
        return answer.versions

    def refused(self, index: int, reason: str, *ops: Op) -> None:
        answer = self.commit(*ops)
        wanted = f"{listed(ops)} should have been refused at op {index} with {reason!r}"
        assert isinstance(answer, Conflicted), f"{wanted}, but: {answer}"
        assert (answer.index, answer.reason) == (index, reason), f"{wanted}, but: {answer}"

    def load(self, root: str) -> tuple[Entry, ...]:
        answer = self.answer(self.start_load(root))
        assert isinstance(answer, Loaded), f"a Load was answered with {answer}"
        return answer.entries

    def sees(self, root: str, count: int) -> None:
        """Wait until *count* nodes are loaded: changes of other sessions may arrive late."""
        end = time.monotonic() + self._timeout_s
        while (found := len(self.load(root))) != count:
            assert time.monotonic() < end, f"{found} nodes at {root}, expected {count}"
            # no event tells when another session's change becomes visible
            time.sleep(PAUSE_S)

    def answer(self, tag: int) -> CoordEvent:
        return self.wait(lambda event: getattr(event, "tag", None) == tag, f"the answer to {tag}")

    def changed(self, path: str, since: int) -> None:
        """Wait for a notice of a change of *path* after the first *since* events."""
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
                # poll the backend: the contract has no call that waits
                time.sleep(PAUSE_S)

    def paths(self, since: int) -> list[str]:
        """Return the paths with notices of changes after the first *since* events."""
        return [event.path for event in self.seen[since:] if isinstance(event, Changed)]


def listed(ops: Sequence[Op]) -> str:
    """Format operations as text."""
    return ", ".join(map(str, ops)) or "an empty commit"


def same(found: Sequence[Entry], wanted: Sequence[Entry], when: str) -> None:
    """Assert that a load returned exactly these nodes."""
    assert tuple(found) == tuple(wanted), f"{when}: loaded {found}, expected {wanted}"
