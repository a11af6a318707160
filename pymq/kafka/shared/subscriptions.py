"""The topics that members of groups subscribe to: by name, or by a regular expression.

A member names its subscription when it joins, and when the subscription changes. The coordinator
needs the topics and their numbers of partitions, which may change at any time. So the gate adds
them to each heartbeat, from metadata that is at most FRESH_MS old.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

from pymq.core.message import Answer, ListTopics
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import is_internal
from pymq.core.values import value
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import GateContext, Wait
from pymq.kafka.shared.topic_cache import id_bytes, load_topic

FRESH_MS = 5_000
MEMBERS_MAX = 10_000  # of which the gate keeps the subscription
PATTERN_MAX = 255  # characters of a regular expression
# Python's matcher backtracks. With two quantifiers it takes at most the square of a name's length,
# and without quantified groups no more than that.
QUANTIFIERS_MAX = 2
_QUANTIFIERS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|([*+?{])")
_QUANTIFIED_GROUP = re.compile(r"\)[*+?{]")

Topic = tuple[str, str, int]  # (name, id, number of partitions)


@value
class MemberSubscription:
    """The subscription of a member: names of topics, and a pattern."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None


class Subscriptions:
    """The subscriptions of members, and when topics were looked up."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], MemberSubscription] = {}
        self._loaded: dict[str, tuple[TopicMetadata | None, int]] = {}
        self._names: tuple[tuple[str, ...], int] = (), -FRESH_MS  # all topics

    def put(self, group: str, member: str, subscription: MemberSubscription) -> None:
        """Store the subscription of a member."""
        if len(self._members) >= MEMBERS_MAX:
            # The member that was stored first: its topics are no longer looked up.
            del self._members[next(iter(self._members))]
        self._members[group, member] = subscription

    def get(self, group: str, member: str) -> MemberSubscription | None:
        """Return the subscription of a member, if it is known."""
        return self._members.get((group, member))

    def forget(self, group: str, member: str) -> None:
        """Forget a member that leaves."""
        self._members.pop((group, member), None)

    def topics(
        self, context: GateContext, found: MemberSubscription
    ) -> Generator[Wait, Any, tuple[Topic, ...]]:
        """Return the subscribed topics that exist."""
        names = set(found.names)
        if found.pattern is not None:
            every = yield from self._every(context)
            # The members of a group share the topics, so each must be allowed to read them.
            may_read = context.caller.may_read
            names |= {name for name in every if found.pattern.fullmatch(name) and may_read(name)}
        topics = []
        for name in sorted(names):
            metadata = yield from self._topic(context, name)
            if metadata is not None:
                topics.append((name, id_bytes(metadata.topic_id).hex(), len(metadata.partitions)))
        return tuple(topics)

    def _topic(self, context: GateContext, name: str) -> Generator[Wait, Any, TopicMetadata | None]:
        known = self._loaded.get(name)
        if known is not None and context.now - known[1] < FRESH_MS:
            return known[0]
        # All members share the answer, so it must not depend on what one of them may see.
        loaded = yield from load_topic(context, name, is_own=True)
        metadata = loaded if isinstance(loaded, TopicMetadata) else None
        if len(self._loaded) >= MEMBERS_MAX:
            self._loaded.clear()
        self._loaded[name] = metadata, context.now
        return metadata

    def _every(self, context: GateContext) -> Generator[Wait, Any, tuple[str, ...]]:
        names, at = self._names
        if context.now - at < FRESH_MS:
            return names
        answer = yield from ask_controller(context, ListTopics, is_own=True)
        if isinstance(answer, Answer) and isinstance(answer.result, (list, tuple)):
            names = tuple(str(name) for name in answer.result if not is_internal(str(name)))
            self._names = names, context.now
        return names


def compile_pattern(text: str) -> re.Pattern[str] | None:
    """Compile the regular expression of a subscription; None if it is invalid or too expensive.

    Kafka uses RE2, whose syntax is nearly a part of Python's.
    """
    if len(text) > PATTERN_MAX or _QUANTIFIED_GROUP.search(text):
        return None
    if sum(found[1] is not None for found in _QUANTIFIERS.finditer(text)) > QUANTIFIERS_MAX:
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None
