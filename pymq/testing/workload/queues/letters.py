"""Dead letters: each is sent back once, whichever process redrives it, and wherever that dies.

The letters of a plan are records that its applications send to a dead-letter topic, with the
headers that name their former topic and partition. Processes redrive them, whole or in part, are
killed at any moment, and overtake each other. Readers and groups then get the letters in their
former topic.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pymq.client.redrive.redrive import REDRIVEN_HEADER
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.core.types import AckMode
from pymq.core.values import Factory, define

if TYPE_CHECKING:
    from pymq.testing.workload.applications import Sent

SUFFIX = ".dlq"  # of the names of dead-letter topics


def origin(topic: str) -> str:
    """The topic from which the letters of a dead-letter topic come."""
    return topic.removesuffix(SUFFIX)


def letter_headers(sent: Sent) -> Headers:
    """The headers that name the former place of a letter."""
    if not sent.home:
        return ()
    return (("pymq.topic", origin(sent.topic).encode()), ("pymq.partition", sent.home.encode()))


def is_redriven(record: Record, sent: Sent) -> bool:
    """Whether *record* is a letter that was sent back to its former place."""
    was = record.topic + SUFFIX, record.partition
    return bool(sent.home) and (sent.topic, sent.home) == was


def is_written_once(sent: Sent) -> bool:
    """Whether the record's producer assigns sequences, so that a retry does not write it again."""
    return sent.is_idempotent and sent.acks is not AckMode.NONE


@define
class LetterHistory:
    """The dead letters of a run, and their redrives."""

    begun: set[tuple[str, str]] = Factory(set)  # dead-letter topics and modes of redrives
    counts: Counter[str] = Factory(Counter)  # letters that redrives say they have sent
    # Dead-letter topics whose settings are strong enough to keep all letters and the journal.
    strict: set[str] = Factory(set)
    # Where each letter came back, by its number.
    places: dict[int, tuple[str, str, int]] = Factory(dict)

    def came_back(self, record: Record, sent: Sent) -> tuple[str, str] | None:
        """Note a letter in its former topic; returns the rule that this breaks, and how."""
        place = record.topic, record.partition, record.offset
        before = self.places.setdefault(sent.number, place)
        if before != place and is_written_once(sent) and sent.topic in self.strict:
            return "redriven-once", f"letter {sent.number} came back in {before}, and in {place}"
        modes = {mode for topic, mode in self.begun if topic == sent.topic}
        if "all" not in modes and not ("odd" in modes and sent.number % 2):
            return "redriven-as-chosen", f"letter {sent.number} came back to {place} unchosen"
        if dict(record.headers).get(REDRIVEN_HEADER) != b"1":
            return "redriven-once", f"letter {sent.number} in {place} has {record.headers}"
        return None
