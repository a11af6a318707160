"""The broker: a task is a record, and the workers are a group."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from datetime import datetime
from functools import partial

from attrs import define
from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from pymq.aio import AsyncClient, AsyncConsumer, AsyncProducer
from pymq.client.backoff import Backoff
from pymq.client.option_types import TopicOptions
from pymq.contrib.connection import Connection, Queue, ensure_topic
from pymq.core.batch.record import Record, RecordMetadata
from pymq.errors import Closed, CommitFailed, CorruptBatch, CorruptBlock

log = logging.getLogger(__name__)

TASK_ID = "taskiq.task_id"  # the header with the id of a task
TASK_NAME = "taskiq.task_name"  # the header with the name of its function
WEEK_MS = 7 * 86_400_000
# How often an idle worker's event loop wakes up. The signal handler of "taskiq worker" sets an
# event, but does not wake up a waiting loop; pymq's sockets do not wake it either, because they
# belong to another thread.
WAKE_S = 0.5
RETRY = Backoff(first_s=1, factor=2, max_s=60, jitter=0.1)


@define
class HeldTask:
    """A task that this worker has received, and that is still open."""

    consumer: AsyncConsumer
    record: Record
    is_settled: bool = False  # acknowledged, returned, or a dead letter


class PymqBroker(AsyncBroker):
    """A taskiq broker on pymq.

    When ``kiq`` returns, the task is durable: synced to the folder, or by a majority of the
    replicas on brokers. A worker acknowledges each task at the time that taskiq's ``--ack-type``,
    or the label ``ack_type``, sets. A task whose worker dies is delivered to another worker, after
    *session_timeout_s* at the latest; so is a task that runs for longer than *ack_wait_s*. After
    *max_deliver* deliveries a task goes to the dead-letter topic, *topic* with ``.dlq`` added.

    Labels of a task:

    ============  ==================================================================
    ``delay``     seconds until the task may run; the task is in the log, and no process waits
    ``expires``   seconds, after the delay, until the task is too old for workers
    ``priority``  from 0, the default, to 9; workers get the most urgent waiting task first
    ============  ==================================================================

    Args:
        url: a folder, ``memory:``, or the URL of a cluster, as for :func:`pymq.open`. Instead of a
            URL, a client of :func:`pymq.aio.open`, which stays open. Only one process can open a
            folder: start the worker in the same process, by ``taskiq.api.run_receiver_task``.
        topic: the topic of the tasks. If it does not exist, :meth:`startup` creates it, with
            *partitions*, *replicas* (by default as many as there are brokers, three at most) and
            *retention_ms*: how long tasks stay in the log, done or not.
        group: the group of the workers. With two groups, each group gets every task.
        retry: how long a failed task waits, if :class:`PymqRetryMiddleware` returns it.
        prefetch: how many tasks a worker leases at a time, beyond those that it has started.
        curve_dir, principal: as for :func:`pymq.open`.
    """

    def __init__(
        self,
        url: Queue,
        *,
        topic: str = "taskiq",
        group: str = "workers",
        partitions: int = 4,
        replicas: int | None = None,
        retention_ms: int = WEEK_MS,
        ack_wait_s: float = 600.0,
        session_timeout_s: float = 10.0,
        max_deliver: int = 5,
        retry: Backoff | None = RETRY,
        prefetch: int = 1,
        curve_dir: str | os.PathLike[str] | None = None,
        principal: str | None = None,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self.max_deliver = max_deliver
        self.connection = Connection(url, curve_dir, principal)
        self._partitions = partitions
        self._replicas = replicas
        self._retention_ms = retention_ms
        self._ack_wait_s = ack_wait_s
        self._session_timeout_s = session_timeout_s
        self._retry = retry
        self._prefetch = prefetch
        self._producer: AsyncProducer | None = None
        # All consumers of this worker, and the consumers that no receiver uses.
        self._consumers: list[AsyncConsumer] = []
        self._idle: list[AsyncConsumer] = []
        self._leases: dict[str, HeldTask] = {}  # by the id of the task

    @property
    def client(self) -> AsyncClient:
        """The client of pymq, between :meth:`startup` and :meth:`shutdown`."""
        return self.connection.client

    async def startup(self) -> None:
        """Connect, and create the topic if it does not exist. Raises as :func:`pymq.open`."""
        mq = await self.connection.open()
        options: TopicOptions = {"retention_ms": self._retention_ms}
        await ensure_topic(mq, self.topic, self._partitions, self._replicas, options)
        if self._producer is None:
            self._producer = await mq.producer()
        await super().startup()

    async def shutdown(self) -> None:
        """Leave the group and disconnect; tasks that are not acknowledged go to other workers."""
        await super().shutdown()
        consumers, self._consumers, self._idle = self._consumers, [], []
        producer, self._producer = self._producer, None
        self._leases.clear()
        try:
            for consumer in consumers:
                await _close(consumer)
            if producer is not None:
                await producer.close()
        finally:
            await self.connection.close()

    # --- sending --------------------------------------------------------------------------------

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and wait until it is durable.

        Raises:
            Closed: the broker was not started.
            ValueError: a label that should be a number is none.
            ConfigError: a label is negative or too large, or the priority is above 9.
            PymqError: the task could not be sent; see :meth:`pymq.Producer.send`.
        """
        await self.send(message)

    async def send(
        self, message: BrokerMessage, deliver_at: datetime | None = None
    ) -> RecordMetadata:
        """Send a task as :meth:`kick` does, and return its place in the log.

        *deliver_at* is the time when workers may get the task; it overrides the label ``delay``.
        """
        if self._producer is None:
            raise Closed("the broker is not open; 'await broker.startup()' opens it")
        delay_s = None if deliver_at is not None else _seconds(message, "delay")
        headers = [
            (TASK_ID, message.task_id.encode()),
            (TASK_NAME, message.task_name.encode()),
        ]
        return await self._producer.send(
            self.topic,
            message.message,
            headers=headers,
            delay_s=delay_s,
            deliver_at=deliver_at,
            expires_s=_seconds(message, "expires"),
            priority=int(message.labels.get("priority", 0)),
        )

    # --- receiving ------------------------------------------------------------------------------

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks, each leased to this worker until it is acknowledged."""
        consumer = self._idle.pop() if self._idle else await self._consume()
        try:
            while True:
                for record in await _poll(consumer):
                    lease = HeldTask(consumer, record)
                    self._leases[_task_id(record)] = lease
                    yield AckableMessage(data=record.value, ack=partial(self._ack, lease))
        finally:
            # The consumer stays open: the tasks handed out are acknowledged later.
            if consumer in self._consumers:
                self._idle.append(consumer)

    async def _consume(self) -> AsyncConsumer:
        consumer = await self.client.consumer(
            self.topic,
            group=self.group,
            ack_wait_s=self._ack_wait_s,
            session_timeout_s=self._session_timeout_s,
            max_deliver=self.max_deliver,
            retry=self._retry,
            prefetch=self._prefetch,
            # A worker that runs as many tasks as it may does not poll.
            max_poll_interval_s=max(300.0, 2 * self._ack_wait_s),
        )
        self._consumers.append(consumer)
        return consumer

    def _ack(self, lease: HeldTask) -> None:
        if lease.is_settled:
            return
        self._settle(lease)
        try:
            lease.consumer.ack(lease.record)
        except Closed:
            log.warning("task %s ended after shutdown() and runs again", _task_id(lease.record))

    def _settle(self, lease: HeldTask) -> None:
        lease.is_settled = True
        task_id = _task_id(lease.record)
        if self._leases.get(task_id) is lease:  # otherwise a later task has the same id
            del self._leases[task_id]

    # --- retries --------------------------------------------------------------------------------

    def deliveries(self, task_id: str) -> int | None:
        """Return how often a task was delivered, if this worker has it unacknowledged."""
        lease = self._leases.get(task_id)
        return None if lease is None else lease.record.delivery_count

    def give_back(self, task_id: str, error: BaseException) -> None:
        """Return a task of this worker to the group, which delivers it again after a while."""
        lease = self._leases[task_id]
        self._settle(lease)
        lease.consumer.nack(lease.record, error=error)

    async def bury(self, task_id: str, error: BaseException) -> None:
        """Put a task of this worker into the dead-letter topic, and acknowledge it."""
        lease = self._leases[task_id]
        self._settle(lease)
        await lease.consumer.reject(lease.record, error)


def _seconds(message: BrokerMessage, label: str) -> float | None:
    """Read a label that is a number of seconds; taskiq sends labels as text."""
    found = message.labels.get(label)
    return None if found is None else float(found)


def _task_id(record: Record) -> str:
    """Return the task's id; the place of the record, if another program has sent the record."""
    for name, value in record.headers:
        if name == TASK_ID:
            return value.decode(errors="replace")
    return f"{record.partition}/{record.offset}"


async def _poll(consumer: AsyncConsumer) -> list[Record]:
    """Wait a while for the next task. A task that cannot be read is skipped."""
    try:
        return await consumer.poll(max_records=1, timeout=WAKE_S)
    except (CorruptBatch, CorruptBlock) as error:
        log.error("tasks are lost, see the dead-letter topic: %s", error)
        await consumer.skip(error)
        return []


async def _close(consumer: AsyncConsumer) -> None:
    try:
        await consumer.close()
    except CommitFailed as error:
        log.warning("tasks took longer than ack_wait_s, and run again: %s", error)
