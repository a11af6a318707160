"""A broker and a zkserver get requests with the right types and nonsensical values."""

from __future__ import annotations

import types
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from pymq.access.requirements import CLUSTER_ACTION, requirements
from pymq.broker.broker import BrokerMachine
from pymq.broker.registration import BrokerConfig
from pymq.controller.controller import Controller, ControllerConfig
from pymq.coord.memory import MemoryCoordinator
from pymq.core import message as msg
from pymq.core.batch.header import parse_header
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message
from pymq.core.types import OFFSETS_TOPIC, AckMode
from pymq.errors import CorruptBatch
from pymq.hash.assign import assignor
from pymq.replication.solo import Solo
from pymq.runtime.loop import Loop
from pymq.store.memory import MemoryStore
from tests.fuzz.damage import INTEGERS
from tests.fuzz.targets import forged, sound_batches

MESSAGES = 25  # messages for one node
BROKER, ZKSERVER, CLIENT = "broker-0", "zkserver-0", "client-1"
TURNS = 5  # turns of 200 messages each, after which all requests must be finished
CLASSES = [  # all requests of clients; a message with an error field is an answer
    cls
    for cls in get_args(Message)
    if not cls.__module__.endswith((".control", ".replicas"))
    and "error" not in attrs.fields_dict(cls)
]
_INT64 = [number for number in INTEGERS if -(1 << 63) <= number < 1 << 63]
_NAMES = {
    "topic": ("t", "t", "t", "u", "missing", "", "..", "x" * 300, "__consumer_offsets"),
    "origin": ("t", "t", "u", "missing", "", "__consumer_offsets"),
    "name": ("t", "u", "v", "t:g", "", "x" * 300, "__x", "a/b", "ä"),
    "partition": ("0", "0", "1", "9", "", "-1", "ä"),
    "partitions": ("0", "1", "2", ""),
    "group": ("g", "g", "h", "", "x" * 300),
    "member": ("m", "m", "n", ""),
    "broker": (BROKER, "broker-1", ""),
    "replicas": (BROKER, "broker-1", ""),
    "assignor": ("sticky", "range", "round-robin", "", "os"),
    "mode": ("ptp", "psb", ""),
}
_OPTIONS = ("retention_ms", "block_bytes", "fsync", "max_record_bytes", "min_in_sync", "cleanup")


class Nodes:
    """The machines themselves, behind a decoder that admits everything."""

    inputs = MESSAGES

    def __init__(self) -> None:
        self.batches = sound_batches()

    def attempt(self, rng: Random) -> bool:
        """Send messages that an authenticated client may send, with random values of the right
        types.
        """
        node = _Node(rng)
        for _ in range(MESSAGES):
            message = self._message(rng)
            if CLUSTER_ACTION in requirements(message):
                continue  # The guard has refused the message.
            to = ZKSERVER if isinstance(message, get_args(msg.AdminMessage)) else BROKER
            node.tell(to if rng.random() < 0.97 else rng.choice((BROKER, ZKSERVER)), message)
        assert node.is_well()
        return True

    def _message(self, rng: Random) -> Message:
        cls = rng.choice(CLASSES)
        hints = get_type_hints(cls)
        made: Message = cls(
            **{f.name: self._value(rng, hints[f.name], f.name) for f in attrs.fields(cls)}
        )
        return made

    def _value(self, rng: Random, hint: Any, name: str) -> Any:
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._value(rng, rng.choice(args), name)
        if origin is tuple:
            count = rng.choice((0, 1, 1, 2, 5)) if args[-1] is Ellipsis else len(args)
            kinds = (args[0],) * count if args[-1] is Ellipsis else args
            return tuple(self._value(rng, kind, name) for kind in kinds)
        if isinstance(hint, type) and issubclass(hint, tuple):  # the type is a named tuple
            return hint(*[self._value(rng, kind, f) for f, kind in get_type_hints(hint).items()])
        if hint is int:
            return rng.choice((0, 1, 2, 5, 10, 100, -1, -2, rng.choice(_INT64)))
        if hint is str:
            return rng.choice(_NAMES.get(name, ("0", "t", "")))
        if hint is bool:
            return rng.random() < 0.5
        if hint is AckMode:
            return rng.choice(list(AckMode))
        if hint is EncodedBatch:
            return self._batch(rng)
        if hint is bytes:
            return rng.choice((b"", b"x", rng.randbytes(rng.randrange(100))))
        if hint is types.NoneType:
            return None
        assert get_origin(hint) is dict, (name, hint)
        odd: tuple[Any, ...] = (None, True, -1, 1 << 62, "os", "", [], b"x", {"a": 1})
        return {rng.choice(_OPTIONS): rng.choice(odd) for _ in range(rng.randrange(3))}

    def _batch(self, rng: Random) -> EncodedBatch:
        batch = rng.choice(self.batches)
        if rng.random() < 0.3:
            return batch.numbered(0, rng.choice((0, 0, 1, 5)))
        data = forged(rng, batch, ())
        try:
            header = parse_header(data)
        except CorruptBatch:
            return batch
        if header.length != len(data):
            return batch  # The decoder has refused the batch.
        return EncodedBatch.parse(data)


class _Node:
    """One broker and one zkserver in one loop, in virtual time."""

    def __init__(self, rng: Random) -> None:
        self.now = 1_000
        self.heard: list[Message] = []
        self._rng = rng
        self._ids = 0
        self.loop = Loop(lambda: self.now, self._far)
        zkserver = Controller(
            ControllerConfig(ZKSERVER, offsets_partitions=1), self._new_id, self.now
        )
        store = MemoryStore()
        config = BrokerConfig(BROKER, (ZKSERVER,))
        broker = BrokerMachine(config, Solo, assignor, rng, store.blocks(), (), self.now)
        self.loop.add_zkserver(ZKSERVER, zkserver, MemoryCoordinator())
        self.loop.add_broker(BROKER, broker, store)
        for _ in range(20):
            self._pass(100)  # the nodes find each other
        for topic, acks in (("t", AckMode.LEADER), ("u", AckMode.RAFT)):
            self.tell(ZKSERVER, msg.CreateTopic(1, topic, ("0", "1"), 1, acks, {}))
        # From here on there are coordinators.
        self.tell(ZKSERVER, msg.GetMetadata(1, OFFSETS_TOPIC))
        for _ in range(20):
            self._pass(100)
        join = msg.Join(2, "g", "m", "t", ("0", "1"), "sticky", 10_000, 10_000, 0, msg.BEGIN)
        self.tell(BROKER, join)
        self._pass(300)
        made = [m for m in self.heard if isinstance(m, (msg.Answer, msg.Assigned))]
        assert [m.error for m in made] == [None] * 4, made

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def _far(self, peer: str, source: str, message: Message) -> None:
        if peer == CLIENT:
            self.heard.append(message)

    def tell(self, to: str, message: Message) -> None:
        """Deliver a message to the node, and run everything that follows."""
        self.loop.take([(to, CLIENT, message)])
        self._pass(self._rng.choice((0, 1, 1, 20, 300)))

    def _pass(self, ms: int) -> None:
        self.now += ms
        for _ in range(TURNS):
            self.loop.run()
            if not self.loop.has_work:
                return
        raise AssertionError("the node does not come to rest")

    def is_well(self) -> bool:
        """Return whether the broker still accepts and serves records."""
        self.tell(ZKSERVER, msg.Recommission(6, BROKER))
        self.tell(ZKSERVER, msg.CreateTopic(7, "after", ("0",), 1, AckMode.LEADER, {}))
        self._pass(300)
        batch = EncodedBatch.encode([b"x"], timestamp_ms=1)
        self.tell(BROKER, msg.Produce(77, "after", "0", AckMode.LEADER, batch))
        self._pass(300)
        self.tell(BROKER, msg.Fetch(777, "after", "0", 0, 1_000, 0))
        self._pass(300)
        (found,) = [m for m in self.heard if isinstance(m, msg.Fetched) and m.id == 777]
        return found.error is None and bytes(found.data[-1:]) == b"x"
