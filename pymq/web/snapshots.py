"""Snapshots of a cluster as one principal sees it, shared by all requests of that principal.

The cluster is read only while the page is open, and for at most a fifth of the time, whatever the
size of the cluster and the number of viewers.
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
from pymq.core.counts import plural
from pymq.core.metadata.descriptions import TopicDescription
from pymq.core.types import AckMode
from pymq.errors import (
    AuthorizationFailed,
    Closed,
    InvalidRequest,
    NoBrokers,
    PymqError,
)
from pymq.web import views
from pymq.web.browse import browse

EVERY_S = 1.0  # minimum interval of snapshots
SHARE = 4  # ... and at least this multiple of the quickest of the last LOOKS
LOOKS = 8  # slower ones waited for failed nodes, which is no load
PATIENCE_S = 3.0  # wait of a request for another thread's snapshot
TOPICS_MAX = 200  # topics described; of the others only the names
GROUPS_MAX = 100
NAMES_MAX = 5_000
SAMPLES = 180
DESKS_MAX = 16

Json = dict[str, Any]


class ClusterSnapshot:
    """A client and its latest snapshot."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._state: Json = {}
        self._due = 0.0
        self._took: deque[float] = deque(maxlen=LOOKS)
        self._seen = 0.0  # start of the latest successful snapshot
        self._totals: dict[str, tuple[float, int, int]] = {}  # by topic: time, records, bytes
        self._rates: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES)

    # --- cluster --------------------------------------------------------------------------------

    def state(self) -> Json:
        """Return the latest snapshot of the cluster; takes a new one if it is due."""
        if self._clock() >= self._due and self._lock.acquire(timeout=PATIENCE_S):
            try:
                if self._clock() >= self._due:
                    self._look()
            finally:
                self._lock.release()
        return self._state or {"problem": "the cluster does not answer yet"}

    @property
    def age_s(self) -> float:
        """The age of the result of :meth:`state`."""
        return round(self._clock() - self._seen, 1)

    def _look(self) -> None:
        began = self._clock()
        try:
            # Groups come last: their coordinator may be the node that is down, and the timeout is
            # long.
            self._state = self._looked()
            self._seen = began
            self._state = {**self._state, **self._groups()}
        except Closed:
            raise
        except PymqError as error:
            # Keep the last snapshot; the page shows its age.
            self._state = {**self._state, "problem": str(error), "code": error.code}
        self._took.append(self._clock() - began)
        self._due = self._clock() + max(EVERY_S, SHARE * min(self._took))

    def _looked(self) -> Json:
        client, problems = self.client, []
        cluster = client.cluster()
        names = client.topics()
        topics, hidden = self._topics(names)
        if hidden:
            problems.append(f"{plural(hidden, 'topic')} may not be described by your principal")
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
                pass  # deleted meanwhile
        return found, hidden

    def _rate(self, topic: TopicDescription, at: float) -> tuple[float, float] | None:
        """Return records and bytes a second since the last snapshot."""
        records = sum(p.end_offset for p in topic.partitions)
        size = sum(block.size_bytes for p in topic.partitions for block in p.blocks)
        before, self._totals[topic.name] = self._totals.get(topic.name), (at, records, size)
        if before is None or at <= before[0] or records < before[1]:
            return None
        seconds = at - before[0]
        # Retention lowers the size; show 0 instead.
        return (records - before[1]) / seconds, max(0, size - before[2]) / seconds

    def _groups(self) -> Json:
        """Return the groups, and notes for the page."""
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
                pass  # no permission, or deleted
            except TimeoutError as error:
                found.append({"name": name, "problem": str(error)})
        return {"groups": found}

    # --- details --------------------------------------------------------------------------------

    def topic(self, name: str) -> Json:
        """Describe a topic."""
        brokers = self._state.get("cluster", {}).get("brokers", ())
        dead = {broker["name"] for broker in brokers if not broker["alive"]}
        return views.topic(self.client.describe_topic(name), dead)

    def group(self, name: str) -> Json:
        """Describe a group."""
        found = self.client.describe_group(name)
        return views.group(found, self._not_begun(found))

    def _not_begun(self, group: GroupDescription) -> list[tuple[str, str]]:
        """Return the partitions of the group's topics without a committed offset."""
        topics = {topic for topic, _ in group.committed} | {c.topic for c in group.consumers}
        found: list[tuple[str, str]] = []
        for topic in topics:
            try:
                parts = self.client.describe_topic(topic).partitions
            except (AuthorizationFailed, LookupError):
                continue  # no permission, or deleted meanwhile
            found += [(topic, part.name) for part in parts]
        return [name for name in found if name not in group.committed]

    def records(self, query: Mapping[str, str]) -> Json:
        """Return some records of a partition."""
        return browse(self.client, query)

    # --- changes --------------------------------------------------------------------------------

    def change(self, what: str, given: Mapping[str, Any]) -> Json:
        """Carry out a change.

        Raises:
            InvalidRequest: the request is malformed.
            PymqError: the change has failed.
        """
        topic = given.get("topic")
        if not isinstance(topic, str):
            raise InvalidRequest("say which topic")
        self._due = 0.0  # Show the change in the next snapshot.
        match what:
            case "create":
                partitions, replicas = given.get("partitions", 1), given.get("replicas", 1)
                if type(partitions) is not int or type(replicas) is not int:
                    raise InvalidRequest("partitions and replicas are numbers")
                acks = AckMode.of(str(given.get("acks", "leader")))
                self.client.create_topic(topic, partitions=partitions, replicas=replicas, acks=acks)
            case "acks":
                partition, acks = str(given.get("partition")), AckMode.of(str(given.get("acks")))
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
    """The snapshots of all principals; each has a client with the principal's rights.

    If *is_ours* is False, the caller closes the clients.
    """

    def __init__(self, open_client: Callable[[str], Client], *, is_ours: bool = True) -> None:
        self._open = open_client
        self._is_ours = is_ours
        self._desks: dict[str, ClusterSnapshot] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def of(self, principal: str) -> ClusterSnapshot:
        """Return the snapshots of *principal*.

        Raises:
            PymqError: no client can be opened for *principal*.
        """
        with self._lock:
            if self._is_closed:
                raise Closed("the page was closed")
            desk = self._desks.pop(principal, None) or ClusterSnapshot(self._open(principal))
            self._desks[principal] = desk  # last in the order: the least recently used goes first
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
