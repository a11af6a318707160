"""Brokers that are about to stop: what the active zkserver does before they do."""

from __future__ import annotations

from pymq.core.marks import mark
from pymq.core.message import Answer, ControlledShutdown, Result
from pymq.core.metadata import BlockNode
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotRegistered, PymqError
from pymq.node import restarts, takeover
from pymq.node.commits import Commits, Later, Send
from pymq.node.image import Draft
from pymq.node.membership import Members
from pymq.node.notices import Notices
from pymq.node.rolls import Rolls
from pymq.node.sweep import Sweep
from pymq.replication.quorum import majority


class Departures:
    """Has others lead what a broker leads that is about to stop."""

    def __init__(
        self, commits: Commits, members: Members, notices: Notices, rolls: Rolls, send: Send
    ) -> None:
        self._commits = commits
        self._members = members
        self._notices = notices
        self._rolls = rolls
        self._send = send
        self._asked: dict[tuple[str, int], int] = {}  # the newest request of each that waits

    def end(self) -> None:
        """This zkserver is active no more, and nobody who waits is answered."""
        self._asked.clear()

    def step(self, source: str, m: ControlledShutdown, now: int) -> None:
        """A broker asks whether it may stop; it is told how much there is to wait for."""
        if not self._members.leave(m.broker, m.incarnation):
            unknown = NotRegistered(f"{m.broker} is not registered as incarnation {m.incarnation}")
            self._send(source, Answer(m.id, error=unknown))
            return
        # It asks ten times a second, and goes by the answer to what it has asked last.
        key = (m.broker, m.incarnation)
        is_asked, self._asked[key] = key in self._asked, m.id
        if is_asked:
            mark("departures.asked_again")
            return
        sweep = Sweep(m.broker)
        led: list[TopicPartition] = []

        def plan(draft: Draft) -> Result | Later:
            live = [name for name in self._members.live if name not in self._members.leaving]
            # Other leaders need not wait for it either.
            if not restarts.died(draft, m.broker, sweep, live):
                return Later.MORE
            led[:] = self._led(m.broker)
            return Later.ANSWER

        def sliced(now: int) -> None:
            self._notices.tell_all(sweep.commit(), now)

        def done(now: int) -> None:
            for name in led:
                if self._commits.image.partition(*name).open_block.acks is not AckMode.RAFT:
                    mark("departures.rolled")
                    self._rolls.start(name, now)
            self._send(source, Answer(self._asked.pop(key, m.id), len(led)))

        def failed(error: PymqError, now: int) -> None:
            self._asked.pop(key, None)

        self._commits.do(plan, done=done, failed=failed, sliced=sliced, is_urgent=True)

    def _led(self, broker: str) -> list[TopicPartition]:
        """The partitions that a broker leads, and that another one could."""
        image = self._commits.image
        if not image.hosting.leads[broker]:
            return []
        names = image.hosting.opened(broker)
        found = ((name, image.partition(*name).open_block) for name in names)
        return [name for name, b in found if b.leader == broker and self._has_other(b, broker)]

    def _has_other(self, block: BlockNode, broker: str) -> bool:
        members = self._members
        others = [
            name
            for name in takeover.survivors(self._commits.image, block)
            if name != broker and name in members and name not in members.leaving
        ]
        if block.acks is AckMode.RAFT:
            return len(block.replicas) > 1 and len(others) >= majority(len(block.replicas)) - 1 > 0
        return any(name in block.in_sync for name in others)
