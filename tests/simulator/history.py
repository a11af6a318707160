"""The history of a run (sent, answered, delivered, settled), and the check of it at the end.

Threads write a history while the cluster runs, with times of one monotonic clock in seconds; the
check runs at the end, and compares the history with the content of the log. A history knows nothing
about how the cluster works, so it is used for processes as well as for simulated brokers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from attrs import Factory

from pymq.core.batch.record import Record
from pymq.core.values import define, value

__all__ = [
    "Delivered",
    "Outage",
    "Part",
    "RecordedHistory",
    "RecordedSend",
    "outages",
    "percentile",
]

Part = tuple[str, str]  # topic and partition
SHOWN = 5  # number of examples of each kind in a message


@define
class RecordedSend:
    """One record and its outcome; *producer* and number make its payload unique."""

    producer: str
    part: Part
    number: int  # number of the record among the producer's records in this partition
    sent_at: float
    answered_at: float | None = None
    offset: int = -1
    # the error of a failed delivery; the record may nevertheless be in the log
    error: str | None = None

    @property
    def payload(self) -> bytes:
        """The record's value."""
        return f"{self.producer}/{self.part[1]}/{self.number}".encode()


@value
class Delivered:
    """A record that a poll returned to a consumer; the poll began at *asked_at*."""

    consumer: str
    part: Part
    offset: int
    payload: bytes
    asked_at: float
    at: float


@define
class RecordedHistory:
    """Lists to which threads append; Python needs no lock for that."""

    sent: list[RecordedSend] = Factory(list)
    delivered: list[Delivered] = Factory(list)  # deliveries to members of the group
    settled: list[tuple[Part, int, float]] = Factory(
        list
    )  # a commit has confirmed the acknowledgement
    # records seen by a reader that followed the log
    read: dict[Part, list[tuple[int, bytes]]] = Factory(dict)
    errors: list[str] = Factory(list)  # errors of consumers, and of `send` itself

    def problems(
        self,
        log: Mapping[Part, Sequence[Record]],
        may_lose: Iterable[str] = (),
    ) -> list[str]:
        """Return all problems, compared with *log*: all records of each partition, read from the
        beginning.

        In the topics *may_lose*, acknowledged records may be missing, as ack modes ``leader`` and
        ``none`` allow; all other rules apply to these topics, too.
        """
        allowed = frozenset(may_lose)
        found: list[str] = []
        found += _told("lost", self.lost(log, allowed))
        for part, records in sorted(log.items()):
            payloads = [bytes(record.value) for record in records]
            twice = [p for p, count in Counter(payloads).items() if count > 1]
            found += _told(f"{part}: twice in the log", twice)
            found += _told(f"{part}: out of order", _out_of_order(payloads))
            found += _told(f"{part}: offsets do not rise", _not_rising(records))
            if part[0] not in allowed:
                found += self._missed(part, records)
        found += _told("delivered after it was settled", self.again())
        return found

    def lost(
        self, log: Mapping[Part, Sequence[Record]], leaving_out: Iterable[str] = ()
    ) -> list[str]:
        """Records that were acknowledged and are not at the offset in the acknowledgement."""
        at = {p: {r.offset: bytes(r.value) for r in records} for p, records in log.items()}
        without = frozenset(leaving_out)
        return [
            f"{sent.payload.decode()} of {sent.part}, answered as {sent.offset}"
            for sent in self.sent
            if sent.answered_at is not None
            and sent.part[0] not in without
            and at.get(sent.part, {}).get(sent.offset) != sent.payload
        ]

    def _missed(self, part: Part, records: Sequence[Record]) -> list[str]:
        """Records that the group did not get, and those that the reader saw differently."""
        whole = [(record.offset, bytes(record.value)) for record in records]
        given = {(d.offset, d.payload) for d in self.delivered if d.part == part}
        found = _told(f"{part}: never delivered to the group", [w for w in whole if w not in given])
        found += _told(f"{part}: delivered, and not in the log", sorted(given.difference(whole)))
        read = self.read.get(part, [])
        if read != whole[: len(read)]:
            wrong = [pair for pair in zip(read, whole, strict=False) if pair[0] != pair[1]]
            found += _told(f"{part}: the reader saw otherwise", wrong or [f"{len(read)} records"])
        return found

    def again(self) -> list[str]:
        """Records that were delivered in a poll that began after the commit of their
        acknowledgement had returned.
        """
        settled: dict[tuple[Part, int], float] = {}
        for part, offset, at in self.settled:
            settled[part, offset] = min(at, settled.get((part, offset), at))
        return [
            f"{d.part} {d.offset} to {d.consumer}, "
            f"{d.asked_at - settled[d.part, d.offset]:.3f} s later"
            for d in self.delivered
            if d.asked_at > settled.get((d.part, d.offset), d.asked_at)
        ]

    def redelivered(self) -> int:
        """How many deliveries were not the first one of their record."""
        return len(self.delivered) - len({(d.part, d.offset) for d in self.delivered})


@value
class Outage:
    """The longest time between two answers of a partition during a fault of the cluster."""

    part: Part
    cause: str
    seconds: float


def outages(
    sent: Iterable[RecordedSend], rounds: Sequence[tuple[str, float, float]], parts: Iterable[Part]
) -> list[Outage]:
    """For each partition, the longest pause in each of *rounds*, which have a cause, a beginning
    and an end.

    This requires that producers send all the time. A partition without any answer counts as
    unavailable for the whole round.
    """
    answers: dict[Part, list[float]] = defaultdict(list)
    for each in sent:
        if each.answered_at is not None:
            answers[each.part].append(each.answered_at)
    found = []
    for part in parts:
        times = sorted(answers[part])
        for cause, began, ended in rounds:
            inside = [began, *(t for t in times if began < t < ended), ended]
            found.append(Outage(part, cause, max(b - a for a, b in pairwise(inside))))
    return found


def percentile(numbers: Iterable[float], percent: float) -> float:
    """The smallest of *numbers* that is not exceeded by *percent* percent of them.

    0 if there are no numbers.
    """
    ordered = sorted(numbers)
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def _out_of_order(payloads: Sequence[bytes]) -> list[str]:
    """Records that come after a later one of the same producer."""
    last: dict[bytes, int] = {}
    found = []
    for payload in payloads:
        producer, _, number = payload.rpartition(b"/")
        if int(number) < last.get(producer, -1):
            found.append(payload.decode())
        last[producer] = int(number)
    return found


def _not_rising(records: Sequence[Record]) -> list[str]:
    return [f"{b.offset} after {a.offset}" for a, b in pairwise(records) if b.offset <= a.offset]


def _told(what: str, examples: Sequence[object]) -> list[str]:
    if not examples:
        return []
    shown = ", ".join(str(example) for example in examples[:SHOWN])
    more = ", ..." if len(examples) > SHOWN else ""
    return [f"{what} ({len(examples)}): {shown}{more}"]
