"""The gate: speaks Kafka's protocol with clients, and pymq's messages with brokers.

A gate belongs to one broker. Like the broker, the gate is a state machine that the event loop runs:
bytes and messages go in, bytes and messages come out, and time is an argument. The life of a
request:

1. The door hands a frame to :meth:`KafkaGate.received`. The request gets a place in its
   connection's queue, since Kafka's clients get their answers in order.
2. The request's handler (:mod:`pymq.kafka.handlers`) runs until the handler must wait for answers
   of nodes, for a partition to grow, or for a time.
3. Once the answer or the records have arrived, or the time has come, the handler continues. The
   gate encodes the handler's answer, and sends it when all earlier requests of the connection are
   answered.

A waiting fetch delays all later answers of its connection. So the gate answers the fetch at once
when the connection sends another request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from pymq.core.batch.columns import Buffer
from pymq.core.message import Fetched, Message
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.kafka import frames
from pymq.kafka.codes import Code
from pymq.kafka.frames import BadFrame, RequestHead
from pymq.kafka.handlers import (
    configs,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    produce,
    reconciled_groups,
    topics,
)
from pymq.kafka.handlers.conversation import (
    CLOSE,
    LATE,
    NO_ANSWER,
    Ask,
    Doze,
    Endpoint,
    GateContext,
    KafkaCall,
    Late,
    Pause,
    Steps,
)
from pymq.kafka.handlers.subscriptions import Subscriptions
from pymq.kafka.handlers.topic_cache import TopicCache
from pymq.kafka.handlers.watches import Watches, watch_request
from pymq.kafka.wire.messages import ApiVersionsResponse, ApiVersionsResponseApiVersion

Handler = Callable[[GateContext, Any, KafkaCall], Steps]
API_VERSIONS = 18
HANDLERS: dict[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    8: group_offsets.offset_commit,
    9: group_offsets.offset_fetch,
    10: metadata.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    19: topics.create_topics,
    20: topics.delete_topics,
    22: produce.init_producer_id,
    32: configs.describe_configs,
    33: configs.alter_configs,
    37: topics.create_partitions,
    42: groups.delete_groups,
    68: reconciled_groups.consumer_group_heartbeat,
    69: reconciled_groups.consumer_group_describe,
    44: configs.incremental_alter_configs,
    60: metadata.describe_cluster,
}
"""The offered APIs, by Kafka's keys."""

# waiting requests of a connection; above this, the door stops reading from the connection
REQUESTS_MAX = 100
OUT_BYTES_MAX = 64 << 20  # unsent bytes of a connection; the door then stops reading from it
_PRODUCE = 0
_FETCH = 1


@define
class Slot:
    """The place of a request in the queue of its connection."""

    head: RequestHead
    parts: list[Buffer] | None = None  # its answer
    is_over: bool = False  # the answer is complete, or there is none
    conversation: int = 0


@define
class KafkaConnection:
    """A client's connection: its unanswered requests, in order, and the bytes to send."""

    id: int
    host: str = ""
    slots: deque[Slot] = Factory(deque)
    out: deque[Buffer] = Factory(deque)
    # Two counters: the gate alone increases the first, and the door's thread the second.
    queued_bytes: int = 0
    sent_bytes: int = 0
    is_closed: bool = False  # set by the gate; the door closes the connection when all is sent

    @property
    def is_full(self) -> bool:
        """Whether the door must not read from the connection now."""
        waiting = self.queued_bytes - self.sent_bytes
        return len(self.slots) >= REQUESTS_MAX or waiting >= OUT_BYTES_MAX


@define
class _Conversation:
    """A running handler."""

    connection: KafkaConnection
    slot: Slot
    steps: Generator[Any, Any, Any]
    requests: dict[int, int] = Factory(dict)  # the places of the missing answers
    answers: list[Message | Late] = Factory(list)
    doze: Doze | None = None


class KafkaGate:
    """The gate of one broker, as a state machine."""

    def __init__(
        self,
        me: str,
        controller: str,
        endpoints: dict[str, Endpoint],
        crc32c: Callable[[Buffer], int],
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
        *,
        default_partitions: int = 1,
        auto_create: bool = True,
    ) -> None:
        # The door sets these two functions. The gate calls the first when a connection has bytes to
        # be sent, or was closed ...
        self.wake: Callable[[KafkaConnection], None] = lambda _: None
        # ... and the second when a handler has raised an error, which is a bug.
        self.failed: Callable[[RequestHead, Exception], None] = lambda *_: None
        self.connections: dict[int, KafkaConnection] = {}
        self._out = Ready()
        self._timers: TimerHeap[int] = TimerHeap()
        self._conversations: dict[int, _Conversation] = {}
        self._calls: dict[int, int] = {}  # conversations by the ids of their requests to nodes
        self._last_request = 0
        self._last_conversation = 0
        self._last_connection = 0
        watches = Watches(self._watch, self._ring)
        self._context = GateContext(
            me,
            controller,
            endpoints,
            TopicCache(),
            watches,
            Subscriptions(),
            crc32c,
            wall_ms,
            new_id,
            default_partitions,
            auto_create,
        )

    def refuse(self, topic: str, code: Code, times: int) -> None:
        """Refuse the next batches for a topic, so that an application's error handling can be
        tested.
        """
        self._context.faults[topic] = [code] * times

    # --- connections ----------------------------------------------------------------------------

    def connected(self, host: str) -> KafkaConnection:
        """Note that a client has connected."""
        self._last_connection += 1
        connection = KafkaConnection(self._last_connection, host)
        self.connections[connection.id] = connection
        return connection

    def disconnected(self, connection: KafkaConnection) -> None:
        """Drop a connection, and end the waits of its requests."""
        connection.is_closed = True
        self.connections.pop(connection.id, None)
        for slot in connection.slots:
            self._drop(slot.conversation)
        connection.slots.clear()
        connection.out.clear()

    def received(self, connection: KafkaConnection, frame: memoryview, now: int) -> None:
        """Begin to handle a request."""
        self._context.now = now
        if connection.is_closed:
            return
        try:
            head = frames.read_head(frame)
            if head.key == API_VERSIONS:
                self._api_versions(connection, head)
                return
            handler = HANDLERS.get(head.key)
            if handler is None:
                raise BadFrame(f"API {head.key} is not offered")
            request = frames.read_request(head, frame)
        except BadFrame:
            # As in Kafka, close the connection: nothing after this request can be decoded.
            self._close(connection)
            return
        for slot in connection.slots:
            if slot.head.key == _FETCH:
                self._hurry(slot.conversation)
        slot = Slot(head)
        connection.slots.append(slot)
        self._last_conversation += 1
        slot.conversation = number = self._last_conversation

        def release() -> None:
            slot.is_over = True
            self._drain(connection)

        call = KafkaCall(head.version, head.client, connection.host, release)
        steps = handler(self._context, request, call)
        self._conversations[number] = _Conversation(connection, slot, steps)
        self._go_on(number, None)

    def _close(self, connection: KafkaConnection) -> None:
        connection.is_closed = True
        self.wake(connection)

    def _api_versions(self, connection: KafkaConnection, head: RequestHead) -> None:
        """Answer with the offered APIs; answer an unknown version with version 0."""
        first, last = frames.apis()[API_VERSIONS].versions
        is_known = first <= head.version <= last
        answer = ApiVersionsResponse(0 if is_known else int(Code.UNSUPPORTED_VERSION))
        answer.api_keys = offered() if is_known else offered()[:0]
        if not is_known:
            answer.api_keys = [ApiVersionsResponseApiVersion(API_VERSIONS, first, last)]
        slot = Slot(head)
        slot.parts = frames.write_answer(head, answer, head.version if is_known else 0)
        connection.slots.append(slot)
        self._drain(connection)

    # --- conversations --------------------------------------------------------------------------

    def _go_on(self, number: int, given: Any) -> None:
        """Let a handler run until it waits again, or returns."""
        conversation = self._conversations[number]
        while True:
            try:
                wait = conversation.steps.send(given)
            except StopIteration as stop:
                self._end(number, stop.value)
                return
            except Exception as error:
                # A bug of a handler closes the client's connection, and does not stop the queue.
                self.failed(conversation.slot.head, error)
                self._end(number, CLOSE)
                return
            given = self._begin(number, conversation, wait)
            if given is not conversation:
                continue
            return

    def _begin(self, number: int, conversation: _Conversation, wait: Ask | Doze | Pause) -> Any:
        """Begin a wait. Return the conversation, or the handler's result if there is nothing to
        wait for.
        """
        now = self._context.now
        match wait:
            case Ask(requests, wait_ms):
                if not requests:
                    return []
                conversation.answers = [LATE] * len(requests)
                for place, (peer, make) in enumerate(requests):
                    request = self._number()
                    self._calls[request] = number
                    conversation.requests[request] = place
                    self._out.send.append((peer, make(request)))
                self._timers.set(number, now + wait_ms)
            case Doze(partitions, until):
                has_others_behind = conversation.connection.slots[-1] is not conversation.slot
                if has_others_behind or until <= now:
                    return True
                conversation.doze = wait
                self._context.watches.add(number, partitions, now)
                self._timers.set(number, until)
            case Pause(wait_ms):
                self._timers.set(number, now + wait_ms)
        return conversation

    def _end(self, number: int, answer: Any) -> None:
        """Encode the answer of a handler that has returned."""
        conversation = self._conversations.pop(number)
        self._timers.drop(number)
        slot, connection = conversation.slot, conversation.connection
        slot.is_over = True
        if answer is CLOSE:
            self._close(connection)
        elif answer is not NO_ANSWER and not connection.is_closed:
            try:
                slot.parts = frames.write_answer(slot.head, answer)
            except Exception as error:
                self.failed(slot.head, error)
                self._close(connection)
        self._drain(connection)

    def _drain(self, connection: KafkaConnection) -> None:
        """Send answers in order, up to the first request that is not answered yet."""
        slots = connection.slots
        has_news = False
        while slots and (slots[0].parts is not None or slots[0].is_over):
            parts = slots.popleft().parts
            has_news = True
            for part in parts or ():
                connection.out.append(part)
                connection.queued_bytes += len(part)
        if has_news:
            self.wake(connection)

    def _drop(self, number: int) -> None:
        """Close the handler of a client that has disconnected."""
        conversation = self._conversations.pop(number, None)
        if conversation is None:
            return
        self._timers.drop(number)
        for request in conversation.requests:
            self._calls.pop(request, None)
        if conversation.doze is not None:
            self._context.watches.remove(number, conversation.doze.partitions)
        conversation.steps.close()

    def _ring(self, number: int) -> None:
        """Wake a handler whose partition has grown."""
        conversation = self._conversations.get(number)
        if conversation is None or conversation.doze is None:
            return
        self._context.watches.remove(number, conversation.doze.partitions)
        conversation.doze = None
        self._timers.drop(number)
        self._go_on(number, False)

    def _hurry(self, number: int) -> None:
        """Make a waiting fetch answer at once with its present records."""
        conversation = self._conversations.get(number)
        if conversation is not None and conversation.doze is not None:
            self._context.watches.remove(number, conversation.doze.partitions)
            conversation.doze = None
            self._go_on(number, True)

    def _number(self) -> int:
        self._last_request += 1
        return self._last_request

    def _watch(self, name: TopicPartition, end: int) -> int:
        request = self._number()
        self._out.send.append((self._context.me, watch_request(request, name, end)))
        return request

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer of a node."""
        del source
        self._context.now = now
        request = getattr(message, "id", 0)
        number = self._calls.pop(request, None)
        if number is None:
            if isinstance(message, Fetched):
                self._context.watches.answered(message)
            return
        conversation = self._conversations[number]
        conversation.answers[conversation.requests.pop(request)] = message
        if not conversation.requests:
            self._timers.drop(number)
            self._go_on(number, conversation.answers)

    @property
    def deadline(self) -> int:
        """The time at which ``tick`` has something to do."""
        return self._timers.due

    def tick(self, now: int) -> None:
        """End the waits whose time is up."""
        self._context.now = now
        for number in self._timers.over(now):
            conversation = self._conversations.get(number)
            if conversation is None:
                continue
            if conversation.doze is not None:
                self._context.watches.remove(number, conversation.doze.partitions)
                conversation.doze = None
                self._go_on(number, True)
            elif conversation.requests:
                for request in conversation.requests:
                    self._calls.pop(request, None)
                conversation.requests.clear()
                self._go_on(number, conversation.answers)
            else:
                self._go_on(number, None)

    def ready(self, now: int) -> Ready | None:
        """Hand over the messages for nodes."""
        del now
        if not self._out:
            return None
        out, self._out = self._out, Ready()
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Do nothing: a gate writes nothing to disk."""


def offered() -> list[ApiVersionsResponseApiVersion]:
    """Return the APIs that are offered.

    The answer offers Produce from version 0 on, because old clients require it, but the gate serves
    versions from 3 on, as Kafka 4 does (KAFKA-18659).
    """
    known = frames.apis()
    found = []
    for key in sorted({*HANDLERS, API_VERSIONS}):
        first, last = known[key].versions
        found.append(ApiVersionsResponseApiVersion(key, 0 if key == _PRODUCE else first, last))
    return found
