"""The nodes of the metadata tree and their codec, and the partition state that brokers get.

Each node is an attrs class, stored as a CBOR map of its fields with the format's version as
``"v"``, so that any language can read the tree. The decoder checks each field.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from pymq.core import cbor
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode, BlockId, check_topic_id
from pymq.core.values import value
from pymq.errors import ConfigError, CorruptMetadata, InvalidRequest

VERSION = 1
NOW_BLOCK = "NowBlock"


@value
class BrokerNode:
    """A broker that has registered at least once."""

    name: str
    endpoint: str = ""
    rack: str | None = None
    weight: int = 1
    storage_id: str = ""  # id of the broker's disk; a wiped disk gets a new one
    incarnation: int = 0  # number of the broker's last registration; rises with each start
    is_draining: bool = False  # decommissioned: no new blocks are placed on this broker
    # number for Kafka's clients, which have no names; assigned once. -1: registered before there
    # were numbers
    number: int = -1
    kafka: str = ""  # HOST:PORT for Kafka's clients; "": the broker does not listen for them


@value
class BrokerState:
    """A live broker; ephemeral.

    The node ends with its zkserver's session, or when the broker stops sending heartbeats.
    """

    incarnation: int = 0


@value
class ControllerNode:
    """The active zkserver; ephemeral."""

    name: str
    endpoint: str = ""
    claim: str = ""  # identifies the takeover after a commit with unknown outcome


@value
class ControllerEpoch:
    """The controller epoch, which rises with each takeover; brokers refuse lower epochs."""

    epoch: int


@value
class TopicNode:
    """A topic. A topic that is deleted and created again gets a new id."""

    name: str
    id: str
    next_index: int  # index of the next partition
    acks: AckMode  # ack mode of new partitions
    replicas: int
    config: TopicConfig
    version: int = 1  # rises with each change
    # The topic is being created or deleted in several commits. Meanwhile clients and brokers do not
    # see it.
    is_hidden: bool = False


@value
class Wanted:
    """The replication of a partition's next block; None: unchanged."""

    acks: AckMode | None = None
    replicas: tuple[str, ...] | None = None  # exactly these replicas; the first one leads
    count: int | None = None
    move_sealed: bool = False  # move the sealed blocks to *replicas* too


@value
class Loss:
    """An unclean election: a partition continued although committed records may be missing."""

    block: int  # number of the block that was open
    offset: int  # records from this offset on may be lost; new records reuse these offsets
    log_start: int  # the first remaining offset
    holder: str | None  # the broker whose copy was used; None: there was no copy
    at_ms: int  # wall clock


@value
class PartitionNode:
    """A partition: its open block, and the replication of its next block."""

    name: str
    index: int  # place in creation order, for the hashing of keys
    acks: AckMode
    replicas: int
    next_block: int  # number of the block after the open one
    epoch: int  # leader epoch; rises with each new leader and each new block
    ptp_offset: int = 0  # an estimate; the group coordinator has the committed offset
    version: int = 1  # rises with each change of the partition or of its blocks
    # brokers that no longer host a block of the partition, but may still have files
    leaving: tuple[str, ...] = ()
    # an accepted request for the next block, until a roll fulfils it
    wanted: Wanted | None = None
    losses: tuple[Loss, ...] = ()  # the partition's latest losses, oldest first
    sealed_to: tuple[str, ...] = ()  # brokers to which all sealed blocks are moving
    log_start: int = 0  # records before this offset are deleted, even if their block is kept


@value
class Move:
    """The move of a sealed block from one replica to another (fields as in KIP-455)."""

    adding: str  # the replica whose copy is not complete yet
    removing: str  # the replica whose copy is removed when the new copy is complete


@value
class Interrupted:
    """A replica that was in sync until its broker restarted; it may lack unsynced records."""

    broker: str
    at_ms: int  # wall clock


@value
class BlockNode:
    """A block; the open block has no end.

    *in_sync* are the replicas that a leader with fetch replication waits for; in a sealed block,
    the replicas that hold the whole block.
    """

    number: int
    start: int
    end: int | None
    epoch: int
    acks: AckMode
    leader: str | None
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    # The storage id of each replica, in the same order. A broker whose disk was replaced counts as
    # a new replica: it must not vote or count as in sync in place of the earlier replica.
    storages: tuple[str, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, first offset), set when the block is sealed
    past: bytes = b""  # for an open block with several replicas: the producer table at its start
    # whether the block was sealed although no replica was known to hold all of it
    is_unclean: bool = False
    size: int = 0  # bytes, once sealed
    max_timestamp: int = -1  # latest timestamp of the block's records, once it is sealed
    opened_ms: int = 0  # wall clock
    # for an open block with fetch replication: replicas that restarted and left *in_sync*
    interrupted: tuple[Interrupted, ...] = ()
    move: Move | None = None  # the move of a sealed block, if any

    @property
    def name(self) -> str:
        """``NowBlock`` while the block is open, then ``Block_<number>``."""
        return NOW_BLOCK if self.end is None else f"Block_{self.number}"

    @property
    def wanted_copies(self) -> int:
        """The intended number of copies; the extra replica of a move does not count."""
        return len(self.replicas) - (self.move is not None)


@value
class ReplicaNode:
    """The copy of a block on one broker, as the broker last reported it."""

    broker: str
    start: int
    end: int
    in_sync: bool


@value
class DeletedNode:
    """A deleted topic, until each broker with files of the topic has confirmed the removal."""

    topic: str
    id: str
    brokers: tuple[str, ...]


@value
class SubscriptionNode:
    """The subscription of a group or a reader to a topic."""

    name: str
    topic: str
    mode: str  # "ptp" or "psb"
    group: str | None = None
    partition: str | None = None


@value
class ProducerNode:
    """The epoch of a named producer, which fences all earlier producers of that name."""

    name: str
    epoch: int
    run: str = ""  # run id of the latest producer; producers with the same run share its epoch
    id: int = -1  # random; -1: the name was first used by an older version, so its id is a hash


@value
class SecretNode:
    """The secret with which brokers and zkservers authenticate grants of producer ids."""

    secret: bytes


@value
class ProducerIds:
    """*count* producer ids from *first* on, the upper half of their epoch, and their grant."""

    first: int
    count: int
    epoch: int
    grant: bytes = b""


Node = (
    BrokerNode
    | BrokerState
    | ControllerNode
    | ControllerEpoch
    | TopicNode
    | PartitionNode
    | BlockNode
    | ReplicaNode
    | DeletedNode
    | SubscriptionNode
    | ProducerNode
    | SecretNode
)
N = TypeVar("N")


def encode_node(node: Node) -> bytes:
    """Encode a node of the metadata tree."""
    return cbor.dumps({"v": VERSION, **_plain(node)})


def decode_node(cls: type[N], data: bytes) -> N:
    """Unpack a node of class *cls*.

    Raises:
        CorruptMetadata: *data* is not such a node, or a newer pymq wrote it.
    """
    try:
        fields = cbor.loads(data)
    except InvalidRequest as error:
        raise CorruptMetadata(f"{cls.__name__}: {error.message}") from None
    if type(fields) is not dict or fields.pop("v", None) != VERSION:
        raise CorruptMetadata(f"{cls.__name__}: not of version {VERSION}; a newer pymq wrote it")
    node = _typed(cls, fields)
    if isinstance(node, (TopicNode, DeletedNode)):
        try:
            check_topic_id(node.id)  # The id is also the name of a folder.
        except InvalidRequest as error:
            raise CorruptMetadata(f"{cls.__name__}: {error.message}") from None
    return node


_SCALARS = frozenset({str, int, bool, bytes, float, type(None)})


def _plain(item: Any) -> Any:
    if type(item) in _SCALARS:  # the usual case
        return item
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    if isinstance(item, AckMode):
        return int(item)
    if attrs.has(type(item)):
        return {field: _plain(getattr(item, field)) for field in _hints(type(item))}
    return item


_known_hints: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    found = _known_hints.get(cls)
    if found is None:
        hints = get_type_hints(cls)
        found = {field.name: hints[field.name] for field in attrs.fields(cls)}
        _known_hints[cls] = found
    return found


def _typed(cls: type[N], fields: Any) -> N:
    readers = _readers(cls)
    if type(fields) is not dict or not readers.keys() >= fields.keys():
        raise CorruptMetadata(
            f"{cls.__name__}: fields {fields!r} are not those of version {VERSION}"
        )
    try:
        return cls(**{name: readers[name](found) for name, found in fields.items()})
    except (TypeError, ConfigError) as error:
        raise CorruptMetadata(f"{cls.__name__}: {error}") from None


_known_readers: dict[type, dict[str, Callable[[Any], Any]]] = {}


def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    found = _known_readers.get(cls)
    if found is None:
        found = {name: _reader(hint) for name, hint in _hints(cls).items()}
        _known_readers[cls] = found
    return found


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts plain data to the type *hint*, or raises TypeError."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        known = next(part for part in get_args(hint) if part is not type(None))
        return partial(_optional, _reader(known))
    if origin is tuple:
        return partial(_tuple, _reader(get_args(hint)[0]))
    if origin is Literal:
        return _as_it_is
    if hint is AckMode:
        return AckMode.of
    if attrs.has(hint):
        return partial(_typed, hint)
    return partial(_plainly, hint)


def _optional(read: Callable[[Any], Any], found: Any) -> Any:
    return None if found is None else read(found)


def _tuple(read: Callable[[Any], Any], found: Any) -> tuple[Any, ...]:
    if type(found) is not list:
        raise TypeError(f"{found!r} is not a list")
    return tuple([read(part) for part in found])


def _as_it_is(found: Any) -> Any:
    return found


def _plainly(cls: type, found: Any) -> Any:
    if type(found) is not cls:
        raise TypeError(f"{found!r} is not of type {cls.__name__}")
    return found


# --- the state for brokers ----------------------------------------------------------------------


@value
class PartitionState:
    """The state of a partition, as sent to the brokers that host it."""

    topic: str
    topic_id: str
    partition: str
    index: int
    acks: AckMode
    epoch: int
    leader: str | None
    config: TopicConfig
    blocks: tuple[BlockNode, ...]  # in order; the last one is open
    siblings: int = 1  # number of partitions of the topic, this one included
    version: int = (
        # rises with each change; of two states with the same topic id, the higher version is valid
        0
    )
    earlier: int = 0  # number of blocks that were sent in earlier messages (as chunks)
    deleted_to: int = 0  # records before this offset are deleted

    @property
    def log_start(self) -> int:
        """The first offset that is kept."""
        return max(self.blocks[0].start, self.deleted_to)

    def block_id(self, block: BlockNode) -> BlockId:
        """Return the id of one of the blocks in a store."""
        return BlockId(self.topic_id, self.index, block.number)
