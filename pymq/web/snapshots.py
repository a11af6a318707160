"""Snapshots of a cluster as one principal sees it, shared by all requests of that principal.

The cluster is read only while the page is open, and for at most a fifth of the time, whatever the
size of the cluster and the number of viewers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
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
from pymq.web.letters import letters, redrive
from pymq.web.summaries import KNOWN_MAX, Lags, TopicSummaries

EVERY_S = 1.0  # minimum interval of snapshots
SHARE = 4  # ... and at least this multiple of the quickest of the last LOOKS snapshots
LOOKS = 8  # the slower ones had to wait for failed nodes, and waiting is no load
PATIENCE_S = 3.0  # how long a request waits for a snapshot that another thread takes
TOPICS_MAX = 200  # topics that each snapshot describes, and the page shows with their numbers
TOPICS_A_VISIT = 100  # further topics that each snapshot describes, a few at a time, for the sums
GROUPS_MAX = 100
GROUPS_A_VISIT = 50
VISIT_S = 0.5  # seconds that those further topics may take
NAMES_MAX = 5_000
SAMPLES = 180
DESKS_MAX = 16

Json = dict[str, Any]

NO_GROUPS: Json = {
    "groups": [],
    "more_groups": [],
    "lag": {"groups": 0, "of": 0, "records": 0},
}


class ClusterSnapshot:
    """A client and its latest snapshot."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._state: Json = {}
        self._due = 0.0
        self._took: deque[float] = deque(maxlen=LOOKS)
        self._seen = 0.0  # start time of the latest successful snapshot
        self._topics_known = TopicSummaries()
        self._lags = Lags()
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
        """Return the age of the result of :meth:`state`."""
        return round(self._clock() - self._seen, 1)

    def _look(self) -> None:
        began = self._clock()
        try:
            # Read groups last: their coordinator may be on a failed node, and the timeout is long.
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
        client = self.client
        cluster = client.cluster()
        names = client.topics()
        at, known = self._clock(), self._topics_known
        known.keep(set(names[:KNOWN_MAX]), at)
        topics, hidden = self._topics(names[:TOPICS_MAX])
        dead = {broker.name for broker in cluster.brokers if not broker.alive}
        rates = {topic.name: known.add(topic, at) for topic in topics}
        for name in hidden:
            known.hide(name, at)
        self._visit_topics(names[TOPICS_MAX:KNOWN_MAX])
        all_rates = known.rates()
        if all_rates:
            records, size = (sum(column) for column in zip(*all_rates, strict=True))
            self._rates.append((time.time(), records, size))
        notes = []
        if known.hidden:
            notes.append(f"{plural(known.hidden, 'topic')} may not be described by your principal")
        return {
            "problem": None,
            "notes": notes,
            "cluster": views.cluster(cluster, known.held()),
            "topics": [
                views.topic_line(
                    topic, records_of(client.questions, topic), rates[topic.name], dead
                )
                for topic in topics
            ],
            "more_topics": names[TOPICS_MAX:NAMES_MAX],
            "sums": {
                "topics": len(known.names),
                "of": len(names) - known.hidden,
                "rated": len(all_rates),
                "short": known.short,
            },
            **{name: self._state.get(name, none) for name, none in NO_GROUPS.items()},
            "rates": [[round(t * 1000), round(r, 1), round(b)] for t, r, b in self._rates],
        }

    def _topics(self, names: Iterable[str]) -> tuple[list[TopicDescription], list[str]]:
        """Describe topics; also return the names that the principal may not describe."""
        found, hidden = [], []
        for name in names:
            try:
                found.append(self.client.describe_topic(name))
            except AuthorizationFailed:
                hidden.append(name)
            except LookupError:
                pass  # the topic has been deleted
        return found, hidden

    def _visit_topics(self, names: Sequence[str]) -> None:
        """Describe the next few of *names*, for the sums."""
        began = self._clock()
        for name in islice(self._topics_known.rounds.visit(names), TOPICS_A_VISIT):
            found, hidden = self._topics([name])
            at = self._clock()
            for topic in found:
                self._topics_known.add(topic, at)
            for refused in hidden:
                self._topics_known.hide(refused, at)
            if at - began > VISIT_S:
                break

    def _groups(self) -> Json:
        """Return the groups, and notes for the page."""
        found: list[Json] = []
        try:
            names = self.client.groups()
        except (AuthorizationFailed, NoBrokers):
            return NO_GROUPS
        except TimeoutError as error:
            note = f"groups are those of before, their coordinator does not answer: {error}"
            return {"notes": [*self._state["notes"], note]}
        self._lags.keep(set(names[:KNOWN_MAX]), self._clock())
        for name in names[:GROUPS_MAX]:
            try:
                line = views.group_line(self.client.describe_group(name))
            except (AuthorizationFailed, LookupError):
                continue  # the client has no permission, or the topic was deleted
            except TimeoutError as error:
                found.append({"name": name, "problem": str(error)})
                continue
            found.append(line)
            self._lags.add(name, line["lag"], self._clock())
        self._visit_groups(names[GROUPS_MAX:KNOWN_MAX])
        return {
            "groups": found,
            "more_groups": names[GROUPS_MAX:NAMES_MAX],
            "lag": {"groups": self._lags.count, "of": len(names), "records": self._lags.total},
        }

    def _visit_groups(self, names: Sequence[str]) -> None:
        """Describe the next few of *names*, for the sum of their lags."""
        began = self._clock()
        for name in islice(self._lags.rounds.visit(names), GROUPS_A_VISIT):
            try:
                group = self.client.describe_group(name)
            except (AuthorizationFailed, LookupError):
                continue  # the client has no permission, or the topic was deleted
            except TimeoutError:
                break  # the next snapshot continues after this topic
            at = self._clock()
            self._lags.add(name, sum(group.lag.values()), at)
            if at - began > VISIT_S:
                break

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
                continue  # the client has no permission, or the group has been deleted
            found += [(topic, part.name) for part in parts]
        return [name for name in found if name not in group.committed]

    def records(self, query: Mapping[str, str]) -> Json:
        """Return some records of a partition."""
        return browse(self.client, query)

    def letters(self, query: Mapping[str, str]) -> Json:
        """Return the letters of a dead-letter topic."""
        return letters(self.client, query.get("name", ""), query.get("error", ""))

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
        self._due = 0.0  # the next snapshot must show the change
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
            case "redrive":
                return redrive(self.client, topic, given)
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
            # move the principal to the end of the order, so that the least recently used one is
            # dropped first
            self._desks[principal] = desk
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
