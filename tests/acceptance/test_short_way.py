"""A single record takes few function calls on its way through pymq.

Counts of calls do not depend on the machine. A change that adds calls makes each single record
slower (docs/decisions/0187); if the change is worth that, raise the bound here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import pymq

INSIDE = str(Path(pymq.__file__).parent)
ROUNDS = 150


def calls_of(job: Callable[[], object]) -> int:
    """Return the smallest number of pymq's functions that a call of *job* calls, if this thread
    does all of the work.

    Rounds in which the background thread did the work are ignored. Rounds in which a new
    millisecond begins take some more calls.
    """
    counts: list[int] = []
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(INSIDE)

    for _ in range(ROUNDS):
        job()  # the first rounds load modules and make classes
    for _ in range(ROUNDS):
        calls = 0
        sys.setprofile(note)
        try:
            job()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    half = sorted(counts)[ROUNDS // 2] // 2
    return min(count for count in counts if count > half)


@pytest.fixture(params=["memory:", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found: str = request.param
    return found if found == "memory:" else str(tmp_path / found)


def test_a_durable_record_takes_few_calls(url: str) -> None:
    with pymq.open(url) as mq:
        mq.create_topic("records", partitions=1)
        with mq.producer(linger_ms=0) as producer:
            assert 60 < calls_of(lambda: producer.send("records", b"x" * 100).result()) <= 120


def test_a_record_is_acknowledged_and_committed_in_few_calls(url: str) -> None:
    with pymq.open(url) as mq:
        mq.create_topic("records", partitions=1)
        with mq.producer() as producer:
            producer.send_many("records", [b"x" * 100] * (2 * ROUNDS)).wait()
        with mq.consumer("records", group="readers") as consumer:

            def take() -> None:
                for record in consumer.poll(1):
                    consumer.ack(record)
                consumer.commit()

            assert 200 < calls_of(take) <= 720
            assert not consumer.poll(timeout=0)
