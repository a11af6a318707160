"""What a packet looks like on the wire; docs/protocol.md is this module for other languages.

A packet is one ZeroMQ message: a header frame, which is small and CBOR, and the payload frames that
it announces, which nobody looks into on the way. The header is a list, first of it the version::

    [version, [number, to, from, field, field, ...], ...]

*number* says which message it is. *to* and *from* are what is left of the machines' names without
their nodes, which the connection knows: ``""`` is the node's main machine, ``"producer1"`` another
one of a client. So nobody can write in the name of another node.

Many messages share a packet, which costs as much as one. Decoding checks everything: sizes before
anything is looked at, then the CBOR (:mod:`pymq.core.cbor`), then the type of every field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pymq.core import cbor
from pymq.core import message as msg
from pymq.core.batch.header import BATCH_BYTES_MAX
from pymq.core.message import Message
from pymq.core.values import value
from pymq.errors import InvalidRequest, PymqError, RecordTooLarge
from pymq.transport.shapes import Buffer, Frames, Payload, Shape, shape_of

VERSION = 1
VERSIONS = (1, 1)  # the first and the last that this pymq speaks

FRAME_BYTES_MAX = BATCH_BYTES_MAX + (1 << 20)  # of any frame; libzmq cuts who sends more
HEADER_BYTES_MAX = 16 << 20
# A byte of CBOR can be an empty list, which takes 64 in memory: clients are given so much less that
# none of them makes a node grow by more than 32 MiB.
CLIENT_HEADER_BYTES_MAX = 512 << 10
FRAMES_MAX = 64  # payload frames of a packet ...
PACKET_BYTES = 1 << 20  # ... which is full when it has this much payload
MESSAGES_MAX = 4096  # of a packet that is taken; ...
MESSAGES = 128  # ... with so many it leaves, for its receiver to begin while the next is made
NAME_MAX = 255
_PART = re.compile(r"[A-Za-z0-9_-]*").fullmatch  # names of what is a part of a node


@value
class Hello:
    """The first packet of a connection, and the answer to it: what its sender speaks."""

    first: int = VERSIONS[0]  # versions from this one ...
    last: int = VERSIONS[1]  # ... to this one
    frame_bytes: int = FRAME_BYTES_MAX  # it takes no larger frames
    software: str = ""  # for people


@value
class Refused:
    """A packet was not taken; the error says why."""

    error: PymqError


@value
class Alive:
    """Nothing; whoever can send this to a peer knows that there is a connection."""


Link = Hello | Refused | Alive  # what transports say to each other, and machines never see

# The numbers are for ever. A message that is gone leaves a gap; a new one gets a new number, in the
# range of its kind: 1 transports, 10 records, 30 groups, 60 zkserver, 100 brokers and zkserver,
# 140 replicas.
NUMBERS: dict[int, type] = {
    1: Hello,
    2: Refused,
    3: Alive,
    10: msg.Produce,
    11: msg.Produced,
    12: msg.GetSequence,
    13: msg.Sequence,
    14: msg.Fetch,
    15: msg.Fetched,
    16: msg.FindOffset,
    17: msg.OffsetFound,
    18: msg.Copy,
    19: msg.Copied,
    30: msg.Join,
    31: msg.Heartbeat,
    32: msg.Assigned,
    33: msg.Leave,
    34: msg.Acquire,
    35: msg.Acquired,
    36: msg.Settle,
    37: msg.Settled,
    38: msg.CommitOffset,
    39: msg.GetGroup,
    40: msg.GroupState,
    41: msg.ListGroups,
    42: msg.GroupNames,
    43: msg.GetLeases,
    44: msg.GroupLeases,
    45: msg.DeleteGroup,
    60: msg.CreateTopic,
    61: msg.CreatePartition,
    62: msg.DeleteTopic,
    63: msg.AlterTopic,
    64: msg.SetPartitionState,
    65: msg.Reassign,
    66: msg.Decommission,
    67: msg.DescribeTopic,
    68: msg.ListTopics,
    69: msg.DescribeCluster,
    70: msg.GetMetadata,
    71: msg.Subscribe,
    72: msg.Unsubscribe,
    73: msg.Locate,
    74: msg.InitProducer,
    75: msg.Answer,
    76: msg.Recommission,
    77: msg.RecoverPartition,
    78: msg.BalanceLeaders,
    79: msg.UnderWay,
    100: msg.RegisterBroker,
    101: msg.BrokerHeartbeat,
    102: msg.LeaderAndIsr,
    103: msg.LeaderAndIsrAnswer,
    104: msg.StopReplica,
    105: msg.Stopped,
    106: msg.Seal,
    107: msg.Sealed,
    108: msg.RollWanted,
    109: msg.RetireBlocks,
    110: msg.BlockSizes,
    111: msg.AlterIsr,
    112: msg.BecomeLeader,
    113: msg.Progress,
    114: msg.DescribePartitions,
    115: msg.PartitionReports,
    116: msg.ControlledShutdown,
    117: msg.OfflineReplicas,
    118: msg.TransferLeader,
    119: msg.ReplicaEnds,
    140: msg.Ping,
    141: msg.ReplicaFetch,
    142: msg.ReplicaFetched,
    143: msg.RaftAppend,
    144: msg.RaftAppended,
    145: msg.RaftVote,
    146: msg.RaftVoted,
    147: msg.RaftTimeout,
    148: msg.RaftSnapshot,
}

# Fields that are payload. (A batch always is.)
PAYLOAD: dict[type, tuple[str, ...]] = {
    msg.Fetched: ("data",),
    msg.ReplicaFetched: ("data",),
    msg.RaftAppend: ("data",),
    msg.RaftSnapshot: ("data",),
}

_by_number: dict[int, Shape] = {
    number: shape_of(cls, payload=PAYLOAD.get(cls, ())) for number, cls in NUMBERS.items()
}
_by_class = {cls: (number, _by_number[number].pack) for number, cls in NUMBERS.items()}

Item = tuple[str, str, "Message | Link"]  # (to, from, what), without nodes


class Packet:
    """A packet that is being put together."""

    __slots__ = ("_is_last", "frames", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Any] = [VERSION]
        self.frames: Frames = []
        self.size = 0  # bytes of payload frames
        self._is_last = False  # what was put in may be so large that nothing should follow

    def add(self, to: str, source: str, message: Message | Link) -> None:
        """Put a message in.

        Raises:
            RecordTooLarge: its payload is larger than any frame may be.
        """
        number, pack = _by_class[type(message)]
        before = len(self.frames)
        row = pack(message, self.frames)
        for frame in self.frames[before:]:
            if len(frame) > FRAME_BYTES_MAX:
                size = len(frame)
                del self.frames[before:]
                raise RecordTooLarge(f"a payload of {size} bytes is more than a frame may have")
            self.size += len(frame)
        row[:0] = (number, to, source)
        self.rows.append(row)
        self._is_last = number in _ALONE

    @property
    def is_full(self) -> bool:
        """Whether what comes next should have a packet of its own."""
        return (
            self.size >= PACKET_BYTES
            or len(self.rows) > MESSAGES
            or len(self.frames) >= FRAMES_MAX
            or self._is_last
        )

    def seal(self) -> list[Buffer]:
        """The frames of the packet.

        Raises:
            RecordTooLarge: the header is larger than it may be.
        """
        header = cbor.dumps(self.rows)
        if len(header) > HEADER_BYTES_MAX:
            raise RecordTooLarge(f"a header of {len(header)} bytes is more than a packet may have")
        return [header, *self.frames]


def encode(items: Iterable[Item]) -> list[Buffer]:
    """The frames of one packet with all of *items*; for :class:`Packet` does it piece by piece."""
    packet = Packet()
    for item in items:
        packet.add(*item)
    return packet.seal()


def decode(
    header: Buffer, frames: Sequence[Buffer], header_max: int = HEADER_BYTES_MAX
) -> list[Item]:
    """The messages of a packet; those that this version does not know are left out.

    Raises:
        InvalidRequest: it is not a packet; nothing of it may be taken.
    """
    if len(header) > header_max:
        raise InvalidRequest(f"the header has {len(header)} bytes, the most is {header_max}")
    if len(frames) > FRAMES_MAX:
        raise InvalidRequest(f"there are {len(frames)} payload frames, the most is {FRAMES_MAX}")
    rows = cbor.loads(header)
    if type(rows) is not list or not rows or type(rows[0]) is not int:
        raise InvalidRequest("the header is not a list that begins with a version")
    if not VERSIONS[0] <= rows[0] <= VERSIONS[1]:
        raise InvalidRequest(
            f"protocol version {rows[0]} is not spoken here, but {VERSIONS[0]} to {VERSIONS[1]}",
            first=VERSIONS[0],
            last=VERSIONS[1],
        )
    if len(rows) > MESSAGES_MAX + 1:
        raise InvalidRequest(f"there are {len(rows) - 1} messages, the most is {MESSAGES_MAX}")
    remaining = iter(frames)
    payload, items = Payload(remaining), []
    is_known = True
    for row in rows[1:]:
        if type(row) is not list or len(row) < 3 or type(row[0]) is not int:
            raise InvalidRequest("a message is a list that begins with a number and two names")
        number, to, source = row[:3]
        if type(to) is not str or type(source) is not str or len(to) + len(source) > NAME_MAX:
            raise InvalidRequest("the names of machines are short texts")
        if source and _PART(source) is None:
            # It is shown to people, and a dot would make it a part of another node.
            raise InvalidRequest("a part of a node has a name of A-Z a-z 0-9 _ -")
        shape = _by_number.get(number)
        if shape is None:
            is_known = False  # It may have had payload, so what follows is in the dark as well.
            continue
        if not is_known and number not in _NO_PAYLOAD:
            continue
        items.append((to, source, shape.unpack(row[3:], payload)))
    if is_known and next(remaining, None) is not None:
        raise InvalidRequest("there are more payload frames than were announced")
    return items


_ALONE = frozenset(number for number, cls in NUMBERS.items() if cls is msg.LeaderAndIsr)
_NO_PAYLOAD = frozenset(
    number for number, cls in NUMBERS.items() if cls is not msg.Produce and cls not in PAYLOAD
)
