"""The pymq client of an event loop, shared by all users of the same queue.

A folder can be open only once, and a program with a broker of taskiq, its result backend and a
broker of FastStream needs one client, not three. So the first user of a queue opens it, and the
last one closes it.
"""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from attrs import define, field

import pymq.aio
from pymq.aio import AsyncClient
from pymq.client.option_types import TopicOptions
from pymq.errors import Closed, UnknownTopic

REPLICAS = 3  # default for topics, if the cluster has as many brokers

Queue = str | os.PathLike[str] | AsyncClient
Address = tuple[str, str | None, str | None]  # URL, folder of keys, principal


@define
class SharedClient:
    """A client and the number of connections that use it."""

    opening: asyncio.Task[AsyncClient]
    users: int = 0


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Address, SharedClient]] = (
    WeakKeyDictionary()
)


@define(eq=False)
class Connection:
    """A queue, by its URL or as an open client.

    Connections with the same URL in the same event loop share a client, also for ``memory:``. A
    client that the application has opened is used as it is, and not closed.
    """

    queue: Queue
    curve_dir: str | os.PathLike[str] | None = None
    principal: str | None = None
    opened_by: str = "'await broker.startup()'"  # the call that opens it, for error messages
    _client: AsyncClient | None = field(default=None, init=False)
    _shared: SharedClient | None = field(default=None, init=False)

    @property
    def client(self) -> AsyncClient:
        """The client.

        Raises:
            Closed: the connection is not open.
        """
        if self._client is None:
            raise Closed(f"the connection is not open; {self.opened_by} opens it")
        return self._client

    def twin(self) -> Connection:
        """Return another connection to the same queue."""
        return Connection(self.queue, self.curve_dir, self.principal, self.opened_by)

    async def open(self) -> AsyncClient:
        """Open the client, or use the one that is open; a second call does nothing.

        Raises as :func:`pymq.open`.
        """
        if self._client is None:
            if isinstance(self.queue, AsyncClient):
                self._client = self.queue
            else:
                self._client = await self._share(self.queue)
        return self._client

    async def _share(self, url: str | os.PathLike[str]) -> AsyncClient:
        clients = _clients.setdefault(asyncio.get_running_loop(), {})
        address = self._address(url)
        shared = clients.get(address)
        if shared is None:
            opening = asyncio.ensure_future(self._open(url))
            shared = clients[address] = SharedClient(opening)
        shared.users += 1
        self._shared = shared
        try:
            return await asyncio.shield(shared.opening)
        except BaseException:
            await self.close()
            raise

    async def _open(self, url: str | os.PathLike[str]) -> AsyncClient:
        return await pymq.aio.open(url, curve_dir=self.curve_dir, principal=self.principal)

    def _address(self, url: str | os.PathLike[str]) -> Address:
        text = os.fspath(url)
        if text != "memory:" and "://" not in text:
            text = os.path.realpath(text)
        keys = None if self.curve_dir is None else os.path.realpath(self.curve_dir)
        return text, keys, self.principal

    async def close(self) -> None:
        """Release the client; the last connection to release it closes the client."""
        shared, self._shared, self._client = self._shared, None, None
        if shared is None:
            return
        shared.users -= 1
        if shared.users:
            return
        clients = _clients[asyncio.get_running_loop()]
        for address in [known for known, found in clients.items() if found is shared]:
            del clients[address]
        try:
            client = await shared.opening
        except Exception:  # The client did not open; the waiting callers have received the error.
            return
        await client.close()


async def ensure_topic(
    mq: AsyncClient,
    name: str,
    partitions: int,
    replicas: int | None,
    options: TopicOptions,
) -> None:
    """Create a topic in ack mode ``raft`` if it does not exist; an existing topic stays as it is.

    With *replicas* None, the topic gets as many replicas as there are live brokers, three at most.

    Raises:
        NotEnoughBrokers: *replicas* is greater than the number of brokers.
    """
    try:
        await mq.describe_topic(name)
    except UnknownTopic:
        if replicas is None:
            brokers = (await mq.cluster()).brokers
            replicas = max(1, min(REPLICAS, sum(broker.alive for broker in brokers)))
        await mq.create_topic(name, partitions, replicas, "raft", exist_ok=True, **options)
