"""A reader's searches for offsets by time, sent to the partition's replicas with retries."""

from __future__ import annotations

from typing import NamedTuple

from pymq.client.base import Outbox, Waitable
from pymq.client.fetching.partition_route import PartitionRoute
from pymq.client.router import Router
from pymq.core.message import FindOffset, OffsetFound
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import PymqError, RequestTimeout

SEARCH_MS = 9_000  # the longest time of a search


@define
class TimeSearch:
    """The search for the first record of a partition that is not older than a time."""

    partition: str
    timestamp_ms: int
    done: Waitable
    route: PartitionRoute
    until: int = NEVER
    request: int = 0  # 0: no request is in flight


class SearchResult(NamedTuple):
    """The result of a search: the offset, or the error."""

    search: TimeSearch
    offset: int
    error: PymqError | None


class TimeSearches:
    """The searches of one reader; the requests are sent through *outbox*."""

    def __init__(self, topic: str, router: Router, outbox: Outbox) -> None:
        self.due = NEVER  # the deadline of :meth:`tick`
        self._topic = topic
        self._router = router
        self._outbox = outbox
        self._searches: list[TimeSearch] = []

    def add(self, partition: str, timestamp_ms: int) -> Waitable:
        """Add a search, which :meth:`start` sends; the caller waits for the result."""
        route = PartitionRoute(self._topic, partition)
        search = TimeSearch(partition, timestamp_ms, Waitable(), route)
        self._searches.append(search)
        return search.done

    def start(self, now: int) -> None:
        """Send a request for each search that has none in flight."""
        for search in self._searches:
            if not search.request:
                self._ask(search, now)

    def _ask(self, search: TimeSearch, now: int) -> None:
        if search.until == NEVER:
            search.until = now + SEARCH_MS
        peer = search.route.find(self._router)
        wait = SEARCH_MS
        if peer is not None:
            search.request = self._outbox.number()
            find = FindOffset(
                search.request,
                self._topic,
                search.partition,
                search.timestamp_ms,
                any_replica=search.route.is_elsewhere,
            )
            self._outbox.post(peer, find)
            wait = search.route.patience_ms
        self.due = min(self.due, now + wait, search.until)

    def answered(self, m: OffsetFound, now: int) -> SearchResult | None:
        """Handle an answer; returns the result if the answer ends a search."""
        search = next((s for s in self._searches if s.request == m.id), None)
        if search is None:
            return None
        search.request = 0
        if m.error is None:
            return self._end(search, m.offset, None)
        pause = search.route.refused(self._router, m.error)
        if pause is None:
            return self._end(search, -1, m.error)
        if pause:
            self.due = min(self.due, now + pause)
        else:
            self._ask(search, now)
        return None

    def tick(self, now: int) -> list[SearchResult]:
        """Retry requests that were not answered; returns the searches that have timed out."""
        self.due = NEVER
        over = []
        for search in list(self._searches):
            if search.until <= now:
                why = search.route.why(self._router) or "no replica has answered"
                error = RequestTimeout(f"{self._topic}/{search.partition}: {why}")
                over.append(self._end(search, -1, error))
                continue
            if search.request:
                search.route.silent(self._router)
                search.request = 0
            self._ask(search, now)
        return over

    def _end(self, search: TimeSearch, offset: int, error: PymqError | None) -> SearchResult:
        self._searches.remove(search)
        return SearchResult(search, offset, error)
