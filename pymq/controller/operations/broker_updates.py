"""What brokers must be told, and have not confirmed yet.

The tree says what each broker is to host; a broker acts on what it has been told. So whatever has
changed is owed to each live broker that it concerns, is sent at once, and is sent again, as it is
then, until the broker has answered without an error. A broker that registers is owed everything.

A broker has one thread, and its heartbeats and elections wait while it takes in what it is told. So
a message has few states; and where much has changed at once, the next message leaves when the one
before was answered. Small changes do not wait for that. Likewise a broker that is to remove much
is told the next removal when it has confirmed one, and those that it does not confirm let others
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice

from pymq.controller.state.transactions import Send, Transactions
from pymq.core.message import LeaderAndIsr, LeaderAndIsrAnswer, Stopped, StopReplica
from pymq.core.message.chunks import size as size_of
from pymq.core.message.chunks import split
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError, StaleEpoch, UnknownPartition

RETRY_MS = 500  # the first time; then twice as long each time
RETRY_MAX_MS = 8_000
STATES_MAX = 64  # in a message, which take a broker some 15 ms
STATES_BYTES_MAX = (
    4 << 20
)  # of states in a message, about; a packet's header may have four times as much
TOLD_MAX = 256  # partitions of a topic in a turn; to find their brokers takes some 2 ms
STOPS_MAX = 64  # removals that a broker has been told of and has not confirmed
NOT_SENT = -1  # as id
LATER_THAN_ALL = 1 << 62  # as epoch: a topic that is deleted is not made again under its id

Stop = str | TopicPartition  # a whole topic, by its id, or a partition


@define
class Mailbox:
    """What one live broker is owed."""

    incarnation: int
    full: int = 0  # id of the last message with everything, while it is not answered
    new: dict[TopicPartition, None] = Factory(dict)  # to be sent with the next flush
    later: dict[TopicPartition, None] = Factory(dict)  # and when what was sent is answered
    out: dict[int, None] = Factory(dict)  # messages of those that are not
    owed: dict[TopicPartition, int] = Factory(dict)  # sent, and by which message last
    stops: dict[Stop, int] = Factory(dict)  # likewise
    stops_later: dict[Stop, None] = Factory(dict)  # to be sent when some of those are confirmed
    stop_ids: dict[int, Stop] = Factory(dict)
    retry_at: int = NEVER
    wait_ms: int = RETRY_MS
    has_got_on: bool = False  # it has answered one of those, and is at the next
    has_removed: bool = False  # likewise of *stops*

    @property
    def is_empty(self) -> bool:
        """Whether it has confirmed everything."""
        return not (self.full or self.owed or self.stops or self.stops_later or self.later)

    def forget_stop(self, what: Stop) -> None:
        """It is not to be removed, or it has been."""
        self.stops_later.pop(what, None)
        self.stop_ids.pop(self.stops.pop(what, 0), None)


class BrokerUpdates:
    """The mailboxes of all live brokers."""

    def __init__(self, me: str, commits: Transactions, send: Send) -> None:
        self.me = me
        self.bytes_max = STATES_BYTES_MAX
        self.removed: Callable[[Stop, str], None] = lambda what, broker: None  # who has confirmed
        self._commits = commits
        self._send = send
        self._boxes: dict[str, Mailbox] = {}
        self._new: dict[str, None] = {}  # brokers with something new in their boxes
        self._ids = 0
        self._due: list[tuple[int, str]] = []  # retries, perhaps out of date
        self._topics: dict[str, list[str]] = {}  # partitions that are to be told next, last first
        self._topics_at = NEVER

    def next_id(self) -> int:
        """An id that no other request has, of this or any other active zkserver."""
        self._ids += 1
        return (self._commits.image.controller_epoch << 32) + self._ids

    def clear(self) -> None:
        """This zkserver tells nobody anything any more."""
        self._boxes.clear()
        self._new.clear()
        self._due.clear()
        self._topics.clear()
        self._topics_at = NEVER

    # --- telling --------------------------------------------------------------------------------

    def open(self, broker: str, incarnation: int, now: int) -> None:
        """A broker has registered: it is told all that it is to host, and to remove."""
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
        """Whether a broker is told all that it is to host, until it has confirmed that."""
        box = self._boxes.get(broker)
        return box is not None and box.incarnation == incarnation and box.full != 0

    def close(self, broker: str) -> None:
        """A broker is dead; it will be told everything when it comes back."""
        self._boxes.pop(broker, None)

    def tell(self, topic: str, now: int, *partitions: str) -> None:
        """Tell the brokers of a topic, or of *partitions* of it, what they are to host now.

        The message leaves with the next :meth:`flush`. Of a large topic the first partitions are
        told then, and the others in the turns that follow.
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
        """Tell the brokers of several partitions."""
        for name in names:
            self.tell(name.topic, now, name.partition)

    def tell_one(self, broker: str, name: TopicPartition) -> None:
        """Tell one broker what a partition is now, if it hosts any of it."""
        box = self._boxes.get(broker)
        if box is not None:
            box.forget_stop(name)
            box.new[name] = self._new[broker] = None

    def flush(self, now: int) -> None:
        """Send what is new: one message a broker, or the first of them if it is much."""
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
        """Tell a broker to remove all that it has of a deleted topic, or of a partition."""
        box = self._boxes.get(broker)
        if box is not None and what not in box.stops:
            box.stops_later[what] = None
            if self._send_stops(broker, box):
                self._arm(broker, box, now)

    def _send_stops(self, broker: str, box: Mailbox) -> bool:
        """Send the next removals, while few of them are not confirmed; returns whether any was."""
        is_sent = False
        while box.stops_later and len(box.stops) < STOPS_MAX:
            what = next(iter(box.stops_later))
            is_sent = self._stop(broker, box, what) or is_sent
        if box.stops_later:
            mark("notices.many_removals")
        return is_sent

    def _send_later(self, broker: str, box: Mailbox) -> bool:
        """Send the next of much, when what was sent of it is answered; returns whether it was."""
        is_sent = False
        while not box.out and (box.later or box.full == NOT_SENT):
            names = list(islice(box.later, STATES_MAX))
            for name in names:
                del box.later[name]
            is_last = box.full == NOT_SENT and not box.later
            keys = self._send_states(broker, box, names, full=is_last)
            if is_last:
                box.full = keys[-1]
            box.out = dict.fromkeys(keys)  # None, if nothing of it is there any more.
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
        """Send the states of *names* as they are now; what is gone by now is owed no more.

        What is too large for one message is sent in several, the last of which counts as *full*.
        Returns the ids of those messages.
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
                box.owed[name] = key  # of several parts, the last one
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
        """Send one removal, unless there is nothing to be removed any more; whether it was sent."""
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

    # --- being answered -------------------------------------------------------------------------

    def answered(self, m: LeaderAndIsrAnswer) -> None:
        """A broker has done what it was told, or says why it has not."""
        box = self._boxes.get(m.broker)
        if box is None or m.error is not None:
            return
        if box.full == m.id:
            box.full = 0
        if m.id in box.out:
            del box.out[m.id]
            box.has_got_on = True
            self._new[m.broker] = None  # The next of much leaves with the next flush.
        for topic, partition, error in m.errors:
            name = TopicPartition(topic, partition)
            if box.owed.get(name) == m.id and _is_final(error):
                del box.owed[name]
        if box.is_empty:
            box.retry_at = NEVER

    def stopped(self, m: Stopped) -> None:
        """A broker has removed what it was told to."""
        box = self._boxes.get(m.broker)
        if box is None or m.id not in box.stop_ids:
            return
        what = box.stop_ids[m.id]
        mark("notices.removed")
        box.forget_stop(what)
        box.has_removed = True
        self._new[m.broker] = None  # The next one leaves with the next flush.
        self.removed(what, m.broker)
        if box.is_empty:
            box.retry_at = NEVER

    # --- time -----------------------------------------------------------------------------------

    def _arm(self, broker: str, box: Mailbox, now: int) -> None:
        """Something was sent: send it again if it is not answered."""
        box.wait_ms = RETRY_MS
        if now + RETRY_MS < box.retry_at:
            box.retry_at = now + RETRY_MS
            heappush(self._due, (box.retry_at, broker))

    def tick(self, now: int) -> None:
        """Tell more of large topics, and send again what was not answered."""
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
                mark("notices.gets_on")  # Told again, it would only have the more to do.
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
            box.has_removed = False  # Told again, it would only have the more to do.
        else:
            # Those that it cannot remove now keep no others back.
            for what in list(box.stops):
                box.forget_stop(what)
                box.stops_later[what] = None
            self._send_stops(broker, box)

    @property
    def deadline(self) -> int:
        """When :meth:`tick` has something to do, at the earliest."""
        while self._due:
            due, broker = self._due[0]
            box = self._boxes.get(broker)
            if box is not None and box.retry_at == due:
                return min(due, self._topics_at)
            heappop(self._due)
        return self._topics_at


def _is_final(error: PymqError | None) -> bool:
    """Whether telling a broker again would change nothing: it has done it, or knows better."""
    return error is None or isinstance(error, (StaleEpoch, UnknownPartition))
