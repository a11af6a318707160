"""A sample of every message, made from the types of its fields."""

from __future__ import annotations

import types
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Location, Message, Result
from pymq.core.metadata.descriptions import ClusterDescription, TopicDescription, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import NotLeader, PymqError, StoreFull

MESSAGES: tuple[type, ...] = get_args(Message)


def sample(hint: Any, rng: Random) -> Any:
    """Return a random value of a type."""
    if hint == Result:
        return _result(rng)
    if hint in _MAKERS:
        return _MAKERS[hint](rng)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return sample(rng.choice(args), rng)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return tuple(sample(args[0], rng) for _ in range(rng.randrange(4)))
        return tuple(sample(arg, rng) for arg in args)
    if hint is types.NoneType:
        return None
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = get_type_hints(hint)
        return hint(*[sample(part, rng) for part in hints.values()])
    hints = get_type_hints(hint)
    return hint(**{field.name: sample(hints[field.name], rng) for field in attrs.fields(hint)})


def _result(rng: Random) -> Any:
    kinds: list[Any] = [TopicMetadata, TopicDescription, ClusterDescription, int, bool]
    kinds += [types.NoneType, tuple[str, ...], tuple[Location, ...]]
    return sample(rng.choice(kinds), rng)


def _batch(rng: Random) -> EncodedBatch:
    values = [rng.randbytes(rng.choice([0, 10, 3_000])) for _ in range(rng.randrange(1, 4))]
    return EncodedBatch.encode(values, timestamp_ms=rng.randrange(1 << 40))


def _int(rng: Random) -> int:
    return rng.choice([0, 1, -1, 23, 24, 255, 65_536, -300, 1 << 40, (1 << 63) - 1, -(1 << 63)])


def _error(rng: Random) -> PymqError:
    return rng.choice(
        [
            NotLeader("broker-1 leads", leader="broker-1"),
            StoreFull("no space left"),
            NotLeader("nobody leads", leader=None, tried=["a", "b"]),
        ]
    )


_MAKERS: dict[Any, Any] = {
    int: _int,
    str: lambda rng: rng.choice(["", "orders", "ä" * 30, "x" * 300]),
    bool: lambda rng: rng.random() < 0.5,
    bytes: lambda rng: rng.randbytes(rng.choice([0, 1, 2_048, 2_049, 10_000])),
    AckMode: lambda rng: rng.choice(list(AckMode)),
    PymqError: _error,
    EncodedBatch: _batch,
    TopicConfig: lambda rng: TopicConfig.of({"retention_ms": rng.randrange(1 << 40)}),
    dict[str, Any]: lambda rng: {"retention_ms": 5, "fsync": "os", "unclean_election": True},
}


def plain(item: Any) -> Any:
    """Convert an item into a form in which equal items compare equal, unlike batches and errors."""
    if isinstance(item, EncodedBatch):
        return bytes(item.head), bytes(item.body), item.header
    if isinstance(item, PymqError):
        return type(item), str(item), item.details
    if isinstance(item, memoryview):
        return bytes(item)
    if isinstance(item, tuple):
        return tuple(plain(part) for part in item)
    if attrs.has(type(item)):
        fields = attrs.fields(type(item))
        return type(item), tuple(plain(getattr(item, field.name)) for field in fields)
    return item
