"""What was refused to whom, and what was let in if the policy says so, at a bounded rate.

Whoever is refused can ask again a thousand times a second; a log that says so each time would be
what brings the node down. So each kind of line is written once a second at most, with the number
of those that were not; and since names that nobody has make kinds without end, what a principal is
refused is a bounded number of lines a second, of bounded length. Refusals are counted always.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable

from pymq.core.values import value

EVERY_MS = 1000
KINDS_MAX = 10_000  # kinds of lines kept apart
# Lines a second of what one principal is refused, more than there are kinds of requests; what is
# allowed is written down always.
LINES_MAX = 200
TEXT_MAX = 300  # characters of what others have written; no name that is one has more


@value
class AuditedRequest:
    """Somebody asked for something."""

    principal: str
    source: str  # the machine that asked
    request: str  # the name of the message
    operation: str  # which it needs, or "quota"
    resource: str  # as it is written in a policy


class Audit:
    """Writes one JSON object a line, by *write*; *wall_ms* tells the time of day."""

    def __init__(self, write: Callable[[str], object], wall_ms: Callable[[], int]) -> None:
        self.refused = 0  # since the node started
        self._lock = threading.Lock()  # HTTP has threads of its own
        self._write = write
        self._wall_ms = wall_ms
        self._seen: OrderedDict[tuple[str, ...], list[int]] = OrderedDict()
        # By principal: since when, how many lines, and how many were left out.
        self._refusals: OrderedDict[str, list[int]] = OrderedDict()

    def refuse(self, asked: AuditedRequest, now: int) -> None:
        """Note that it was refused; any thread may call this."""
        with self._lock:
            self._refuse(asked, now)

    def _refuse(self, asked: AuditedRequest, now: int) -> None:
        self.refused += 1
        lines = self._refusals.get(asked.principal)
        if lines is None:
            self._refusals[asked.principal] = lines = [now, 0, 0]
            if len(self._refusals) > KINDS_MAX:
                self._refusals.popitem(last=False)
        if now - lines[0] >= EVERY_MS:
            lines[0], lines[1] = now, 0
        if lines[1] >= LINES_MAX:
            lines[2] += 1
        elif self._note("refused", asked, now, lines[2]):
            lines[1], lines[2] = lines[1] + 1, 0

    def allow(self, asked: AuditedRequest, now: int) -> None:
        """Note that it was let in; what became of it is not known yet."""
        with self._lock:
            self._note("allowed", asked, now)

    def _note(self, event: str, asked: AuditedRequest, now: int, others: int = 0) -> bool:
        """Write a line unless there was one of its kind; *others* were left out before."""
        resource = asked.resource[:TEXT_MAX]
        key = (event, asked.principal, asked.request, asked.operation, resource)
        found = self._seen.get(key)
        if found is None:
            self._seen[key] = found = [now - EVERY_MS, 0]
            if len(self._seen) > KINDS_MAX:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        if now - found[0] < EVERY_MS:
            found[1] += 1
            return False
        left_out, found[0], found[1] = found[1] + others, now, 0
        entry = {
            "time_ms": self._wall_ms(),
            "event": event,
            "principal": asked.principal,
            "source": asked.source[:TEXT_MAX],
            "request": asked.request,
            "operation": asked.operation,
            "resource": resource,
        }
        if left_out:
            entry["left_out"] = left_out
        self._write(json.dumps(entry, sort_keys=True))
        return True
