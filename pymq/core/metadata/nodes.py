"""What a zkserver knows, as nodes of the coordinator's tree, and the one codec for all of them.

Each node is an attrs class. It is stored as a CBOR map of its fields with a ``"v"`` for the
format's version, so that any language can read the tree; whatever is read back is checked field by
field.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from pymq.core import cbor
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode, BlockId, check_topic_id
from pymq.core.values import Factory, value
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
    storage_id: str = ""  # a broker whose disk was wiped comes back with another one
    incarnation: int = 0  # of its last registration; a broker that starts anew has a higher one
    is_draining: bool = False  # decommissioned: it is given nothing new


@value
class BrokerState:
    """Alive: an ephemeral node that lives as long as its zkserver and the broker's heartbeats."""

    incarnation: int = 0


@value
class ControllerNode:
    """The active zkserver; ephemeral."""

    name: str
    endpoint: str = ""
    claim: str = ""  # tells one take-over from another, when nobody knows whether it succeeded


@value
class ControllerEpoch:
    """Rises with each take-over; brokers refuse what carries an older one."""

    epoch: int


@value
class TopicNode:
    """A topic; one that is deleted and made again has another id."""

    name: str
    id: str
    next_index: int  # of the next partition
    acks: AckMode  # what a new partition starts with
    replicas: int
    config: TopicConfig
    version: int = 1  # rises with each change
    # It is being made, or removed, in several commits: for everybody else it is not there.
    is_hidden: bool = False


@value
class Wanted:
    """How the next block of a partition is to be replicated; None: as before."""

    acks: AckMode | None = None
    replicas: tuple[str, ...] | None = None  # these and no others, the first is to lead
    count: int | None = None
    move_sealed: bool = False  # the sealed blocks are to be on *replicas*, too


@value
class Loss:
    """A partition went on though records that were committed may be missing."""

    block: int  # number of the block that was open
    offset: int  # records at this offset and beyond may be lost; new ones take their offsets
    log_start: int  # the first offset that is kept
    holder: str | None  # whose copy was taken for the whole; None: there was none
    at_ms: int  # wall clock


@value
class PartitionNode:
    """A partition: which block is open, and how the next one is to be replicated."""

    name: str
    index: int  # in creation order, for hashing of keys
    acks: AckMode
    replicas: int
    next_block: int  # number of the block after the open one
    epoch: int  # leader epoch; rises with each leader and each block
    ptp_offset: int = 0  # a hint; the truth is with the group coordinator
    version: int = 1  # rises with each change of the partition or of its blocks
    leaving: tuple[str, ...] = ()  # brokers that host no block any more, and may still have files
    wanted: Wanted | None = None  # what an administrator was promised, until the roll that does it
    losses: tuple[Loss, ...] = ()  # the latest, oldest first
    sealed_to: tuple[str, ...] = ()  # sealed blocks move to these brokers, until all have


@value
class Move:
    """A sealed block changes one of its replicas for another one (the terms are KIP-455's)."""

    adding: str  # one of the replicas; its copy is not whole yet
    removing: str  # leaves in the commit in which the other one's copy counts


@value
class Interrupted:
    """A replica that was in sync until its broker started anew: it lacks what it had not synced."""

    broker: str
    at_ms: int  # wall clock


@value
class BlockNode:
    """A block; the open one has no end.

    *in_sync* are, of the open block, the replicas that a fetch leader waits for, and of a sealed
    one those that hold all of it.
    """

    number: int
    start: int
    end: int | None
    epoch: int
    acks: AckMode
    leader: str | None
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    # The storage id of each replica, in their order: a broker whose disk was replaced is another
    # replica, which must neither vote nor be counted as the one before.
    storages: tuple[str, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, where it begins), once sealed
    past: bytes = b""  # of an open block with several replicas: what it is to know of producers
    is_unclean: bool = False  # sealed without any replica that was known to hold all of it
    size: int = 0  # bytes, once sealed
    max_timestamp: int = -1  # of its records, once sealed
    opened_ms: int = 0  # wall clock
    interrupted: tuple[Interrupted, ...] = ()  # of an open fetch block; they come after in_sync
    move: Move | None = None  # of a sealed block

    @property
    def name(self) -> str:
        """``NowBlock`` while it is open, then ``Block_<number>``."""
        return NOW_BLOCK if self.end is None else f"Block_{self.number}"

    @property
    def wanted_copies(self) -> int:
        """How many copies there are to be; one that a move is about to make is none more."""
        return len(self.replicas) - (self.move is not None)


@value
class ReplicaNode:
    """One broker's copy of a block, as last reported."""

    broker: str
    start: int
    end: int
    in_sync: bool


@value
class DeletedNode:
    """A topic that was deleted, until every broker that had some of it has confirmed."""

    topic: str
    id: str
    brokers: tuple[str, ...]


@value
class SubscriptionNode:
    """Who consumes a topic, and how."""

    name: str
    topic: str
    mode: str  # "ptp" or "psb"
    group: str | None = None
    partition: str | None = None


@value
class ProducerNode:
    """A named producer's epoch; the latest one fences all before it."""

    name: str
    epoch: int
    run: str = ""  # of the latest; those with the same share its epoch
    id: int = -1  # random; -1: the name is of before ids were given out, and hashed to one


@value
class SecretNode:
    """What only brokers and zkservers know: the grants of producers' ids are made with it."""

    secret: bytes


@value
class ProducerIds:
    """*count* ids of producers from *first* on, an epoch (its upper half), and the grant."""

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
    """Pack a node for the coordinator."""
    return cbor.dumps({"v": VERSION, **_plain(node)})


def decode_node(cls: type[N], data: bytes) -> N:
    """Unpack a node of class *cls*.

    Raises:
        CorruptMetadata: it is not one, or a newer pymq wrote it.
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
            check_topic_id(node.id)  # It becomes the name of a folder.
        except InvalidRequest as error:
            raise CorruptMetadata(f"{cls.__name__}: {error.message}") from None
    return node


_SCALARS = frozenset({str, int, bool, bytes, float, type(None)})


def _plain(item: Any) -> Any:
    if type(item) in _SCALARS:  # Nearly all of them are.
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
    """What turns plain data into what the type *hint* says, or raises :class:`TypeError`."""
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


# --- what brokers and clients are told ----------------------------------------------------------


@value
class PartitionState:
    """All that a broker must know of a partition that it hosts."""

    topic: str
    topic_id: str
    partition: str
    index: int
    acks: AckMode
    epoch: int
    leader: str | None
    config: TopicConfig
    blocks: tuple[BlockNode, ...]  # in order; the last one is open
    siblings: int = 1  # partitions of the topic, this one included
    version: int = 0  # rises with each change; of two states of a topic id, the higher one holds
    earlier: int = 0  # blocks that lie before these, and were told in messages before (as parts)

    def block_id(self, block: BlockNode) -> BlockId:
        """The name of one of the blocks towards a store."""
        return BlockId(self.topic_id, self.index, block.number)


@value
class PartitionLeader:
    """Where a partition is to be produced to; the leader is None while there is none."""

    partition: str
    index: int
    acks: AckMode
    epoch: int
    leader: str | None
    endpoint: str | None
    replicas: tuple[str, ...] = ()  # live brokers to read from, the most complete first


@value
class BrokerPlace:
    """Where a live broker is."""

    name: str
    endpoint: str
    rack: str | None = None


@value
class TopicMetadata:
    """A topic as clients need it."""

    topic: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionLeader, ...]  # in creation order
    brokers: tuple[BrokerPlace, ...] = ()  # the live ones that the partitions name


@value
class BlockDescription:
    """A block as ``describe_topic`` shows it; *end_offset* is None while it is open."""

    name: str
    start_offset: int
    end_offset: int | None
    epoch: int
    acks: AckMode
    leader: str | None
    replicas: tuple[str, ...]
    size_bytes: int
    number: int = 0  # counts the blocks of the partition, those that are gone included
    in_sync: tuple[str, ...] = ()  # replicas that hold all of it, or, while it is open, keep up
    opened_ms: int = 0  # wall clock
    max_timestamp_ms: int = -1  # of its records; -1 while it is open or empty
    is_unclean: bool = False  # sealed without any replica that was known to hold all of it


@value
class PartitionDescription:
    """A partition as ``describe_topic`` shows it."""

    name: str
    index: int
    acks: AckMode
    leader: str | None
    epoch: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    start_offset: int
    end_offset: int
    high_watermark: int
    blocks: tuple[BlockDescription, ...]
    problem: str | None = None  # why nobody leads it, or why its leader cannot write
    losses: tuple[Loss, ...] = ()
    offline: tuple[str, ...] = ()  # replicas whose broker is dead, or whose disk fails them
    under_replicated: bool = False  # fewer replicas are in sync than it is to have

    def unreadable(self, dead: Collection[str]) -> list[BlockDescription]:
        """Sealed blocks that nobody holds but *dead* brokers; a leader says nothing of them."""
        return [
            block
            for block in self.blocks
            if block.end_offset is not None and all(broker in dead for broker in block.in_sync)
        ]


@value
class TopicDescription:
    """What ``describe_topic`` returns."""

    name: str
    config: TopicConfig
    partitions: tuple[PartitionDescription, ...]


@value
class BrokerDescription:
    """A broker as ``cluster`` shows it."""

    name: str
    endpoint: str
    rack: str | None
    alive: bool
    leads: int  # partitions whose open block it leads
    is_draining: bool = False
    blocks: int = 0  # open and sealed ones that it is a replica of
    kept_by: tuple[str, ...] = ()  # why it is not empty yet, if it is draining


@value
class ClusterDescription:
    """What ``cluster`` returns."""

    controller: str
    controller_epoch: int
    brokers: tuple[BrokerDescription, ...] = Factory(tuple)
    topics: int = 0
    partitions: int = 0
    leaderless: tuple[str, ...] = ()  # "topic/partition"; ``describe_topic`` says why
    under_replicated_blocks: int = 0  # sealed ones with fewer whole copies alive than replicas
    moving_blocks: int = 0  # sealed ones of which a copy is being made for another broker
