"""Sends partition states and removals to brokers until they confirm.

- After each change of a partition, the zkserver sends the new state to the live brokers concerned.
  The zkserver repeats the latest state until the broker answers without an error.
- A broker that registers gets the states of all its partitions and the replicas to remove.
- A broker has one thread: heartbeats and elections wait while it handles a message. So a message
  has few states. If many states changed at once, the zkserver sends the next message when the
  broker has answered the previous one. Small changes do not wait for such answers.
- A broker with many removals gets the next one when it has confirmed an earlier one. Unconfirmed
  removals do not block the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice

from pymq.controller.state.image import Draft
from pymq.controller.state.transactions import Send, Transactions
from pymq.controller.transitions import broker_restarts
from pymq.core.message import LeaderAndIsr, LeaderAndIsrAnswer, Result, Stopped, StopReplica
from pymq.core.message.chunks import size as size_of
from pymq.core.message.chunks import split
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError, StaleEpoch, UnknownPartition

RETRY_MS = 500  # first pause before a retry; doubles each time
RETRY_MAX_MS = 8_000
STATES_MAX = 64  # most states in a message; a broker needs about 15 ms for them
STATES_BYTES_MAX = (
    4 << 20
)  # approximate bytes of states in a message; a packet's header may have four times as much
# partitions of one topic whose brokers are updated in a turn; finding these takes about 2 ms
TOLD_MAX = 256
STOPS_MAX = 64  # unconfirmed removals of a broker
NOT_SENT = -1  # as id of a message: not sent
# an epoch higher than all others, because a deleted topic's id is never used again
LATER_THAN_ALL = 1 << 62

Stop = str | TopicPartition  # a removal: of a whole topic, by its id, or of a partition


@define
class Mailbox:
    """The unsent and unconfirmed updates of one live broker."""

    incarnation: int
    full: int = 0  # id of the last message with all states, until the broker answers it; else 0
    new: dict[TopicPartition, None] = Factory(dict)  # states for the next flush
    later: dict[TopicPartition, None] = Factory(dict)  # states to send when *out* is answered
    out: dict[int, None] = Factory(dict)  # unanswered messages with states from *later*
    # unconfirmed states, each with the id of its last message
    owed: dict[TopicPartition, int] = Factory(dict)
    stops: dict[Stop, int] = Factory(dict)  # unconfirmed removals, each with the id of its message
    stops_later: dict[Stop, None] = Factory(dict)  # removals to send when some are confirmed
    stop_ids: dict[int, Stop] = Factory(dict)  # unconfirmed removals, by message
    retry_at: int = NEVER
    wait_ms: int = RETRY_MS
    has_got_on: bool = False  # the broker has answered a message of *out* since the last retry
    has_removed: bool = False  # the broker has confirmed a removal since the last retry

    @property
    def is_empty(self) -> bool:
        """Whether the broker has confirmed everything."""
        return not (self.full or self.owed or self.stops or self.stops_later or self.later)

    def forget_stop(self, what: Stop) -> None:
        """Drop a removal that is done or no longer needed."""
        self.stops_later.pop(what, None)
        self.stop_ids.pop(self.stops.pop(what, 0), None)


class BrokerUpdates:
    """The mailboxes of all live brokers."""

    def __init__(self, me: str, commits: Transactions, send: Send) -> None:
        self.me = me
        self.bytes_max = STATES_BYTES_MAX
        self._commits = commits
        self._send = send
        self._boxes: dict[str, Mailbox] = {}
        self._new: dict[str, None] = {}  # brokers with updates for the next flush
        self._ids = 0
        self._due: list[tuple[int, str]] = []  # heap of retries; some may be out of date
        self._topics: dict[str, list[str]] = {}  # partitions for the next turns, in reverse order
        self._topics_at = NEVER

    def next_id(self) -> int:
        """Return an id that no other request of any active zkserver has."""
        self._ids += 1
        return (self._commits.image.controller_epoch << 32) + self._ids

    def clear(self) -> None:
        """Drop all updates, because this zkserver is no longer active."""
        self._boxes.clear()
        self._new.clear()
        self._due.clear()
        self._topics.clear()
        self._topics_at = NEVER

    # --- sending --------------------------------------------------------------------------------

    def open(self, broker: str, incarnation: int, now: int) -> None:
        """Send a newly registered broker all its states and removals."""
        box = self._boxes[broker] = Mailbox(incarnation)
        image = self._commits.image
        box.full = NOT_SENT
        box.later = dict.fromkeys(image.hosting.hosted(broker))
        self._send_later(broker, box)
        box.stops_later = {id: None for id, node in image.deleted.items() if broker in node.brokers}
        box.stops_later |= dict.fromkeys(image.hosting.leaving(broker))
        self._send_stops(broker, box)
        self._arm(broker, box, now)

    def is_telling_all(self, broker: str, incarnation: int) -> bool:
        """Whether a broker was sent all its states and has not confirmed them yet."""
        box = self._boxes.get(broker)
        return box is not None and box.incarnation == incarnation and box.full != 0

    def close(self, broker: str) -> None:
        """Drop a dead broker's updates; it gets everything when it registers again."""
        self._boxes.pop(broker, None)

    def tell(self, topic: str, now: int, *partitions: str) -> None:
        """Send the brokers of a topic, or of some *partitions*, the current states.

        The next :meth:`flush` sends the messages. For a large topic, the call covers only the first
        partitions; the others follow in the next turns.
        """
        image = self._commits.image.topics.get(topic)
        if image is None:
            return
        if not partitions:
            self._topics[topic] = list(reversed(image.partitions))
            if self._topics_at == NEVER:
                self._tell_topics(now)
            return
        for name in partitions:
            found = image.partitions.get(name)
            if found is None:
                continue
            key = TopicPartition(topic, name)
            for broker in found.hosts:
                self.tell_one(broker, key)
            for broker in found.node.leaving:
                self.stop(broker, key, now)

    def _tell_topics(self, now: int) -> None:
        left = TOLD_MAX
        while self._topics and left > 0:
            topic, names = next(iter(self._topics.items()))
            some, names[-left:] = names[-left:], []
            left -= len(some)
            if not names:
                del self._topics[topic]
            if some:
                self.tell(topic, now, *reversed(some))
        if self._topics:
            mark("notices.large_topic")
        self._topics_at = now + 1 if self._topics else NEVER

    def tell_all(self, names: Iterable[TopicPartition], now: int) -> None:
        """Send the brokers of several partitions the current states."""
        for name in names:
            self.tell(name.topic, now, name.partition)

    def tell_one(self, broker: str, name: TopicPartition) -> None:
        """Send one broker the current state of a partition, if it hosts the partition."""
        box = self._boxes.get(broker)
        if box is not None:
            box.forget_stop(name)
            box.new[name] = self._new[broker] = None

    def flush(self, now: int) -> None:
        """Send new updates: one message for each broker, or a few if there are many updates."""
        brokers, self._new = self._new, {}
        for broker in brokers:
            box = self._boxes.get(broker)
            if box is None:
                continue
            names, box.new = box.new, {}
            if len(names) > STATES_MAX:
                mark("notices.many")
                box.later |= names
            elif names:
                for name in names if box.later else ():
                    box.later.pop(name, None)
                self._send_states(broker, box, list(names))
            is_sent = self._send_later(broker, box)
            if self._send_stops(broker, box) or is_sent or names:
                self._arm(broker, box, now)

    def stop(self, broker: str, what: Stop, now: int) -> None:
        """Request that a broker removes its files of a deleted topic, or of a partition."""
        box = self._boxes.get(broker)
        if box is not None and what not in box.stops:
            box.stops_later[what] = None
            if self._send_stops(broker, box):
                self._arm(broker, box, now)

    def _send_stops(self, broker: str, box: Mailbox) -> bool:
        """Send the next removals, up to STOPS_MAX without answers; returns whether any was sent."""
        is_sent = False
        while box.stops_later and len(box.stops) < STOPS_MAX:
            what = next(iter(box.stops_later))
            is_sent = self._stop(broker, box, what) or is_sent
        if box.stops_later:
            mark("notices.many_removals")
        return is_sent

    def _send_later(self, broker: str, box: Mailbox) -> bool:
        """Send the next states of *later* if *out* is answered; returns whether any was sent."""
        is_sent = False
        while not box.out and (box.later or box.full == NOT_SENT):
            names = list(islice(box.later, STATES_MAX))
            for name in names:
                del box.later[name]
            is_last = box.full == NOT_SENT and not box.later
            keys = self._send_states(broker, box, names, full=is_last)
            if is_last:
                box.full = keys[-1]
            box.out = dict.fromkeys(keys)  # empty if all these partitions were deleted
            is_sent = is_sent or bool(keys)
        return is_sent

    def _send_states(
        self,
        broker: str,
        box: Mailbox,
        names: list[TopicPartition],
        *,
        full: bool = False,
    ) -> list[int]:
        """Send the current states of *names*, without partitions that have been deleted.

        States that are too large for one message are sent in several; the last message has *full*.
        Returns the ids of the messages.
        """
        sent: list[int] = []
        image, key, size = self._commits.image, self.next_id(), 0
        states: list[PartitionState] = []
        for name in names:
            found = image.find(name)
            if found is None or broker not in found.hosts:
                mark("notices.gone_meanwhile")
                box.owed.pop(name, None)
                continue
            for state in split(image.topics[name.topic].state(name.partition), self.bytes_max):
                taken = size_of(state)
                if states and size + taken > self.bytes_max:
                    self._send_part(broker, box, key, states, full=False)
                    sent.append(key)
                    key, states, size = self.next_id(), [], 0
                box.owed[name] = key  # id of the message with the last part of the state
                states.append(state)
                size += taken
        if states or full:
            self._send_part(broker, box, key, states, full=full)
            sent.append(key)
        return sent

    def _send_part(
        self, broker: str, box: Mailbox, key: int, states: list[PartitionState], *, full: bool
    ) -> None:
        image = self._commits.image
        message = LeaderAndIsr(
            key,
            self.me,
            image.controller_epoch,
            tuple(states),
            full,
            box.incarnation,
            image.secret,
        )
        self._send(broker, message)

    def _stop(self, broker: str, box: Mailbox, what: Stop) -> bool:
        """Send one removal, unless the tree no longer contains it; returns whether it was sent."""
        image, key = self._commits.image, self.next_id()
        epoch = image.controller_epoch
        if isinstance(what, TopicPartition):
            found = image.find(what)
            if found is None or broker not in found.node.leaving:
                box.forget_stop(what)
                return False
            node, topic = found.node, image.topics[what.topic].node
            stop = StopReplica(
                key, epoch, topic.name, topic.id, node.name, node.epoch, True, node.index
            )
        else:
            deleted = image.deleted.get(what)
            if deleted is None or broker not in deleted.brokers:
                box.forget_stop(what)
                return False
            stop = StopReplica(key, epoch, deleted.topic, what, "", LATER_THAN_ALL, True)
        box.forget_stop(what)
        box.stops[what], box.stop_ids[key] = key, what
        self._send(broker, stop)
        return True

    # --- answers --------------------------------------------------------------------------------

    def answered(self, m: LeaderAndIsrAnswer) -> None:
        """Handle a broker's answer, with an error or None for each partition."""
        box = self._boxes.get(m.broker)
        if box is None or m.error is not None:
            return
        if box.full == m.id:
            box.full = 0
        if m.id in box.out:
            del box.out[m.id]
            box.has_got_on = True
            self._new[m.broker] = None  # the next flush sends the next states
        for topic, partition, error in m.errors:
            name = TopicPartition(topic, partition)
            if box.owed.get(name) == m.id and _is_final(error):
                del box.owed[name]
        if box.is_empty:
            box.retry_at = NEVER

    def stopped(self, m: Stopped) -> None:
        """Note that a broker has carried out a removal."""
        box = self._boxes.get(m.broker)
        if box is None or m.id not in box.stop_ids:
            return
        what = box.stop_ids[m.id]
        mark("notices.removed")
        box.forget_stop(what)
        box.has_removed = True
        self._new[m.broker] = None  # the next flush sends the next removal
        self._removed(what, m.broker)
        if box.is_empty:
            box.retry_at = NEVER

    def _removed(self, what: Stop, broker: str) -> None:
        """Commit that a broker has removed all files of a topic or a partition."""

        def plan(draft: Draft) -> Result:
            if isinstance(what, TopicPartition):
                broker_restarts.stopped(draft, what, broker)
            else:
                broker_restarts.topic_stopped(draft, what, broker)
            return None

        scope = what if isinstance(what, TopicPartition) else TopicPartition("", what)
        self._commits.do(plan, scope=scope)

    # --- timers ---------------------------------------------------------------------------------

    def _arm(self, broker: str, box: Mailbox, now: int) -> None:
        """Set the retry timer after a message was sent."""
        box.wait_ms = RETRY_MS
        if now + RETRY_MS < box.retry_at:
            box.retry_at = now + RETRY_MS
            heappush(self._due, (box.retry_at, broker))

    def tick(self, now: int) -> None:
        """Send more of large topics, and retry unanswered messages."""
        if self._topics_at <= now:
            self._tell_topics(now)
        while self._due and self._due[0][0] <= now:
            due, broker = heappop(self._due)
            box = self._boxes.get(broker)
            if box is None or box.retry_at != due:
                continue
            if box.is_empty:
                box.retry_at = NEVER
                continue
            if box.has_got_on and box.later:
                mark("notices.gets_on")  # the broker makes progress, and a retry would slow it down
                box.has_got_on, box.retry_at = False, now + RETRY_MS
                heappush(self._due, (box.retry_at, broker))
                continue
            self._again(broker, box, now)
            box.wait_ms = min(2 * box.wait_ms, RETRY_MAX_MS)
            box.retry_at = now + box.wait_ms
            heappush(self._due, (box.retry_at, broker))

    def _again(self, broker: str, box: Mailbox, now: int) -> None:
        if box.full or box.owed or box.later:
            mark("notices.again.full" if box.full else "notices.again")
            if box.full:
                box.full = NOT_SENT
            box.later = {**dict.fromkeys(box.owed), **box.later}
            box.out.clear()
            self._send_later(broker, box)
        if box.has_removed:
            box.has_removed = False  # the broker makes progress, and a retry would slow it down
        else:
            # Move unconfirmed removals to the end, so that they do not block others.
            for what in list(box.stops):
                box.forget_stop(what)
                box.stops_later[what] = None
            self._send_stops(broker, box)

    @property
    def deadline(self) -> int:
        """The earliest deadline of :meth:`tick`."""
        while self._due:
            due, broker = self._due[0]
            box = self._boxes.get(broker)
            if box is not None and box.retry_at == due:
                return min(due, self._topics_at)
            heappop(self._due)
        return self._topics_at


def _is_final(error: PymqError | None) -> bool:
    """Whether a retry is useless, because the broker has carried the request out or has a later
    state.
    """
    return error is None or isinstance(error, (StaleEpoch, UnknownPartition))
