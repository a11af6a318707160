"""What one principal sees of a cluster: the latest look at it, shared by all who ask at a time.

Nothing is looked at unless somebody has the page open, and never for more than a fifth of the time,
however large the cluster is and however many look.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pymq.client.admin.groups import GroupDescription
from pymq.client.admin.record_counts import records_of
from pymq.client.client import Client
from pymq.core.metadata.nodes import TopicDescription
from pymq.errors import (
    AuthorizationFailed,
    Closed,
    InvalidRequest,
    NoBrokers,
    PymqError,
)
from pymq.web import views
from pymq.web.browse import browse

EVERY_S = 1.0  # between two looks, at least
SHARE = 4  # ... and so many times as long as the quickest of the last LOOKS took
LOOKS = 8  # a longer one has waited for what fails, which is no work and no time to look away
PATIENCE_S = 3.0  # how long who asks waits for a look that somebody else takes
TOPICS_MAX = 200  # that are described; of the others there are the names
GROUPS_MAX = 100
NAMES_MAX = 5_000
SAMPLES = 180
DESKS_MAX = 16

Json = dict[str, Any]


class ClusterSnapshot:
    """One client, and what it saw last."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._state: Json = {}
        self._due = 0.0
        self._took: deque[float] = deque(maxlen=LOOKS)
        self._seen = 0.0  # when the latest look that saw something began
        self._totals: dict[str, tuple[float, int, int]] = {}  # by topic: when, records, bytes
        self._rates: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES)

    # --- the whole ------------------------------------------------------------------------------

    def state(self) -> Json:
        """The whole cluster, as it was a moment ago."""
        if self._clock() >= self._due and self._lock.acquire(timeout=PATIENCE_S):
            try:
                if self._clock() >= self._due:
                    self._look()
            finally:
                self._lock.release()
        return self._state or {"problem": "the cluster does not answer yet"}

    @property
    def age_s(self) -> float:
        """How long ago what :meth:`state` tells was so."""
        return round(self._clock() - self._seen, 1)

    def _look(self) -> None:
        began = self._clock()
        try:
            # Groups come last: whoever coordinates them may be what is missing, and to find out
            # takes long.
            self._state = self._looked()
            self._seen = began
            self._state = {**self._state, **self._groups()}
        except Closed:
            raise
        except PymqError as error:
            # What was seen last is better than nothing, if it is said how old it is.
            self._state = {**self._state, "problem": str(error), "code": error.code}
        self._took.append(self._clock() - began)
        self._due = self._clock() + max(EVERY_S, SHARE * min(self._took))

    def _looked(self) -> Json:
        client, problems = self.client, []
        cluster = client.cluster()
        names = client.topics()
        topics, hidden = self._topics(names)
        if hidden:
            problems.append(f"{hidden} topics may not be described by whom you are")
        dead = {broker.name for broker in cluster.brokers if not broker.alive}
        at = self._clock()
        rates = {topic.name: self._rate(topic, at) for topic in topics}
        for gone in self._totals.keys() - rates.keys():
            del self._totals[gone]
        known = [rate for rate in rates.values() if rate is not None]
        if known:
            self._rates.append((time.time(), sum(r for r, _ in known), sum(b for _, b in known)))
        return {
            "problem": None,
            "notes": problems,
            "cluster": views.cluster(cluster, topics),
            "topics": [
                views.topic_line(
                    topic, records_of(client.questions, topic), rates[topic.name], dead
                )
                for topic in topics
            ],
            "more_topics": names[TOPICS_MAX:NAMES_MAX],
            "groups": self._state.get("groups", []),
            "rates": [[round(t * 1000), round(r, 1), round(b)] for t, r, b in self._rates],
        }

    def _topics(self, names: Iterable[str]) -> tuple[list[TopicDescription], int]:
        found, hidden = [], 0
        for name in list(names)[:TOPICS_MAX]:
            try:
                found.append(self.client.describe_topic(name))
            except AuthorizationFailed:
                hidden += 1
            except LookupError:
                pass  # It was deleted meanwhile.
        return found, hidden

    def _rate(self, topic: TopicDescription, at: float) -> tuple[float, float] | None:
        """Records and bytes a second since the last look."""
        records = sum(p.end_offset for p in topic.partitions)
        size = sum(block.size_bytes for p in topic.partitions for block in p.blocks)
        before, self._totals[topic.name] = self._totals.get(topic.name), (at, records, size)
        if before is None or at <= before[0] or records < before[1]:
            return None
        seconds = at - before[0]
        # Retention takes bytes away, of which nobody has to hear here.
        return (records - before[1]) / seconds, max(0, size - before[2]) / seconds

    def _groups(self) -> Json:
        """The groups; and what there is to note."""
        found: list[Json] = []
        try:
            names = self.client.groups()
        except (AuthorizationFailed, NoBrokers):
            return {"groups": []}
        except TimeoutError as error:
            note = f"groups are those of before, their coordinator does not answer: {error}"
            return {"notes": [*self._state["notes"], note]}
        for name in names[:GROUPS_MAX]:
            try:
                found.append(views.group_line(self.client.describe_group(name)))
            except (AuthorizationFailed, LookupError):
                pass  # It is somebody else's, or gone.
            except TimeoutError as error:
                found.append({"name": name, "problem": str(error)})
        return {"groups": found}

    # --- one of its parts -----------------------------------------------------------------------

    def topic(self, name: str) -> Json:
        """All about a topic."""
        brokers = self._state.get("cluster", {}).get("brokers", ())
        dead = {broker["name"] for broker in brokers if not broker["alive"]}
        return views.topic(self.client.describe_topic(name), dead)

    def group(self, name: str) -> Json:
        """All about a group."""
        found = self.client.describe_group(name)
        return views.group(found, self._not_begun(found))

    def _not_begun(self, group: GroupDescription) -> list[tuple[str, str]]:
        """Partitions of the group's topics in which it has no offset."""
        topics = {topic for topic, _ in group.committed} | {c.topic for c in group.consumers}
        found: list[tuple[str, str]] = []
        for topic in topics:
            try:
                parts = self.client.describe_topic(topic).partitions
            except (AuthorizationFailed, LookupError):
                continue  # It is somebody else's, or was deleted meanwhile.
            found += [(topic, part.name) for part in parts]
        return [name for name in found if name not in group.committed]

    def records(self, query: Mapping[str, str]) -> Json:
        """Some records of a partition."""
        return browse(self.client, query)

    # --- changing something ---------------------------------------------------------------------

    def change(self, what: str, given: Mapping[str, Any]) -> Json:
        """Do what was asked for.

        Raises:
            InvalidRequest: it is not understood.
            PymqError: it cannot be done.
        """
        topic = given.get("topic")
        if not isinstance(topic, str):
            raise InvalidRequest("say which topic")
        self._due = 0.0  # Who changes something wants to see it.
        match what:
            case "create":
                partitions, replicas = given.get("partitions", 1), given.get("replicas", 1)
                if type(partitions) is not int or type(replicas) is not int:
                    raise InvalidRequest("partitions and replicas are numbers")
                acks = str(given.get("acks", "leader"))
                self.client.create_topic(topic, partitions=partitions, replicas=replicas, acks=acks)
            case "acks":
                partition, acks = str(given.get("partition")), str(given.get("acks"))
                self.client.set_partition_state(topic, partition, acks)
            case "send":
                return self._send(topic, given)
            case _:
                raise InvalidRequest(f"{what!r} cannot be done here")
        return {}

    def _send(self, topic: str, given: Mapping[str, Any]) -> Json:
        key, found = given.get("key"), given.get("value")
        if not isinstance(found, str) or not isinstance(key, str | None):
            raise InvalidRequest("value and key are text")
        try:
            record, key_bytes = found.encode(), key.encode() if key else None
        except UnicodeEncodeError:
            raise InvalidRequest("value and key are text, without halves of characters") from None
        with self.client.producer(linger_ms=0) as producer:
            delivery = producer.send(topic, record, key=key_bytes)
            where = delivery.result(timeout=10)
        return {"partition": where.partition, "offset": where.offset}


class ClusterSnapshots:
    """The desks of all principals; each has a client of his own, so that his rights count.

    With *is_ours* False the clients are somebody else's to close.
    """

    def __init__(self, open_client: Callable[[str], Client], *, is_ours: bool = True) -> None:
        self._open = open_client
        self._is_ours = is_ours
        self._desks: dict[str, ClusterSnapshot] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def of(self, principal: str) -> ClusterSnapshot:
        """The desk of *principal*.

        Raises:
            PymqError: there is no client for him.
        """
        with self._lock:
            if self._is_closed:
                raise Closed("the page was closed")
            desk = self._desks.pop(principal, None) or ClusterSnapshot(self._open(principal))
            self._desks[principal] = desk  # the last one: who was not here for long goes first
            if len(self._desks) > DESKS_MAX:
                gone = self._desks.pop(next(iter(self._desks)))
                if self._is_ours:
                    gone.client.close()
            return desk

    def close(self) -> None:
        """Close all clients."""
        with self._lock:
            self._is_closed = True
            desks, self._desks = self._desks, {}
        if self._is_ours:
            for desk in desks.values():
                desk.client.close()
