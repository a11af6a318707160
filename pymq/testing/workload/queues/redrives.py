"""Redrives of dead letters, by processes that are killed at any moment and overtake each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pymq.client.client import Client
from pymq.core.batch.record import Record
from pymq.core.message import Message, Produce
from pymq.errors import PymqError, RecordTooLarge
from pymq.testing.faults.kinds import Step
from pymq.testing.simulation.process import Process
from pymq.testing.workload.consuming import number_of
from pymq.testing.workload.promises import TopicPromises
from pymq.testing.workload.queues.letters import LetterHistory, is_written_once, origin

if TYPE_CHECKING:
    from pymq.testing.workload.applications import Sent

PAUSE_S = 0.5  # between two tries to redrive once the faults have ended


class Redrives:
    """Carries out the redrives of a plan, and checks the counts that they return."""

    def __init__(
        self,
        letters: LetterHistory,
        sent: list[Sent],
        promises: TopicPromises,
        fail: Callable[[str, str], None],
    ) -> None:
        self._letters = letters
        self._sent = sent
        self._promises = promises
        self._fail = fail
        self._dry: set[str] = set()  # processes that make a dry run now
        raft = promises.raft_for_ever
        letters.strict = {topic for topic in raft if {origin(topic), topic} <= raft}

    def work(self, step: Step) -> Callable[[Client], None]:
        """The calls of one redrive of a plan."""
        _, _, _, topic, mode, limit, times, _ = step
        return partial(self._redrive, topic, mode, limit, times)

    def watch(self, process: Process) -> None:
        """Check that a process sends no record while it makes a dry run."""
        taps = process.on_send.setdefault(Produce, [])
        if self._sends not in taps:
            taps.append(self._sends)

    def _sends(self, process: Process, peer: str, source: str, message: Message) -> None:
        if process.name in self._dry:
            self._fail("redriven-as-chosen", f"{source} sends {message} in a dry run")

    def _redrive(self, topic: str, mode: str, limit: int | None, times: int, mq: Client) -> None:
        is_dry = mode == "dry"
        if not is_dry:
            self._letters.begun.add((topic, mode))
        where = _is_odd if mode == "odd" else None
        process = mq.name.partition(".")[0]
        if is_dry:
            self._dry.add(process)
        try:
            for _ in range(times):
                try:
                    found = mq.redrive(topic, where=where, limit=limit, dry_run=is_dry)
                except PymqError:
                    continue
                self._said(topic, found.count, is_dry=is_dry)
        finally:
            self._dry.discard(process)

    def _said(self, topic: str, count: int, *, is_dry: bool) -> None:
        """Compare the number of letters that a redrive reports with the existing letters."""
        letters = [sent for sent in self._sent if sent.topic == topic and sent.home]
        if not is_dry:
            self._letters.counts[topic] += count
            count = self._letters.counts[topic]
        is_sure = all(map(is_written_once, letters)) and topic in self._letters.strict
        if count > len(letters) and is_sure:
            what = "a dry run" if is_dry else "redrives"
            self._fail("redriven-once", f"{what} of {topic}: {count} of {len(letters)} letters")

    def redrive_all(self, topics: list[str], mq: Client) -> None:
        """Send all letters back, however often that fails at first."""
        for topic in topics:
            self._letters.begun.add((topic, "all"))
            while True:
                try:
                    self._said(topic, mq.redrive(topic).count, is_dry=False)
                    break
                except RecordTooLarge:
                    break  # The former topic has a smaller limit, and the rest stays.
                except PymqError:
                    mq.driver.pause(PAUSE_S)

    def check(self) -> None:
        """Check that all acknowledged letters have come back, after all records were read."""
        for sent in self._sent:
            home = origin(sent.topic)
            if not sent.home or not sent.is_acked or not self._promises.is_safe(sent):
                continue
            is_kept = sent.topic in self._letters.strict and self._promises.keeps_all(home)
            is_gone = sent.number not in self._letters.places
            if is_kept and is_gone and home not in self._promises.limited:
                self._fail("letters-go-back", f"letter {sent.number} of {sent.topic} did not")


def _is_odd(letter: Record) -> bool:
    return (number_of(letter.value) or 0) % 2 == 1
