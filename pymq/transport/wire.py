"""Encodes and decodes packets; docs/protocol.md describes the format for other languages.

A packet is one ZeroMQ message: a small header frame in CBOR, and payload frames, which the
transport does not read. The header is a list that begins with the version::

    [version, [number, to, from, field, field, ...], ...]

*number* is the type of the message. *to* and *from* are names of state machines on a node: ``""``
is the node's main machine, ``"producer1"`` another machine of a client. The names of the nodes are
not sent, because the connection determines them. So a node cannot send messages in the name of
another node.

Many messages share a packet, because a packet costs about as much as one message. Decoding checks
all input: first the sizes, then the CBOR (:mod:`pymq.core.cbor`), then the type of every field.
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
VERSIONS = (1, 1)  # the first and the last version that this pymq speaks

# size limit of a frame; libzmq closes connections that send larger frames
FRAME_BYTES_MAX = BATCH_BYTES_MAX + (1 << 20)
HEADER_BYTES_MAX = 16 << 20
# A byte of CBOR can be an empty list, which takes 64 bytes in memory. So the limit for headers from
# clients is lower: one packet of a client takes at most 32 MiB of memory.
CLIENT_HEADER_BYTES_MAX = 512 << 10
FRAMES_MAX = 64  # most payload frames in a packet
PACKET_BYTES = 1 << 20  # a packet with this many bytes of payload is full
MESSAGES_MAX = 4096  # most messages in a packet that a node accepts
MESSAGES = 128  # most messages in a packet that a node sends, so that the receiver can start early
NAME_MAX = 255
_PART = re.compile(r"[A-Za-z0-9_-]*").fullmatch  # valid names of a node's machines


@value
class Hello:
    """The first packet of a connection, and its answer: the versions that the sender supports."""

    first: int = VERSIONS[0]  # the first version ...
    last: int = VERSIONS[1]  # ... and the last supported version
    frame_bytes: int = FRAME_BYTES_MAX  # the largest frame that the node accepts
    software: str = ""  # the software's name and version, for logs


@value
class Refused:
    """A packet was refused; the error is the reason."""

    error: PymqError


@value
class Alive:
    """An empty message; if a node can send it to a peer, the connection still exists."""


Link = Hello | Refused | Alive  # messages between transports; machines never get these

# Numbers never change. The number of a removed message stays reserved. A new message gets a new
# number in the range of its kind, which begins at: 1 transports, 10 records, 30 groups, 60
# zkserver, 100 brokers and zkserver, 140 replicas. Reserved: 148, which was RaftSnapshot.
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
    20: msg.CancelDelayed,
    21: msg.Cancelled,
    22: msg.FindEpoch,
    23: msg.EpochFound,
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
    46: msg.JoinClassic,
    47: msg.JoinedClassic,
    48: msg.SyncClassic,
    49: msg.SyncedClassic,
    50: msg.BeatClassic,
    51: msg.LeaveClassic,
    52: msg.CommitClassic,
    53: msg.ClassicDone,
    54: msg.DescribeClassic,
    55: msg.ClassicState,
    56: msg.BeatReconciled,
    57: msg.Reconciled,
    58: msg.DescribeReconciled,
    59: msg.ReconciledState,
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
    80: msg.DeleteRecords,
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
}

# Fields whose values are payload; batches are always payload.
PAYLOAD: dict[type, tuple[str, ...]] = {
    msg.Fetched: ("data",),
    msg.ReplicaFetched: ("data",),
    msg.RaftAppend: ("data",),
}

# The places of removed fields, which stay reserved so that the other fields keep their places.
RESERVED: dict[type, tuple[int, ...]] = {
    msg.RaftAppend: (6,),
    msg.RaftAppended: (5,),
}

_by_number: dict[int, Shape] = {
    number: shape_of(cls, payload=PAYLOAD.get(cls, ()), reserved=RESERVED.get(cls, ()))
    for number, cls in NUMBERS.items()
}
_by_class = {cls: (number, _by_number[number].pack) for number, cls in NUMBERS.items()}

Item = tuple[str, str, "Message | Link"]  # (to, from, message), names without nodes


class Packet:
    """A packet that is being built."""

    __slots__ = ("_is_last", "frames", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Any] = [VERSION]
        self.frames: Frames = []
        self.size = 0  # bytes of payload frames
        # whether the last message was so large that no other message should follow in this packet
        self._is_last = False

    def add(self, to: str, source: str, message: Message | Link) -> None:
        """Append a message.

        Raises:
            RecordTooLarge: the payload is larger than a frame may be.
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
        """Whether the next message should begin another packet."""
        return (
            self.size >= PACKET_BYTES
            or len(self.rows) > MESSAGES
            or len(self.frames) >= FRAMES_MAX
            or self._is_last
        )

    def seal(self) -> list[Buffer]:
        """Return the frames of the packet.

        Raises:
            RecordTooLarge: the header exceeds its limit.
        """
        header = cbor.dumps(self.rows)
        if len(header) > HEADER_BYTES_MAX:
            raise RecordTooLarge(f"a header of {len(header)} bytes is more than a packet may have")
        return [header, *self.frames]


def encode(items: Iterable[Item]) -> list[Buffer]:
    """Return the frames of one packet with all of *items*.

    :class:`Packet` does the same message by message.
    """
    packet = Packet()
    for item in items:
        packet.add(*item)
    return packet.seal()


def decode(
    header: Buffer, frames: Sequence[Buffer], header_max: int = HEADER_BYTES_MAX
) -> list[Item]:
    """Return the messages of a packet, except those with unknown numbers.

    Raises:
        InvalidRequest: the packet is not valid; none of its messages may be used.
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
            f"protocol version {rows[0]} is not supported; use {VERSIONS[0]} to {VERSIONS[1]}",
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
            # The name appears in logs, and a name with a dot would be that of another node's
            # machine.
            raise InvalidRequest("a machine's name may have only A-Z a-z 0-9 _ -")
        shape = _by_number.get(number)
        if shape is None:
            # the message may have had payload, so later messages cannot be matched with frames
            is_known = False
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
