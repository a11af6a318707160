"""pymq: a message queue that you import.

>>> import pymq
>>> with pymq.open("memory:") as mq:
...     mq.create_topic("greetings")
...     with mq.producer() as producer:
...         _ = producer.send("greetings", b"hello")
...     with mq.consumer("greetings", group="readers") as consumer:
...         print([record.value for record in consumer.until_end()])
[b'hello']
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pymq import errors

if TYPE_CHECKING:
    from pymq import aio
    from pymq.client.client import Client, GroupDescription
    from pymq.client.consumer import Consumer, ConsumerStatus
    from pymq.client.delivery import Deliveries, Delivery
    from pymq.client.producer import Producer
    from pymq.core.config import TopicConfig
    from pymq.core.metadata import (
        BlockDescription,
        ClusterDescription,
        PartitionDescription,
        TopicDescription,
    )
    from pymq.core.record import Record, RecordMetadata
    from pymq.core.types import AckMode, TopicPartition
    from pymq.core.view import BatchView as RecordBatch

__version__ = "0.1.0"

__all__ = [
    "AckMode",
    "BlockDescription",
    "Client",
    "ClusterDescription",
    "Consumer",
    "ConsumerStatus",
    "Deliveries",
    "Delivery",
    "GroupDescription",
    "PartitionDescription",
    "Producer",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "TopicConfig",
    "TopicDescription",
    "TopicPartition",
    "aio",
    "errors",
    "open",
]

_HOMES = {
    "AckMode": "pymq.core.types:AckMode",
    "BlockDescription": "pymq.core.metadata:BlockDescription",
    "Client": "pymq.client.client:Client",
    "ClusterDescription": "pymq.core.metadata:ClusterDescription",
    "Consumer": "pymq.client.consumer:Consumer",
    "ConsumerStatus": "pymq.client.consumer:ConsumerStatus",
    "Deliveries": "pymq.client.delivery:Deliveries",
    "Delivery": "pymq.client.delivery:Delivery",
    "GroupDescription": "pymq.client.client:GroupDescription",
    "PartitionDescription": "pymq.core.metadata:PartitionDescription",
    "Producer": "pymq.client.producer:Producer",
    "Record": "pymq.core.record:Record",
    "RecordBatch": "pymq.core.view:BatchView",
    "RecordMetadata": "pymq.core.record:RecordMetadata",
    "TopicConfig": "pymq.core.config:TopicConfig",
    "TopicDescription": "pymq.core.metadata:TopicDescription",
    "TopicPartition": "pymq.core.types:TopicPartition",
    "aio": "pymq.aio:",
}


def open(url: str | os.PathLike[str]) -> Client:
    """Open pymq: a folder, ``"memory:"``, or a cluster by its zkservers.

    Args:
        url: a path (the folder is made when absent), ``"memory:"`` for a queue that keeps nothing,
            or ``"zmq+tcp://host:port,host:port"``.

    Raises:
        ConfigError: the URL is none of these.
        StoreLocked: another process has the folder open.
        StoreError, CorruptMetadata: the folder cannot be used; the message says why.
    """
    from pymq.embedded import open_folder, open_memory  # what is not used is not loaded

    text: object = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise errors.ConfigError(f"{url!r} is neither a path nor a URL")
    if text in ("memory:", ":memory:"):
        return open_memory()
    if "://" in text:
        scheme, _, rest = text.partition("://")
        if scheme == "file":
            return open_folder(rest)
        raise errors.ConfigError(
            f"{scheme}:// is not known to this version; use a folder or 'memory:'"
        )
    return open_folder(text)


def __getattr__(name: str) -> Any:
    # Names are loaded when first used (PEP 562): ``import pymq`` costs what errors cost.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pymq' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    found = import_module(module)
    found = getattr(found, attribute) if attribute else found
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
