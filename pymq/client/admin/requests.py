"""A client's requests to zkservers, leaders and group coordinators, with retries and timeouts.

Any thread may send a request, and then waits for the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import attrs

from pymq.client.base import ClientDriver
from pymq.client.fetching.partition_route import PartitionRoute
from pymq.client.options import REQUEST_S, check_topic
from pymq.client.producer_ids import ProducerIdentities
from pymq.client.router import Call, Router
from pymq.core import message as msg
from pymq.core.counts import plural
from pymq.core.message import END, Fetch, Fetched, FindOffset, GroupState, Message
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import (
    Closed,
    NoBrokers,
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    RequestTimeout,
    UnknownPartition,
    UnknownTopic,
)

RETRY_PAUSE_S = 0.02  # pause before the first retry; doubles before each further retry, up to
RETRY_PAUSE_MAX_S = 0.25
SOON_S = 1.0  # timeout of a zkserver if cached metadata is good enough
TRY_S = 0.5  # timeout of the first try at a broker; doubles with each further try, up to ...
TRY_MAX_S = 4.0


class Requests:
    """The requests of one client."""

    def __init__(self, name: str, router: Router, driver: ClientDriver) -> None:
        self._name = name
        self._router = router
        self._driver = driver
        self._is_closed = False
        self.identities = ProducerIdentities(self.ask, os.urandom, has_keys=False)

    def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True

    def monotonic(self) -> float:
        """The clock of timeouts, in seconds."""
        return self._driver.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep for *seconds*."""
        self._driver.pause(seconds)

    def has_seen(self, topic: str) -> bool:
        """Whether a topic of this name exists, by the cached metadata."""
        return bool(self._router.metadata.topics.get(topic))

    def forget(self, topic: str) -> None:
        """Forget the cached metadata of a topic, because a later topic of that name has other
        metadata.
        """
        with self._driver:
            self._router.metadata.forget(topic)

    def leader(self, topic: str, partition: str) -> str | None:
        """The leader of a partition by the cached metadata; None if the leader is not known."""
        with self._driver:
            return self._router.metadata.find(topic, partition)

    def topic_metadata(self, topic: str, timeout: float = REQUEST_S) -> TopicMetadata:
        """Request a topic's metadata from the active zkserver.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        check_topic(topic)
        ask = self.ask(lambda r: msg.GetMetadata(r, topic), timeout=timeout)
        return cast(TopicMetadata, ask)

    def partitions(self, topic: str) -> list[str]:
        """The names of a topic's partitions, including recently added ones.

        If no zkserver answers within a second, the method returns the cached names, since sending
        and reading records need no zkserver.
        """
        known = self._router.metadata.topics.get(topic)
        try:
            found = self.topic_metadata(topic, REQUEST_S if known is None else SOON_S)
        except RequestTimeout:
            if known is None:
                raise
            found = known
        return [partition.partition for partition in found.partitions]

    def partition_name(self, topic: str, partition: str | int) -> str:
        """A partition's name, from its name or its index.

        Raises:
            UnknownTopic, UnknownPartition: there is no such topic or partition.
        """
        names = [p.partition for p in self.topic_metadata(topic).partitions]
        if partition in names:
            return str(partition)
        if type(partition) is int and 0 <= partition < len(names):
            return names[partition]
        raise UnknownPartition(
            f"topic {topic!r} has no partition {partition!r}; it has {', '.join(names[:8])}"
        )

    def bounds(self, topic: str, partition: str) -> tuple[int, int]:
        """The log start and the high watermark of a partition now."""
        return self.all_bounds(topic, [partition])[partition]

    def all_bounds(
        self,
        topic: str,
        partitions: Iterable[str],
        timeout: float = REQUEST_S,
        topic_id: str = "",
        *,
        any_replica: bool = False,
    ) -> dict[str, tuple[int, int]]:
        """The log start and the high watermark of some partitions now.

        With *any_replica*, another replica may answer if no leader has answered within half of the
        timeout; such a replica may lag behind the leader.
        """

        def fetch(request: int, partition: str) -> Fetch:
            return Fetch(request, topic, partition, END, 0, 0, topic_id=topic_id)

        found = self.ask_leaders(topic, partitions, fetch, timeout, any_replica=any_replica)
        return {
            partition: (answer.log_start, answer.high_watermark)
            for partition, answer in found.items()
            if isinstance(answer, Fetched)
        }

    def ask_leader(
        self,
        topic: str,
        partition: str,
        make: Callable[[int], Message],
        *,
        any_replica: bool = False,
    ) -> Message:
        """Send a request to a partition's leader, or its successor; see :meth:`ask_leaders`."""
        found = self.ask_leaders(topic, [partition], lambda r, _: make(r), any_replica=any_replica)
        return found[partition]

    def ask_leaders(
        self,
        topic: str,
        partitions: Iterable[str],
        make: Callable[[int, str], Message],
        timeout: float = REQUEST_S,
        *,
        any_replica: bool = False,
    ) -> dict[str, Message]:
        """Send a request to the leader of each partition, and to a new leader if it has changed.

        If the leader does not have the requested block, the client sends the request to the brokers
        that hold the block. If the leader fails, the client sends requests for records by their
        offsets to other replicas at once. Requests for the log end go to other replicas only if
        *any_replica* is set and half of the timeout has passed, since a replica may not know the
        newest end.

        Raises:
            UnknownTopic, UnknownPartition: the topic or partition does not exist or was deleted.
            RequestTimeout: a broker did not answer; the message names it.
        """
        until = self._driver.monotonic() + timeout
        begun = self._driver.monotonic()
        missing = {partition: PartitionRoute(topic, partition) for partition in partitions}
        found: dict[str, Message] = {}
        tries = 0
        while missing:
            left = max(TRY_S, until - self._driver.monotonic())
            # Use the cached leaders at once, because requests for records and offsets need no
            # zkserver.
            if tries or any(self._router.metadata.find(topic, name) is None for name in missing):
                self._check_partitions(self.topic_metadata(topic, left), missing)
            patience = round(min(TRY_S * 2 ** min(tries, 10), TRY_MAX_S, left) * 1000)
            calls: dict[str, Call] = {}
            with self._driver as loop:
                is_late = any_replica and self._driver.monotonic() - begun >= timeout / 2
                for name, route in missing.items():
                    of_leader = not (is_late or _names_records(make(0, name)))
                    if (peer := route.find(self._router, of_leader=of_leader)) is not None:
                        ask = partial(_make_for, make, name, route.is_elsewhere)
                        calls[name] = self._router.call(ask, loop.clock(), patience, peer)
                loop.touch(self._name)
            self._await(calls, patience / 1000 + 1)
            pause = min(RETRY_PAUSE_S * 2 ** min(tries, 10), RETRY_PAUSE_MAX_S)
            for name, call in calls.items():
                if call.error is None and missing[name].is_elsewhere and _is_nothing(call):
                    call.error = ReplicaNotAvailable(f"{call.peer} does not know the partition yet")
                if call.error is None:
                    found[name] = call.result
                    del missing[name]
                elif self._try_route(missing[name], call.error):
                    pause = 0.0
            if missing and self._driver.monotonic() > until:
                raise RequestTimeout(self._missing(missing, timeout))
            if missing and pause:
                self._driver.pause(pause)
            tries += 1
        return found

    def begin(
        self,
        topic: str,
        partition: str,
        make: Callable[[int], Message],
        route: PartitionRoute | None = None,
    ) -> Call | None:
        """Send a request to a partition's leader, if known, without waiting; :meth:`end` waits.

        A fetch may have a *route*, which chooses the broker.
        """
        with self._driver as loop:
            chosen = route or PartitionRoute(topic, partition)
            peer = chosen.find(self._router, of_leader=route is None)
            if peer is None:
                return None
            ask = partial(_make_for, lambda r, _: make(r), partition, chosen.is_elsewhere)
            call: Call = self._router.call(ask, loop.clock(), round(TRY_MAX_S * 1000), peer)
            loop.touch(self._name)
        return call

    def end(self, call: Call, route: PartitionRoute | None = None) -> Message | None:
        """Return the answer to a request; None if the caller has to send it again.

        *route* then avoids a follower that has not answered with records for a while.
        """
        is_answered = self._driver.wait(call, TRY_MAX_S + 1) and call.error is None
        if route is not None and route.is_elsewhere:
            is_answered = is_answered and not _is_nothing(call)
            with self._driver:
                if is_answered:
                    route.came()
                else:
                    route.silent(self._router)
        return call.result if is_answered else None

    def _check_partitions(self, metadata: TopicMetadata, wanted: Iterable[str]) -> None:
        names = {found.partition for found in metadata.partitions}
        for partition in wanted:
            if partition not in names:
                raise UnknownPartition(f"topic {metadata.topic!r} has no partition {partition!r}")

    def _await(self, calls: dict[str, Call], timeout: float) -> None:
        for call in calls.values():
            if not self._driver.wait(call, timeout):
                call.error = RequestTimeout(f"{call.peer} did not answer")

    def _try_route(self, route: PartitionRoute, error: PymqError) -> bool:
        """Whether to try another broker at once.

        Raises:
            PymqError: other brokers would give the same answer.
        """
        if isinstance(error, RequestTimeout):
            with self._driver:
                route.silent(self._router)
            return False
        known = self._router.metadata.topics.get(route.topic)
        if known is not None and error.details.get("topic_id") == known.topic_id:
            # Raise only if broker and zkserver agree, because each of them alone may have old
            # metadata.
            why = "was deleted and created again since the request"
            raise UnknownTopic(f"topic {route.topic!r} {why}")
        with self._driver:
            pause = route.refused(self._router, error)
        if pause is None:
            raise_it(error)
        return pause == 0

    def _missing(self, missing: dict[str, PartitionRoute], timeout: float) -> str:
        whys = [
            route.why(self._router) or f"{route.asked} did not answer" for route in missing.values()
        ]
        more = f", and {plural(len(whys) - 1, 'partition')} more" if len(whys) > 1 else ""
        return f"no answer within {timeout:g} s: {whys[0]}{more}"

    def group_state(self, group: str, timeout: float = REQUEST_S) -> GroupState:
        """Return a group's state, from its coordinator."""
        return cast(GroupState, self.ask_group(group, lambda r: msg.GetGroup(r, group), timeout))

    def ask_group(
        self,
        group: str,
        make: Callable[[int], Message],
        timeout: float = REQUEST_S,
        *,
        done: type[PymqError] | None = None,
    ) -> Message | None:
        """Send a request to a group's coordinator.

        *done* is the error that a server returns if it has carried out the request before. After a
        retry that error means that the first try has succeeded.
        """
        until = self._driver.monotonic() + timeout
        pause, patience, left = RETRY_PAUSE_S, TRY_S, timeout
        place, tries, is_sent = self._router.metadata.coordinator_of(group), 0, False
        while True:
            coordinator: str | None = None
            try:
                if tries or place is None or self._router.metadata.find(*place) is None:
                    self.topic_metadata(OFFSETS_TOPIC, left)
                tries += 1
                coordinator = self._router.coordinator(group)
                if coordinator is None:
                    raise NoBrokers(
                        f"it has no leader: {self._router.why_no_leader(OFFSETS_TOPIC)}"
                    )
                wait = min(patience, left)
                return cast(Message, self.ask(make, peer=coordinator, timeout=wait, done=done))
            except PymqError as error:
                if is_sent and done is not None and isinstance(error, done):
                    return None
                is_sent = is_sent or coordinator is not None
                if not error.retriable:
                    raise
                left = until - self._driver.monotonic()
                if left <= 0:
                    raise RequestTimeout(
                        f"group {group!r} got no answer within {timeout:g} s: {error}"
                    ) from error
                self._distrust(group, coordinator, error)
            self._driver.pause(pause)
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)
            patience = min(2 * patience, TRY_MAX_S)

    def _distrust(self, group: str, coordinator: str | None, error: PymqError) -> None:
        place = self._router.metadata.coordinator_of(group)
        if place is None or coordinator is None:
            return
        with self._driver:
            if isinstance(error, NotLeader):
                self._router.refused(*place, coordinator, error)
            else:
                self._router.distrust(*place)

    def ask(
        self,
        make: Callable[[int], Message],
        *,
        peer: str | None = None,
        timeout: float = REQUEST_S,
        done: type[PymqError] | None = None,
    ) -> Any:
        """Send a request to *peer*, or to the active zkserver if *peer* is None.

        *done* is the error that a server returns if it has carried out the request before. After a
        retry that error means that the first try has succeeded.
        """
        call = self.call(make, peer, timeout)
        if done is None or not call.is_repeated or not isinstance(call.error, done):
            raise_it(call.error)
        return call.result

    def call(
        self,
        make: Callable[[int], Message],
        peer: str | None = None,
        timeout: float = REQUEST_S,
    ) -> Call:
        if self._is_closed:
            raise Closed("the client was closed")
        with self._driver as loop:
            call: Call = self._router.call(make, loop.clock(), round(timeout * 1000), peer)
            loop.touch(self._name)
        left = timeout
        while not self._driver.wait(call, left + 1):
            with self._driver as loop:
                left = (call.until - loop.clock()) / 1000
            if left <= 0:
                raise RequestTimeout(f"{call.peer} did not answer within {timeout:g} s")
        return call


def _make_for(
    make: Callable[[int, str], Message], partition: str, any_replica: bool, request: int
) -> Message:
    message = make(request, partition)
    if any_replica and isinstance(message, (Fetch, FindOffset)):
        return attrs.evolve(message, any_replica=True)
    return message


def _names_records(message: Message) -> bool:
    """Whether a request is for records by their offsets, which each replica can answer."""
    return isinstance(message, Fetch) and message.max_bytes > 0


def _is_nothing(call: Call) -> bool:
    """Whether the answer comes from a follower that has none of the requested records yet."""
    asked, found = call.message, call.result
    return isinstance(found, Fetched) and _names_records(asked) and not found.data


def raise_it(error: PymqError | None) -> None:
    """Raise the answer if the answer is an error."""
    if error is not None:
        # Raise a copy, because each caller adds its own traceback to the error.
        raise error.with_traceback(None)
