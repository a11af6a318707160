"""Audits refused requests, and allowed requests if the policy says so, at a limited rate.

A client can repeat a refused request a thousand times a second, and a log line for each would
overload the node. So the audit writes each kind of line at most once a second, with the number of
omitted lines. A client could create endless new kinds by requesting unknown names, so lines for one
principal's refusals are also limited in number per second and in length. The counter of refusals
counts all refusals.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable

from pymq.core.values import value

EVERY_MS = 1000
KINDS_MAX = 10_000  # most kinds of lines that are counted separately
# Lines a second for the refusals of one principal, which is more than there are kinds of requests.
# Lines for allowed requests are not limited.
LINES_MAX = 200
TEXT_MAX = 300  # most characters of a text from a client; no valid name is longer


@value
class AuditedRequest:
    """A request of a principal."""

    principal: str
    source: str  # the machine that sent the request
    request: str  # the name of the message
    operation: str  # the required operation, or "quota"
    resource: str  # the resource, written as in a policy


class Audit:
    """Writes one JSON object per line with *write*; *wall_ms* returns the wall clock."""

    def __init__(self, write: Callable[[str], object], wall_ms: Callable[[], int]) -> None:
        self.refused = 0  # refusals since the node started
        self._lock = threading.Lock()  # other threads handle HTTP requests
        self._write = write
        self._wall_ms = wall_ms
        self._seen: OrderedDict[tuple[str, ...], list[int]] = OrderedDict()
        # By principal: start of the current second, lines written in this second, omitted lines.
        self._refusals: OrderedDict[str, list[int]] = OrderedDict()

    def refuse(self, asked: AuditedRequest, now: int) -> None:
        """Record a refused request; any thread may call this."""
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
        """Record an allowed request, before its outcome is known."""
        with self._lock:
            self._note("allowed", asked, now)

    def _note(self, event: str, asked: AuditedRequest, now: int, others: int = 0) -> bool:
        """Write a line, unless one of its kind was just written; *others* lines were omitted."""
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
