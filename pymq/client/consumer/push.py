"""Push delivery: a thread calls the application with each record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.core.batch.record import Record
from pymq.errors import Closed

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer


class PushDelivery:
    """Calls *on_record* for each record of a consumer, in a thread, *credit* records at a time."""

    def __init__(
        self, consumer: Consumer, on_record: Callable[[Record], object], credit: int
    ) -> None:
        self._consumer = consumer
        self._on_record = on_record
        self._credit = credit
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._push, name="pymq-push", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, unless the caller is this thread, and raise its error."""
        if self._thread is threading.current_thread():
            return
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _push(self) -> None:
        consumer, unread = self._consumer, self._consumer._unread
        try:
            while not consumer._has_closed():
                if not unread.records:
                    consumer._fill(self._credit, None)
                while (
                    unread.records
                    and not consumer._has_closed()
                    and consumer._polling.is_ours(None)
                ):
                    self._hand_over(unread.show())
        except Closed:
            return
        except BaseException as error:  # an error of pymq or of the application; close() raises it
            self._problem = error

    def _hand_over(self, record: Record) -> None:
        """Call the application with a record; if the call fails, return the record to its group."""
        consumer = self._consumer
        if consumer._worker is None:
            self._on_record(record)
            return
        try:
            self._on_record(record)
            if consumer._auto_ack:
                consumer.ack(record)
        except Closed:
            raise
        except Exception as error:
            give_back(consumer, record, error)


def give_back(consumer: Consumer, record: Record, error: Exception) -> None:
    """Log that the application has failed on a record, and return the record to the group."""
    import logging  # on demand: it takes long to load

    logging.getLogger("pymq").error("on_record failed; the record is given back", exc_info=error)
    consumer.nack(record, error=error)
