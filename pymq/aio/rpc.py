"""Request and reply for asyncio; :mod:`pymq.client.rpc.mailbox` has the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pymq.aio.bridge import AsyncHandle, called, resolve, wait_for
from pymq.aio.consumer import AsyncConsumer
from pymq.aio.producer import AsyncProducer
from pymq.client.option_types import GroupOptions
from pymq.client.options import check_callback, check_range, check_seconds
from pymq.client.rpc.mailbox import (
    REPLIES,
    Pending,
    ReplyMailbox,
    Request,
    choose_partition,
    create_service,
    request_of,
)
from pymq.client.rpc.requester import CHECK_S, PROMPT_S
from pymq.client.rpc.responder import WORKERS_MAX, as_bytes, log_failure, reply_to
from pymq.core.batch.record import Record
from pymq.errors import Closed, OffsetOutOfRange, PymqError, RequestTimeout

if TYPE_CHECKING:
    from pymq.aio.client import AsyncClient

Handler = Callable[[Request], Any]


class AsyncRequester:
    """Sends the requests of one client; a task reads their replies."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._bridge = client._bridge
        self._check = client._client._requests()
        self._opening = asyncio.Lock()
        self._mailbox: ReplyMailbox | None = None
        self._producer: AsyncProducer | None = None
        self._task: asyncio.Task[None] | None = None

    async def ask(
        self,
        service: str,
        value: bytes,
        timeout: float,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes]] | None,
    ) -> Record:
        """Send a request and wait for its reply; see :meth:`pymq.Client.request`."""
        check_seconds("timeout", timeout)
        loop = self._bridge.loop
        until = loop.time() + timeout
        await self._prove(service)
        mailbox = self._mailbox or await self._open(service)
        future: asyncio.Future[None] = loop.create_future()
        pending = Pending(lambda _: resolve(future))
        id = mailbox.add(pending)
        assert self._producer is not None
        try:
            sent = mailbox.headers(id, headers)
            self._producer.send(service, value, key=key, headers=sent, expires_s=timeout)
            since, pause = self._check.now(), PROMPT_S
            while pending.reply is None:
                left = until - loop.time()
                if left <= 0:
                    raise RequestTimeout(
                        f"no reply of {service!r} in time; the service may still act"
                    )
                # Shield the future, so that the next iteration can wait for it again.
                if not await wait_for(asyncio.shield(future), min(left, pause)):
                    await self._prove(service, since)
                pause = CHECK_S
            return pending.result()
        finally:
            mailbox.drop(id)

    async def _prove(self, service: str, since: float = 0.0) -> None:
        if not self._check.is_checked(service, since):
            await self._bridge.call(self._check.check, service, since)

    async def _open(self, service: str) -> ReplyMailbox:
        async with self._opening:
            if self._mailbox is None:
                found = await self._bridge.call(choose_partition, self._client._client, service)
                token, partition, end = found
                reader = await self._client.consumer(
                    REPLIES, mode="psb", partition=partition, offset=end
                )
                self._producer = await self._client.producer(linger_ms=0)
                self._mailbox = ReplyMailbox(token, partition)
                self._task = self._bridge.loop.create_task(self._read(reader, self._mailbox))
            return self._mailbox

    async def _read(self, reader: AsyncConsumer, mailbox: ReplyMailbox) -> None:
        while True:
            try:
                mailbox.deliver(await reader.poll(1_000, None))
            except OffsetOutOfRange:
                # Retention has removed earlier replies before this client read them.
                await reader.seek(mailbox.partition, "end")
            except Closed:
                return


class AsyncResponder(AsyncHandle):
    """Answers requests of a service in tasks; opened by :meth:`AsyncClient.reply`."""

    def __init__(self, client: AsyncClient, service: str, handler: Handler, workers: int) -> None:
        check_callback("handler", handler)
        check_range("workers", workers, 1, WORKERS_MAX)
        self.service = service
        self._client = client
        self._handler = handler
        self._room = asyncio.Semaphore(workers)
        self._answers: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._consumer: AsyncConsumer | None = None
        self._producer: AsyncProducer | None = None

    async def open(self, options: GroupOptions) -> AsyncResponder:
        """Create the service's topic if it is missing, and join its group."""
        client = self._client
        await client._bridge.call(create_service, client._client, self.service)
        self._producer = await client.producer(linger_ms=0)
        self._consumer = await client.consumer(self.service, self.service, **options)
        self._task = client._bridge.loop.create_task(self._serve(self._consumer))
        return self

    async def _serve(self, consumer: AsyncConsumer) -> None:
        while True:
            try:
                async for record in consumer:
                    await self._room.acquire()
                    task = self._client._bridge.loop.create_task(self._answer(consumer, record))
                    self._answers.add(task)
                    task.add_done_callback(self._done)
                return
            except Closed:
                return
            except PymqError as error:
                log_failure("a responder of %s cannot read", self.service, error)
                try:
                    await consumer.skip(error)
                except PymqError:
                    if not error.retriable:
                        return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        self._room.release()

    async def _answer(self, consumer: AsyncConsumer, record: Record) -> None:
        request = request_of(record)
        deadline = request.deadline_ms
        if deadline is None or self._client._client._wall_ms() < deadline:
            value, problem = b"", None
            try:
                value = as_bytes(await called(self._handler, request))
            except Exception as error:
                problem = error
                log_failure("the handler of %s has failed", self.service, error)
            found = reply_to(record, value, problem)
            if found is not None and self._producer is not None:
                partition, value, headers = found
                try:
                    self._producer.send(REPLIES, value, partition=partition, headers=headers)
                except PymqError as error:
                    log_failure("the reply of %s was not sent", self.service, error)
        try:
            consumer.ack(record)
        except Closed:
            pass  # another responder gets the request

    async def close(self) -> None:
        """Finish the current requests and stop; other responders get the rest."""
        self._client._replying.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task, *self._answers])
        if self._consumer is not None:
            await self._consumer.close()
        if self._producer is not None:
            await self._producer.close()
