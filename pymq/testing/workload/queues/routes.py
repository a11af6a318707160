"""Routes: each record goes to the group of its route, or without a route to all other groups.

A route may change at any time, and a producer learns it a little later. So the history keeps for
each record all routes that its producer may have applied when it closed the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.producer_topic import Routing
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.core.metadata.route import ROUTE, WHOLE, parse_route
from pymq.core.values import Factory, define
from pymq.testing.faults.plan import Plan
from pymq.testing.workload.promises import TopicPromises

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymq.client.router import Router
    from pymq.testing.workload.applications import Sent

CANARY = "canary"  # the group of all routes
TAG = "tag"  # the header that some records have

Broken = tuple[str, str]  # the rule, and how it is broken


def tag_of(number: int) -> bytes:
    """The value of the header of a record."""
    return b"ab"[number % 2 :][:1]


@define
class RouteHistory:
    """The routes of a run, and where records went."""

    topics: set[str] = Factory(set)  # topics that always have a route
    texts: list[str | None] = Factory(list)  # the routes, one for each time a producer learned one
    applied: dict[int, list[int]] = Factory(dict)  # by record: the routes that may count
    keys: dict[int, bytes | None] = Factory(dict)  # by record
    routed: dict[int, bool] = Factory(dict)  # by record that was read: whether it has a route
    # By the text of a share and a key: whether its records have a route.
    shares: dict[tuple[str, bytes], bool] = Factory(dict)
    came: dict[int, set[str]] = Factory(dict)  # the groups that got each record

    def read(self, record: Record, number: int) -> Broken | None:
        """Note a record that anybody has read; returns the rule that its route breaks, and how."""
        found = self.applied.get(number)
        if found is None:
            return None
        is_routed = any(name == ROUTE for name, _ in record.headers)
        if self.routed.setdefault(number, is_routed) != is_routed:
            return "route-as-configured", f"{number} is routed in one copy, and in one it is not"
        texts = {self.texts[index] for index in found}
        wanted = {self._decide(text, number, self.keys[number]) for text in texts}
        if is_routed not in wanted and None not in wanted:
            how = "" if is_routed else "not "
            return "route-as-configured", f"{number} is {how}routed under {texts}"
        key = self.keys[number]
        if key is not None and wanted == {None} and len(texts) == 1:
            (text,) = texts
            assert text is not None
            if self.shares.setdefault((text, key), is_routed) != is_routed:
                return "route-as-configured", f"{text} divides the records of key {key!r}"
        return None

    def _decide(self, text: str | None, number: int, key: bytes | None) -> bool | None:
        """Whether a route takes a record; None if its share decides."""
        if text is None:
            return False
        route = parse_route(text)
        if route.pattern is not None:
            return route.matches(key, ((TAG, tag_of(number)),))
        return None if 0 < route.share < WHOLE else route.share == WHOLE

    def delivered(self, record: Record, number: int, group: str) -> Broken | None:
        """Note that a group got a record; returns the rule that this breaks, and how."""
        if record.topic not in self.topics:
            return None
        self.came.setdefault(number, set()).add(group)
        route = next((text.decode() for name, text in record.headers if name == ROUTE), None)
        if group == route if route is not None else group != CANARY:
            return None
        return "routed-to-one", f"{group} got {number}, which is for {route or 'all others'}"

    def uneven(self, sent: Mapping[int, Sent]) -> Broken | None:
        """Compare shares with what was routed; *sent* are records that must have been read."""
        records: dict[int, list[int]] = {}
        for number, found in self.applied.items():
            for index in found:
                records.setdefault(index, []).append(number)
        for index, numbers in records.items():
            text = self.texts[index]
            route = parse_route(text) if text is not None else None
            if route is None or route.pattern is not None or not all(n in sent for n in numbers):
                continue
            loose = [n for n in numbers if self.keys[n] is None]
            sure = [n for n in loose if self.applied[n] == [index]]
            if any(n not in self.routed for n in loose):
                continue
            count, share = sum(self.routed[n] for n in sure), route.share / WHOLE
            if not -1 <= count - share * len(sure) <= 1 and len(sure) == len(loose):
                return "route-as-configured", f"{text} has routed {count} of {len(sure)} records"
        return None


class RouteFollower:
    """Applies the routes of topics to the queues of one producer, as it learns them."""

    def __init__(self, history: RouteHistory, router: Router, producer_id: int) -> None:
        self._history = history
        self._router = router
        self._producer_id = producer_id
        self._present: dict[str, int] = {}  # the present route of each topic
        self._routings: dict[str, Routing | None] = {}
        self._open: dict[str, list[Sent]] = {}  # records that may not be in a closed batch

    def follow(self, topic: str, queues: Mapping[tuple[str, str], PartitionQueue]) -> None:
        """Adopt a topic's route if it has changed, also for records whose batch is still open."""
        known = self._router.metadata.topics.get(topic)
        text = known.config.route if known is not None else None
        if topic not in self._present or self._history.texts[self._present[topic]] != text:
            self._present[topic] = index = len(self._history.texts)
            self._history.texts.append(text)
            routing = Routing(text, parse_route(text), self._producer_id) if text else None
            self._routings[topic] = routing
            self._open[topic] = [sent for sent in self._open.get(topic, ()) if sent.done_at < 0]
            for sent in self._open[topic]:
                self._history.applied[sent.number].append(index)
        for (name, _), queue in queues.items():
            if name == topic:
                queue.routing = self._routings[topic]

    def note(self, sent: Sent, key: bytes | None) -> Headers:
        """Note a record that is about to be sent; returns its header."""
        if sent.topic not in self._history.topics:
            return ()
        self._history.applied[sent.number] = [self._present[sent.topic]]
        self._history.keys[sent.number] = key
        self._open[sent.topic].append(sent)
        return ((TAG, tag_of(sent.number)),)


class RouteRules:
    """Checks at the end of a run that no record was left out."""

    def __init__(
        self,
        history: RouteHistory,
        plan: Plan,
        promises: TopicPromises,
        fail: Callable[[str, str], None],
    ) -> None:
        self._history = history
        self._promises = promises
        self._fail = fail
        joins = [
            (str(topic), str(group), app.get("max_deliver", 0))
            for app in plan.apps
            for topic, group in app.get("groups", ())
        ]
        # A record that was leased to a crashed member counts as delivered.
        limited = {(topic, group) for topic, group, most in joins if most}
        self._groups = {(topic, group) for topic, group, _ in joins} - limited

    def check(self, all_sent: list[Sent]) -> None:
        """Check that each record that no fault may lose went to the right groups."""
        history = self._history
        kept = {
            sent.number: sent
            for sent in all_sent
            if sent.topic in history.topics
            and sent.is_acked
            and self._promises.is_safe(sent)
            and self._promises.keeps_all(sent.topic)
        }
        for number, sent in kept.items():
            is_routed = history.routed.get(number)
            if is_routed is None or sent.due_ms or sent.expires_ms:
                continue
            for topic, group in sorted(self._groups):
                is_its = topic == sent.topic and (group == CANARY) is is_routed
                if is_its and group not in history.came.get(number, ()):
                    self._fail("routed-to-one", f"{group} never got {number}, which was for it")
        if (broken := history.uneven(kept)) is not None:
            self._fail(*broken)
