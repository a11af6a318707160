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
from pymq.client.client import Client
from pymq.client.producer.delivery import Deliveries, Delivery
from pymq.client.producer.producer import Producer
from pymq.core.batch.record import Record, RecordMetadata
from pymq.core.metadata.nodes import (
    BlockDescription,
    BrokerDescription,
    ClusterDescription,
    Loss,
    PartitionDescription,
    TopicDescription,
)
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode, TopicPartition
from pymq.nodes.embedded import BROKERS_MAX, open_folder, open_memory

if TYPE_CHECKING:
    from pymq import aio
    from pymq.client.admin.groups import (
        GroupDescription,
        LeaseDescription,
        LeasesDescription,
        MemberDescription,
    )
    from pymq.client.consumer.consumer import Consumer
    from pymq.client.consumer.status import ConsumerStatus
    from pymq.core.batch.view import RecordBatch
    from pymq.nodes.assembly import Broker, ZkServer

__version__ = "0.1.0"

__all__ = [
    "AckMode",
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
    "TopicConfig",
    "TopicDescription",
    "TopicPartition",
    "ZkServer",
    "aio",
    "errors",
    "open",
]


def open(
    url: str | os.PathLike[str],
    *,
    curve_dir: str | os.PathLike[str] | None = None,
    principal: str | None = None,
    brokers: int | None = None,
) -> Client:
    """Open pymq: a folder, ``"memory:"``, or a cluster by its zkservers.

    Args:
        url: a path (the folder is made when absent), ``"memory:"`` for a queue that keeps nothing,
            or ``"zmq+tcp://host:port,host:port"``.
        curve_dir: the folder of keys for a cluster that asks for them (docs/security.md); it may
            also stand in the URL, as ``zmq+tcp://host:port?curve_dir=PATH&principal=NAME``.
        principal: whose secret key of that folder is ours; the only one there is, by default.
        brokers: how many are to be in this process, so that topics may have ``replicas``. Each has
            a folder of its own in *url*, ``broker-0`` and so on, which may be on disks of their
            own. By default as many as are there; of a new folder one.

    Raises:
        ConfigError: the URL is none of these, the key is not there, or the folder holds more
            brokers.
        StoreLocked: another process has the folder open.
        StoreError, CorruptMetadata: the folder cannot be used; the message says why.
        MissingExtra: pyzmq is not installed.
    """
    text: object = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise errors.ConfigError(f"{url!r} is neither a path nor a URL")
    if (curve_dir or principal) and not text.startswith("zmq+"):
        raise errors.ConfigError(f"{url!r} is in this process, where nobody asks for keys")
    if brokers is not None and (type(brokers) is not int or not 1 <= brokers <= BROKERS_MAX):
        raise errors.ConfigError(f"brokers={brokers!r} is no number from 1 to {BROKERS_MAX}")
    if text in ("memory:", ":memory:"):
        return open_memory(brokers or 1)
    if "://" in text:
        scheme, _, rest = text.partition("://")
        if scheme == "file":
            return open_folder(rest, brokers)
        if scheme in ("zmq+tcp", "zmq+ipc"):
            if brokers is not None:
                raise errors.ConfigError(f"the brokers of {url!r} are not in this process")
            from pymq.nodes.remote import open_cluster  # only now: most need no network

            return open_cluster(text, curve_dir=curve_dir, principal=principal)
        raise errors.ConfigError(
            f"{scheme}:// is not known; use a folder, 'memory:' or zmq+tcp://HOST:PORT"
        )
    return open_folder(text, brokers)


# What opening a folder and sending a record do without is loaded when it is first asked for
# (PEP 562); tests/test_import.py says which modules that leaves.
_LATER = {
    "Broker": "pymq.nodes.assembly",
    "Consumer": "pymq.client.consumer.consumer",
    "ConsumerStatus": "pymq.client.consumer.status",
    "GroupDescription": "pymq.client.admin.groups",
    "LeaseDescription": "pymq.client.admin.groups",
    "LeasesDescription": "pymq.client.admin.groups",
    "MemberDescription": "pymq.client.admin.groups",
    "RecordBatch": "pymq.core.batch.view",
    "ZkServer": "pymq.nodes.assembly",
    "aio": "pymq.aio",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'pymq' has no attribute {name!r}")
    module = import_module(_LATER[name])
    found = module if name == "aio" else getattr(module, name)
    globals()[name] = found  # Who asks again does not come here.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
