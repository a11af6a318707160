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
    from pymq import aio, serde
    from pymq.client.admin.groups import (
        GroupDescription,
        LeaseDescription,
        LeasesDescription,
        MemberDescription,
    )
    from pymq.client.backoff import Backoff
    from pymq.client.client import Client
    from pymq.client.consumer.consumer import Consumer
    from pymq.client.consumer.status import ConsumerStatus
    from pymq.client.producer.delivery import Deliveries, Delivery
    from pymq.client.producer.producer import Producer
    from pymq.client.redrive.redrive import Redriven
    from pymq.client.rpc.mailbox import Request
    from pymq.client.rpc.responder import Responder
    from pymq.client.typed.consumer import TypedConsumer
    from pymq.client.typed.topic import TypedTopic
    from pymq.client.typed.values import TypedRecord
    from pymq.core.batch.record import Record, RecordMetadata
    from pymq.core.batch.view import RecordBatch
    from pymq.core.metadata.descriptions import (
        BlockDescription,
        BrokerDescription,
        ClusterDescription,
        PartitionDescription,
        TopicDescription,
    )
    from pymq.core.metadata.nodes import Loss
    from pymq.core.metadata.topic_config import TopicConfig
    from pymq.core.types import AckMode, TopicPartition
    from pymq.nodes.assembly import Broker, ZkServer

__version__ = "0.1.0"

__all__ = [
    "AckMode",
    "Backoff",
    "BlockDescription",
    "Broker",
    "BrokerDescription",
    "Client",
    "ClusterDescription",
    "Consumer",
    "ConsumerStatus",
    "Deliveries",
    "Delivery",
    "GroupDescription",
    "LeaseDescription",
    "LeasesDescription",
    "Loss",
    "MemberDescription",
    "PartitionDescription",
    "Producer",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "Redriven",
    "Request",
    "Responder",
    "TopicConfig",
    "TopicDescription",
    "TopicPartition",
    "TypedConsumer",
    "TypedRecord",
    "TypedTopic",
    "ZkServer",
    "aio",
    "errors",
    "open",
    "serde",
]


def open(
    url: str | os.PathLike[str],
    *,
    curve_dir: str | os.PathLike[str] | None = None,
    principal: str | None = None,
    brokers: int | None = None,
    tls_dir: str | os.PathLike[str] | None = None,
) -> Client:
    """Open a folder, ``"memory:"``, or a cluster by its zkservers.

    Args:
        url: a path (a missing folder is created), ``"memory:"`` for a queue that keeps nothing on
            disk, or ``"zmq+tcp://host:port,host:port"``. Clusters that listen without ZeroMQ have
            ``"tcp://host:port"`` and ``"tls://host:port"``.
        curve_dir: the folder of keys, if the cluster requires them (docs/security.md). The URL may
            name it instead: ``zmq+tcp://host:port?curve_dir=PATH&principal=NAME``.
        principal: the name of this client's secret key in that folder; by default the only key.
        brokers: the number of brokers in this process, so that topics may have ``replicas``. Each
            broker has its own folder in *url* (``broker-0``, ...), which may be on its own disk.
            The default is the number that the folder has, or 1 for a new folder.
        tls_dir: the folder of certificates for ``"tls://host:port"`` (docs/security.md); the URL
            may name it instead, with ``?tls_dir=PATH``.

    Raises:
        ConfigError: the URL is invalid, the key is missing, or the folder holds more brokers.
        StoreLocked: another process has the folder open.
        StoreError, CorruptMetadata: the folder cannot be used; the message says why.
        MissingExtra: pyzmq is not installed.
    """
    # Loaded with the first queue, so that a process without a queue does not load the broker
    # (docs/decisions/0186).
    from pymq.core.types import CLUSTER_SCHEMES
    from pymq.nodes.embedded import BROKERS_MAX, open_folder, open_memory

    text: object = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise errors.ConfigError(f"{url!r} is neither a path nor a URL")
    if (curve_dir or principal or tls_dir) and not text.startswith(CLUSTER_SCHEMES):
        raise errors.ConfigError(f"{url!r} is in this process, where keys are not used")
    if brokers is not None and (type(brokers) is not int or not 1 <= brokers <= BROKERS_MAX):
        raise errors.ConfigError(f"brokers={brokers!r} is no number from 1 to {BROKERS_MAX}")
    if text in ("memory:", ":memory:"):
        return open_memory(brokers or 1)
    if "://" in text:
        scheme, _, rest = text.partition("://")
        if scheme == "file":
            return open_folder(rest, brokers)
        if text.startswith(CLUSTER_SCHEMES):
            if brokers is not None:
                raise errors.ConfigError(f"the brokers of {url!r} are not in this process")
            from pymq.nodes.remote import open_cluster  # on demand: most uses need no network

            return open_cluster(text, curve_dir=curve_dir, principal=principal, tls_dir=tls_dir)
        raise errors.ConfigError(
            f"{scheme}:// is not known; use a folder, 'memory:' or zmq+tcp://HOST:PORT"
        )
    return open_folder(text, brokers)


# Each name is imported on first use (PEP 562), so `import pymq` loads only `pymq.errors`.
_LATER = {
    "AckMode": "pymq.core.types",
    "Backoff": "pymq.client.backoff",
    "BlockDescription": "pymq.core.metadata.descriptions",
    "Broker": "pymq.nodes.assembly",
    "BrokerDescription": "pymq.core.metadata.descriptions",
    "Client": "pymq.client.client",
    "ClusterDescription": "pymq.core.metadata.descriptions",
    "Consumer": "pymq.client.consumer.consumer",
    "ConsumerStatus": "pymq.client.consumer.status",
    "Deliveries": "pymq.client.producer.delivery",
    "Delivery": "pymq.client.producer.delivery",
    "GroupDescription": "pymq.client.admin.groups",
    "LeaseDescription": "pymq.client.admin.groups",
    "LeasesDescription": "pymq.client.admin.groups",
    "Loss": "pymq.core.metadata.nodes",
    "MemberDescription": "pymq.client.admin.groups",
    "PartitionDescription": "pymq.core.metadata.descriptions",
    "Producer": "pymq.client.producer.producer",
    "Record": "pymq.core.batch.record",
    "RecordBatch": "pymq.core.batch.view",
    "RecordMetadata": "pymq.core.batch.record",
    "Redriven": "pymq.client.redrive.redrive",
    "Request": "pymq.client.rpc.mailbox",
    "Responder": "pymq.client.rpc.responder",
    "TopicConfig": "pymq.core.metadata.topic_config",
    "TopicDescription": "pymq.core.metadata.descriptions",
    "TopicPartition": "pymq.core.types",
    "TypedConsumer": "pymq.client.typed.consumer",
    "TypedRecord": "pymq.client.typed.values",
    "TypedTopic": "pymq.client.typed.topic",
    "ZkServer": "pymq.nodes.assembly",
    "aio": "pymq.aio",
    "serde": "pymq.serde",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'pymq' has no attribute {name!r}")
    module = import_module(_LATER[name])
    found = module if name in ("aio", "serde") else getattr(module, name)
    globals()[name] = found  # later accesses find the name without this function
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
