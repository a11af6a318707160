"""The answering side of request and reply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.client.backoff import error_text
from pymq.client.base import Handle
from pymq.client.option_types import GroupOptions
from pymq.client.options import check_callback, check_range
from pymq.client.rpc.mailbox import (
    REPLIES,
    REPLY_TO,
    REQUEST_ID,
    Request,
    create_service,
    header,
    request_of,
)
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.core.batch.view import ERROR_HEADER
from pymq.errors import Closed, PymqError

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.consumer.consumer import Consumer

WORKERS_MAX = 1_000

Handler = Callable[[Request], bytes | None]
Reply = tuple[str, bytes, Headers]  # partition, value and headers


class Responder(Handle):
    """Answers requests of a service in its own threads; made by :meth:`pymq.Client.reply`."""

    def __init__(
        self, client: Client, service: str, handler: Handler, workers: int, options: GroupOptions
    ) -> None:
        check_callback("handler", handler)
        check_range("workers", workers, 1, WORKERS_MAX)
        self.service = service
        self._client = client
        self._handler = handler
        create_service(client, service)
        self._producer = client.producer(linger_ms=0)
        self._workers = [
            _Worker(self, client.consumer(service, service, **options)) for _ in range(workers)
        ]

    def start(self) -> None:
        """Start the threads."""
        for worker in self._workers:
            worker.thread.start()

    def serve(self, timeout: float | None = 0) -> int:
        """Answer the requests that arrive within *timeout* seconds; for simulations.

        Returns the number of answered requests. A simulation has no threads, so it calls this
        method instead of ``start``.
        """
        consumer = self._workers[0].consumer
        records = consumer.poll(timeout=timeout)
        for record in records:
            self.answer(consumer, record)
        return len(records)

    def answer(self, consumer: Consumer, record: Record) -> None:
        """Answer one request, and acknowledge it."""
        request = request_of(record)
        deadline = request.deadline_ms
        if deadline is None or self._client._wall_ms() < deadline:
            value, error = self._call(request)
            found = reply_to(record, value, error)
            if found is not None:
                partition, value, headers = found
                try:
                    self._producer.send(REPLIES, value, partition=partition, headers=headers)
                except PymqError as problem:
                    log_failure("the reply of %s was not sent", self.service, problem)
        consumer.ack(record)

    def _call(self, request: Request) -> tuple[bytes, BaseException | None]:
        try:
            return as_bytes(self._handler(request)), None
        except Exception as error:
            log_failure("the handler of %s has failed", self.service, error)
            return b"", error

    def close(self) -> None:
        """Finish the current requests and stop; other responders get the remaining requests."""
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join()
        self._producer.close()
        self._client._responders.pop(self, None)


class _Worker:
    """A thread with its own consumer."""

    def __init__(self, responder: Responder, consumer: Consumer) -> None:
        self.consumer = consumer
        self._responder = responder
        self._lock = threading.Lock()
        self._is_busy = False
        self._is_stopping = False
        name = f"pymq-reply-{responder.service}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        while True:
            try:
                for record in self.consumer:
                    if not self._begin():
                        return
                    try:
                        self._responder.answer(self.consumer, record)
                    finally:
                        is_last = self._end()
                    if is_last:
                        return
                return
            except Closed:
                return
            except PymqError as error:
                log_failure("a responder of %s cannot read", self._responder.service, error)
                if not error.retriable and not skip(self.consumer, error):
                    return

    def _begin(self) -> bool:
        """Begin a request.

        Returns False if the worker is stopping and must leave the request to other responders.
        """
        with self._lock:
            self._is_busy = not self._is_stopping
            return self._is_busy

    def _end(self) -> bool:
        """End a request; returns whether the worker is stopping."""
        with self._lock:
            self._is_busy = False
            return self._is_stopping

    def stop(self) -> None:
        """Stop accepting requests."""
        with self._lock:
            self._is_stopping = True
            is_busy = self._is_busy
        if not is_busy:
            self.consumer.close()

    def join(self) -> None:
        """Wait until the current request is finished."""
        if self.thread.is_alive() and self.thread is not threading.current_thread():
            self.thread.join()
        self.consumer.close()


def skip(consumer: Consumer, error: PymqError) -> bool:
    """Skip records that cannot be read; returns False if *error* is of another kind."""
    try:
        consumer.skip(error)
    except PymqError:
        return False
    return True


def as_bytes(value: object) -> bytes:
    """Return the value of a reply.

    Raises:
        TypeError: a handler has returned something else.
    """
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a handler returns bytes or None, not {type(value).__name__}")


def reply_to(record: Record, value: bytes, error: BaseException | None) -> Reply | None:
    """Return the reply to a record; None if the record is not a request."""
    partition, id = header(record.headers, REPLY_TO), header(record.headers, REQUEST_ID)
    if partition is None or id is None:
        return None
    headers: Headers = ((REQUEST_ID, id),)
    if error is not None:
        headers += ((ERROR_HEADER, error_text(error).encode()),)
    return partition.decode(errors="replace"), value, headers


def log_failure(text: str, service: str, error: BaseException) -> None:
    """Log an error after which the responder continues."""
    import logging  # on demand: it takes long to load

    logging.getLogger("pymq").error(text, service, exc_info=error)
