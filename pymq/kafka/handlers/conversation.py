"""The interface between handlers and the gate: requests to pymq's nodes, and the ways to wait.

A handler is a generator, which yields one of

* :class:`Ask`: requests to nodes; the handler gets their answers, in the same order. An answer that
  is not there in time is a :class:`Late`;
* :class:`Doze`: to wait until a partition grows; the handler gets True if it must answer now,
  because the time is up or the client has sent another request;
* :class:`Pause`: to wait some milliseconds; the handler gets nothing;

and returns the answer for the client, or :data:`NO_ANSWER` or :data:`CLOSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pymq.core.batch.columns import Buffer
from pymq.core.message import Answer, InitProducer, Message
from pymq.core.metadata.nodes import ProducerIds
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError, ReplicaNotAvailable, RequestTimeout
from pymq.kafka.codes import Code

if TYPE_CHECKING:
    from pymq.kafka.handlers.subscriptions import Subscriptions
    from pymq.kafka.handlers.topic_cache import TopicCache
    from pymq.kafka.handlers.watches import Watches

ANSWER_MS = 30_000  # time limit for a node's answer
HOLDERS_MAX = 3  # how many holders of older records the gate asks at most


class Outcome(Enum):
    """The gate's step for a request without an answer."""

    NO_ANSWER = 1
    CLOSE = 2  # the client has to connect anew


NO_ANSWER, CLOSE = Outcome.NO_ANSWER, Outcome.CLOSE


class Late:
    """Takes the place of an answer that did not come in time."""

    error: PymqError = RequestTimeout("the broker did not answer in time")


LATE = Late()
Request = tuple[str, Callable[[int], Message]]  # the node, and the message by its id


class Ask(NamedTuple):
    """Send requests and wait for all answers."""

    requests: Sequence[Request]
    wait_ms: int = ANSWER_MS


class Doze(NamedTuple):
    """Wait until one of these partitions ends beyond an offset, or until a time."""

    partitions: Sequence[tuple[TopicPartition, int]]
    until: int


class Pause(NamedTuple):
    """Wait a little."""

    wait_ms: int


Steps = Generator[Ask | Doze | Pause, Any, Any]


class Endpoint(NamedTuple):
    """The address at which a broker listens for Kafka's clients."""

    node: int
    host: str
    port: int


@define
class GateContext:
    """State that the handlers of a gate share."""

    me: str  # the broker that the gate belongs to
    controller: str
    endpoints: dict[str, Endpoint]  # endpoints of all brokers, by name
    topics: TopicCache
    watches: Watches
    subscriptions: Subscriptions
    crc32c: Callable[[Buffer], int]
    wall_ms: Callable[[], int]
    new_id: Callable[[], str]  # 32 random hex digits
    default_partitions: int = 1
    auto_create: bool = True
    now: int = 0  # in the loop's milliseconds
    ids: list[int] = Factory(list)  # producer ids that the gate may give out
    # The codes that refuse the next batches, for tests, by topic.
    faults: dict[str, list[Code]] = Factory(dict)


class KafkaCall(NamedTuple):
    """A client's request, with the client's name and the version."""

    version: int
    client: str
    host: str
    release: Callable[[], None]  # lets the gate answer later requests: this request gets no answer


def ask(peer: str, make: Callable[[int], Message]) -> Generator[Ask, Any, Any]:
    """Send one request; returns its answer."""
    (answer,) = yield Ask([(peer, make)])
    return answer


def new_producer_id(context: GateContext) -> Generator[Ask, Any, int | PymqError]:
    """Return a producer id that no other producer has."""
    if not context.ids:
        answer = yield from ask(
            context.controller, lambda r: InitProducer(r, "", "", takes_ids=True)
        )
        if not isinstance(answer, Answer) or not isinstance(answer.result, ProducerIds):
            return answer.error or RequestTimeout("no producer id was given")
        given = answer.result
        context.ids += range(given.first + given.count - 1, given.first - 1, -1)
    return context.ids.pop()


def holders(answer: Any) -> list[str]:
    """The brokers that hold the requested records, if the leader does not. Moving a partition moves
    no data, so other brokers than the leader may hold older blocks.
    """
    if not isinstance(answer.error, ReplicaNotAvailable):
        return []
    found = answer.error.details.get("brokers")
    return [str(name) for name in found] if isinstance(found, (list, tuple)) else []


def ask_holders(answer: Any, make: Callable[[int], Message]) -> Generator[Ask, Any, Any]:
    """Ask the holders of records, one after the other; returns the last answer.

    *answer* is the leader's, and *make* makes a request that any replica may answer.
    """
    for broker in holders(answer)[:HOLDERS_MAX]:
        found = yield from ask(broker, make)
        if not isinstance(found, Late) and not isinstance(found.error, ReplicaNotAvailable):
            return found
    return answer
