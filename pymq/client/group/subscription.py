"""Checks that a consumer's group is still subscribed to the topic.

The subscriptions are in the metadata; the group coordinator does not know them. When a group is
unsubscribed, its coordinator removes the members, but a later coordinator does not know about this.
So a consumer that joins again also asks the zkserver.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.client.router import Call, Router
from pymq.core.message import GetMetadata, Locate, Subscribe
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import NotSubscribed

ASK_MS = 30_000  # timeout of the request; without an answer the group counts as subscribed


class Subscription:
    """The subscription of one consumer's group, made by :meth:`pymq.Client.consumer`."""

    def __init__(
        self, group: str, topic: str, router: Router, on_refused: Callable[[NotSubscribed], None]
    ) -> None:
        known = router.metadata.topics.get(topic)
        self._topic_id = known.topic_id if known is not None else ""
        self._group = group
        self._topic = topic
        self._router = router
        self._on_refused = on_refused
        self._call: Call | None = None
        self._has_joined = False
        self._refused: NotSubscribed | None = None
        self._until = 0

    def joins(self, topic_id: str, now: int) -> None:
        """Check the subscription, because the consumer joins its group for the topic with that id.

        A topic that was created again has no subscriptions yet, so the group is subscribed.
        """
        if self._call is not None and not self._call.is_done:
            return
        group, topic, until = self._group, self._topic, now + ASK_MS
        self._until = until
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._router.tell(lambda r: Subscribe(r, group, topic, "ptp", group), until)
        elif self._has_joined:
            self._call = call = self._router.tell(lambda r: Locate(r, group, topic, ()), until)
            call.then(self._answered)
        self._has_joined = True

    def _answered(self) -> None:
        """Subscribe the group if the topic was created again, because the new topic has no
        subscription.
        """
        if self._call is not None and isinstance(self._call.error, NotSubscribed):
            topic, until = self._topic, self._until
            self._refused = self._call.error
            self._call = call = self._router.tell(lambda r: GetMetadata(r, topic), until)
            call.then(self._looked)

    def _looked(self) -> None:
        if self._call is None or self._refused is None:
            return
        refused, self._refused, found = self._refused, None, self._call.result
        # The topic is a new one of that name, so subscribe the group.
        if isinstance(found, TopicMetadata) and found.topic_id == self._topic_id:
            self._on_refused(refused)
