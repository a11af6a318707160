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

The batches of a connection reach their partitions in the order in which they were sent. So the gate
takes up a connection's next request only when a Produce has sent its batches to the broker. It may
have to look up a topic before, or to check many records (:mod:`pymq.kafka.slices`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka.batch import RECORDS_MAX
from pymq.core.message import Fetched, Message, UnderWay
from pymq.core.observe.metrics import Histogram
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.values import Factory, define
from pymq.errors import QuotaExceeded
from pymq.kafka import frames
from pymq.kafka.codes import Code
from pymq.kafka.connection import KafkaConnection, Slot
from pymq.kafka.frames import BadFrame, RequestHead
from pymq.kafka.gate_outbox import GateOutbox
from pymq.kafka.handlers.authentication import LOGIN
from pymq.kafka.offered import API_VERSIONS, HANDLERS, api_versions
from pymq.kafka.security.caller import DoorGuard, KafkaCaller
from pymq.kafka.security.sasl import Sasl
from pymq.kafka.shared.controllers import Controllers
from pymq.kafka.shared.conversation import (
    ANSWER_MS,
    CLOSE,
    LATE,
    NO_ANSWER,
    Ask,
    Breathe,
    Doze,
    Endpoint,
    GateContext,
    KafkaCall,
    Late,
    Pause,
    Wait,
)
from pymq.kafka.shared.fetch_sessions import FetchSessions
from pymq.kafka.shared.share_groups import ShareGroups
from pymq.kafka.shared.subscriptions import Subscriptions
from pymq.kafka.shared.topic_cache import TopicCache
from pymq.kafka.shared.watches import Watches
from pymq.kafka.slices import LONG_SLICE, SLICE, SliceQueue

HELD_BYTES_MAX = 256 << 20  # of requests that wait for their slices, and of those behind them
_PRODUCE = 0
_WAITING = frozenset((1, 78))  # Fetch and ShareFetch wait for records


@define
class _Conversation:
    """A running handler."""

    connection: KafkaConnection
    slot: Slot
    steps: Generator[Any, Any, Any]
    requests: dict[int, int] = Factory(dict)  # the places of the missing answers
    answers: list[Message | Late] = Factory(list)
    doze: Doze | None = None
    again: Ask | None = None  # requests that wait because the client has used up its quota
    ask: Ask | None = None  # requests that can be hastened, and were not yet
    held_bytes: int = 0  # counted in the gate's

    def end_watch(self, number: int, watches: Watches) -> None:
        """Watch no more partitions for the requests that the handler waits for."""
        if self.ask is not None:
            watches.remove(number, self.ask.watch)
            self.ask = None


class KafkaGate:
    """The gate of one broker, as a state machine."""

    def __init__(
        self,
        me: str,
        controllers: Sequence[str],
        endpoints: dict[str, Endpoint],
        crc32c: Callable[[Buffer], int],
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
        *,
        default_partitions: int = 1,
        auto_create: bool = True,
        records_max: int = RECORDS_MAX,
        default_replicas: int = 1,
        asks_brokers: bool = False,
        sasl: Sasl | None = None,
    ) -> None:
        self.guard: DoorGuard | None = None  # set after the creation of the broker
        # The door sets these two functions. The gate calls the first when a connection has bytes to
        # be sent, or was closed ...
        self.wake: Callable[[KafkaConnection], None] = lambda _: None
        # ... and the second when a handler has raised an error, which is a bug.
        self.failed: Callable[[RequestHead, Exception], None] = lambda *_: None
        self.connections: dict[int, KafkaConnection] = {}
        self.times: dict[
            int, Histogram
        ] = {}  # of requests that have ended, by the keys of the APIs
        self._out = GateOutbox(me)
        self._timers: TimerHeap[int] = TimerHeap()
        self._conversations: dict[int, _Conversation] = {}
        self._slices = SliceQueue()
        self._held_bytes = 0
        self._calls: dict[int, int] = {}  # conversations by the ids of their requests
        self._last_conversation = 0
        self._last_connection = 0
        self.sessions = FetchSessions(new_id)
        share = ShareGroups()
        self.share_sessions = share.sessions
        self.sasl = sasl
        watches = Watches(self._out.watch, self._ring)
        self._context = GateContext(
            me,
            Controllers(controllers),
            endpoints,
            TopicCache(),
            watches,
            self.sessions,
            Subscriptions(),
            share,
            crc32c,
            wall_ms,
            new_id,
            default_partitions,
            auto_create,
            records_max,
            default_replicas,
            asks_brokers,
            sasl=sasl,
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
        caller = KafkaCaller(host, self.guard, must_prove=self.sasl is not None)
        connection = KafkaConnection(self._last_connection, host, caller)
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
        self._held_bytes -= sum(map(len, connection.held))
        connection.held.clear()
        # The records that the client has leased go to other members at once.
        self._out.tell(self._context.share.sessions.disconnected(connection.id))

    def received(self, connection: KafkaConnection, frame: memoryview, now: int) -> None:
        """Take in a request."""
        self._begin_turn(now)
        if connection.is_closed:
            return
        if connection.held_by:
            if self._held_bytes + len(frame) > HELD_BYTES_MAX:
                self._close(connection)
                return
            self._held_bytes += len(frame)
            connection.held.append(frame)
            return
        try:
            head = frames.read_head(frame)
            if head.key == API_VERSIONS:
                self._api_versions(connection, head)
                return
            handler = HANDLERS.get(head.key)
            if handler is None:
                raise BadFrame(f"API {head.key} is not offered")
            if not connection.caller.is_known and head.key not in LOGIN:
                raise BadFrame(f"API {head.key} before authentication")
            request = frames.read_request(head, frame)
        except BadFrame:
            # As in Kafka, close the connection: nothing after this request can be decoded.
            self._close(connection)
            return
        for slot in connection.slots:
            if slot.head.key in _WAITING:
                self._hurry(slot.conversation)
        slot = Slot(head, size=len(frame), arrived=now)
        connection.slots.append(slot)
        self._last_conversation += 1
        slot.conversation = number = self._last_conversation
        if head.key == _PRODUCE:
            connection.held_by = number

        def release() -> None:
            slot.is_over = True
            self._drain(connection)

        call = KafkaCall(
            head.version,
            head.client,
            connection.host,
            connection.caller,
            release,
            connection.id,
            lambda: connection.slots[-1] is not slot,
        )
        steps = handler(self._context, request, call)
        self._conversations[number] = _Conversation(connection, slot, steps)
        self._go_on(number, None)

    def _take_up(self, number: int, conversation: _Conversation) -> None:
        """Take up the requests that wait for a conversation: it has sent its batches, or ended."""
        connection = conversation.connection
        self._held_bytes -= conversation.held_bytes
        conversation.held_bytes = 0
        if connection.held_by != number:
            return
        connection.held_by = 0
        if connection.is_taking_up or not connection.held:
            return
        connection.is_taking_up = True
        while connection.held and not connection.held_by:
            frame = connection.held.popleft()
            self._held_bytes -= len(frame)
            self.received(connection, frame, self._context.now)
        connection.is_taking_up = False
        if not connection.held:
            self.wake(connection)  # The door may read from the connection again.

    def _close(self, connection: KafkaConnection) -> None:
        connection.is_closed = True
        self.wake(connection)

    def _api_versions(self, connection: KafkaConnection, head: RequestHead) -> None:
        """Answer with the offered APIs; answer an unknown version with version 0."""
        answer, version = api_versions(head.version)
        connection.slots.append(Slot(head, frames.write_answer(head, answer, version)))
        self._drain(connection)

    # --- conversations --------------------------------------------------------------------------

    def _go_on(self, number: int, given: Any) -> None:
        """Let a handler run until it waits again, or returns."""
        conversation = self._conversations[number]
        while True:
            self._context.caller = conversation.connection.caller
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

    def _begin(self, number: int, conversation: _Conversation, wait: Wait) -> Any:
        """Begin a wait. Returns the conversation, or, if there is nothing to wait for, the result
        for the handler.
        """
        now = self._context.now
        match wait:
            case Ask():
                return self._ask(number, conversation, wait)
            case Breathe():
                size = conversation.slot.size
                if not conversation.held_bytes and self._held_bytes + size > HELD_BYTES_MAX:
                    self._close(conversation.connection)
                if not conversation.held_bytes:
                    conversation.held_bytes = size
                    self._held_bytes += size
                self._slices.add(number)
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

    def _ask(self, number: int, conversation: _Conversation, wait: Ask) -> Any:
        """Send requests to nodes, as far as the policy admits them; see :meth:`_begin`."""
        caller, ids = conversation.connection.caller, wait.ids
        conversation.answers = [LATE] * len(wait.requests)
        for place, (peer, make) in enumerate(wait.requests):
            request = ids[place] if ids else self._out.number()
            message = make(request)
            if not wait.is_own and (refusal := caller.refusal(message)) is not None:
                if not isinstance(refusal.error, QuotaExceeded):
                    conversation.answers[place] = refusal
                    continue
                if not conversation.requests:
                    # As in Kafka, the client waits, and does not see an error (KIP-219).
                    conversation.again = wait
                    self._timers.set(number, self._context.now + refusal.error.retry_ms)
                    return conversation
            self._calls[request] = number
            conversation.requests[request] = place
            self._out.send(peer, message)
        if not conversation.requests:
            return conversation.answers
        if ids is not None:
            ids[:] = conversation.requests
        self._timers.set(number, self._context.now + wait.wait_ms)
        if wait.hasten:
            conversation.ask = wait
            self._context.watches.add(number, wait.watch, self._context.now)
            if conversation.connection.slots[-1] is not conversation.slot:
                self._hasten(number, conversation)
        if wait.frees_line:
            self._take_up(number, conversation)
        return conversation

    def _end(self, number: int, answer: Any) -> None:
        """Encode the answer of a handler that has returned."""
        conversation = self._conversations.pop(number)
        self._timers.drop(number)
        slot, connection = conversation.slot, conversation.connection
        slot.is_over = True
        times = self.times.get(slot.head.key)
        if times is None:
            times = self.times[slot.head.key] = Histogram.new()
        times.observe((self._context.now - slot.arrived) / 1000)
        if answer is CLOSE:
            self._close(connection)
        elif answer is not NO_ANSWER and not connection.is_closed:
            try:
                slot.parts = frames.write_answer(slot.head, answer)
            except Exception as error:
                self.failed(slot.head, error)
                self._close(connection)
        self._drain(connection)
        if connection.caller.is_refused:
            self._close(connection)
        self._take_up(number, conversation)

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
        self._slices.drop(number)
        self._held_bytes -= conversation.held_bytes
        for request in conversation.requests:
            self._calls.pop(request, None)
        if conversation.doze is not None:
            self._context.watches.remove(number, conversation.doze.partitions)
        conversation.end_watch(number, self._context.watches)
        conversation.steps.close()

    def _ring(self, number: int) -> None:
        """Wake a handler whose partition has grown."""
        conversation = self._conversations.get(number)
        if conversation is not None and conversation.ask is not None:
            self._hasten(number, conversation)
        if conversation is None or conversation.doze is None:
            return
        self._context.watches.remove(number, conversation.doze.partitions)
        conversation.doze = None
        self._timers.drop(number)
        self._go_on(number, False)

    def _hurry(self, number: int) -> None:
        """Make a waiting fetch answer at once with its present records."""
        conversation = self._conversations.get(number)
        if conversation is not None and conversation.ask is not None:
            self._hasten(number, conversation)
        if conversation is not None and conversation.doze is not None:
            self._context.watches.remove(number, conversation.doze.partitions)
            conversation.doze = None
            self._go_on(number, True)

    def _hasten(self, number: int, conversation: _Conversation) -> None:
        """Make the nodes answer the requests that a handler waits for."""
        if conversation.ask is not None:
            self._out.tell(conversation.ask.hasten)
        conversation.end_watch(number, self._context.watches)

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer of a node."""
        del source
        self._begin_turn(now)
        request = getattr(message, "id", 0)
        if isinstance(message, UnderWay):
            # A large change takes the zkserver several commits; the answer follows.
            if (number := self._calls.get(request)) is not None:
                self._timers.set(number, now + ANSWER_MS)
            return
        number = self._calls.pop(request, None)
        if number is None:
            if isinstance(message, Fetched):
                self._context.watches.answered(message)
            return
        conversation = self._conversations[number]
        message = conversation.connection.caller.charged(message)
        conversation.answers[conversation.requests.pop(request)] = message
        if not conversation.requests:
            self._timers.drop(number)
            conversation.end_watch(number, self._context.watches)
            self._go_on(number, conversation.answers)
        elif conversation.ask is not None:
            self._hasten(number, conversation)

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return min(self._slices.due, self._timers.due, self._context.share.sessions.beat_at)

    def _begin_turn(self, now: int) -> None:
        """Note the time; requests that come in the same millisecond share a slice."""
        if now != self._context.now:
            self._context.now, self._context.spent = now, 0

    def _run_slices(self) -> None:
        """Run new handlers, as long as the slice lasts, and a slice of a long one."""
        context, slices = self._context, self._slices
        context.spent = 0
        while context.spent < SLICE and (number := slices.next_new()) is not None:
            self._go_on(number, None)
        if (number := slices.next_long(context.now)) is not None:
            context.spent = SLICE - LONG_SLICE
            self._go_on(number, None)

    def tick(self, now: int) -> None:
        """End the waits whose time is up."""
        self._begin_turn(now)
        if self._slices.due <= now:
            self._run_slices()
        self._out.tell(self._context.share.sessions.beats(now))
        for number in self._timers.over(now):
            conversation = self._conversations.get(number)
            if conversation is None:
                continue
            if conversation.doze is not None:
                self._context.watches.remove(number, conversation.doze.partitions)
                conversation.doze = None
                self._go_on(number, True)
            elif conversation.again is not None:
                again, conversation.again = conversation.again, None
                given = self._begin(number, conversation, again)
                if given is not conversation:
                    self._go_on(number, given)
            elif conversation.requests:
                for request in conversation.requests:
                    self._calls.pop(request, None)
                conversation.requests.clear()
                conversation.end_watch(number, self._context.watches)
                self._go_on(number, conversation.answers)
            else:
                self._go_on(number, None)

    def ready(self, now: int) -> Ready | None:
        """Hand over the messages for nodes."""
        del now
        return self._out.take()

    def advance(self, ready: Ready, now: int) -> None:
        """Do nothing: a gate writes nothing to disk."""
