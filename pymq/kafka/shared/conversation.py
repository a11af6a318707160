"""The interface between handlers and the gate: requests to pymq's nodes, and the ways to wait.

A handler is a generator, which yields one of

* :class:`Ask`: requests to nodes; it gets their answers, in the same order. An answer that did not
  come in time is a :class:`Late`;
* :class:`Doze`: to wait until a partition grows; it gets whether it must answer now, since the
  time is up or the client has sent another request;
* :class:`Pause`: to wait some milliseconds; it gets nothing;
* :class:`Breathe`: to continue in a later turn, since its slice of this turn is used up; it gets
  nothing;

and returns the answer for the client, or :data:`NO_ANSWER` or :data:`CLOSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka.batch import RECORDS_MAX
from pymq.core.message import Message
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError, ReplicaNotAvailable, RequestTimeout
from pymq.kafka.codes import Code
from pymq.kafka.security.caller import KafkaCaller

if TYPE_CHECKING:
    from pymq.kafka.security.sasl import Sasl
    from pymq.kafka.shared.controllers import Controllers
    from pymq.kafka.shared.fetch_sessions import FetchSessions
    from pymq.kafka.shared.share_groups import ShareGroups
    from pymq.kafka.shared.subscriptions import Subscriptions
    from pymq.kafka.shared.topic_cache import TopicCache
    from pymq.kafka.shared.watches import Watches

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
    frees_line: bool = False  # the gate may now take up the connection's later requests
    # The gate appends the ids of the requests. If it finds them here, it sends them again.
    ids: list[int] | None = None
    is_own: bool = False  # the gate needs this itself: the client's permissions do not matter
    # The gate sends *hasten* once, when one of the requests is answered, one of the partitions of
    # *watch* ends beyond an offset, or the client sends another request. They make the nodes answer
    # the other requests; their own answers are dropped.
    hasten: Sequence[Request] = ()
    watch: Sequence[tuple[TopicPartition, int]] = ()


class Doze(NamedTuple):
    """Wait until one of these partitions ends beyond an offset, or until a time."""

    partitions: Sequence[tuple[TopicPartition, int]]
    until: int


class Pause(NamedTuple):
    """Wait a little."""

    wait_ms: int


class Breathe(NamedTuple):
    """Let other requests go first."""


BREATHE = Breathe()
Wait = Ask | Doze | Pause | Breathe
Steps = Generator[Wait, Any, Any]


class Endpoint(NamedTuple):
    """The address at which a broker listens for Kafka's clients."""

    node: int
    host: str
    port: int


@define
class GateContext:
    """State that the handlers of a gate share."""

    me: str  # the broker that the gate belongs to
    controllers: Controllers
    endpoints: dict[str, Endpoint]  # of all live brokers, by name
    topics: TopicCache
    watches: Watches
    sessions: FetchSessions
    subscriptions: Subscriptions
    share: ShareGroups
    crc32c: Callable[[Buffer], int]
    wall_ms: Callable[[], int]
    new_id: Callable[[], str]  # 32 random hex digits
    default_partitions: int = 1
    auto_create: bool = True
    records_max: int = RECORDS_MAX  # of a batch
    default_replicas: int = 1  # of a partition, if there are enough brokers
    asks_brokers: bool = False  # whether the endpoints have to be looked up
    # When the zkserver's answers first had a broker as dead, by name.
    missing: dict[str, int] = Factory(dict)
    now: int = 0  # in the loop's milliseconds
    spent: int = 0  # of the slice of this turn, in decoded records
    ids: list[int] = Factory(list)  # producer ids that the gate may give out
    # The codes that refuse the next batches, for tests, by topic.
    faults: dict[str, list[Code]] = Factory(dict)
    sasl: Sasl | None = None  # by which clients authenticate
    caller: KafkaCaller = Factory(KafkaCaller)  # the client of the handler that runs now


class KafkaCall(NamedTuple):
    """A client's request, with the client's name and the version."""

    version: int
    client: str
    host: str
    caller: KafkaCaller
    release: Callable[[], None]  # lets the gate answer later requests: this request gets no answer
    connection: int  # the number of the client's connection
    has_more: Callable[[], bool]  # whether the client has sent another request


def ask(peer: str, make: Callable[[int], Message]) -> Generator[Ask, Any, Any]:
    """Send one request; returns its answer."""
    (answer,) = yield Ask([(peer, make)])
    return answer


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
