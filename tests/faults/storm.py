"""Faults of a cluster of processes, round by round, and their results."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pymq
from pymq.core.batch.header import MAGIC, parse_header
from pymq.store.verification.verify import verify
from tests.faults.load import Load, whole_log
from tests.nodes.processes import ROOT
from tests.simulator.history import Outage, Part, outages, percentile
from tests.simulator.namespaces import HOST, Namespaces
from tests.simulator.processes import NodeFailed, NodeProcess, ProcessCluster

SAFE, QUICK = "safe", "quick"  # topics with ack mode raft and leader
TOPICS: dict[str, Sequence[str]] = {SAFE: ("0", "1", "2"), QUICK: ("0", "1")}
SCRIPTS = ROOT / "examples"
WHOLE_S = 180.0  # time for repairs, and for reading the records of a hundred rounds
AFTER_S = 1.0  # load after each round, so that the next one starts without faults
DISK = 64 << 20  # bytes, of the broker whose disk is filled up
FULL = "broker-2"


class Storm:
    """A cluster under load, faults by name, and a report at the end."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        zookeepers: int = 1,
        is_wired: bool = False,
        is_small: bool = False,
    ) -> None:
        self._dice = random.Random(seed)
        self._stack = ExitStack()
        self._folder = folder
        self._rounds: list[tuple[str, float, float]] = []
        self._wires = self._stack.enter_context(Namespaces()) if is_wired else None
        made = ProcessCluster(
            folder,
            SCRIPTS,
            zookeepers=zookeepers,
            namespaces=self._wires,
            disk_bytes={FULL: DISK} if is_small else {},
        )
        try:
            self.cluster = self._stack.enter_context(made)
            with pymq.open(self.cluster.url) as mq:
                mq.create_topic(SAFE, len(TOPICS[SAFE]), 3, "raft", min_in_sync=2)
                mq.create_topic(QUICK, len(TOPICS[QUICK]), 3, "leader")
            self.load = self._stack.enter_context(Load(self.cluster.url, TOPICS))
            self.go_on(2.0)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self, cause: str, befall: Callable[[], str]) -> None:
        """Run a fault; at its end everything is healed, and the load continues for some time."""
        began = time.monotonic()
        befall()
        self.cluster.calm()
        self.go_on(AFTER_S)
        self._rounds.append((cause, began, time.monotonic()))

    def go_on(self, seconds: float) -> None:
        """Let the load run for a while."""
        time.sleep(seconds)  # the duration of the fault

    def pause_s(self, low: float, high: float) -> float:
        """Return a random duration."""
        return self._dice.uniform(low, high)

    def any_node(self) -> NodeProcess:
        """Return a random broker or zkserver."""
        return self.cluster.nodes[self._dice.choice(sorted(self.cluster.nodes))]

    def any_broker(self) -> NodeProcess:
        """Return a random broker."""
        return self.cluster.nodes[self._dice.choice(self.cluster.brokers)]

    # --- faults ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill a random node (kill -9), and restart it after a random time."""
        self.any_node().kill()
        self.go_on(self.pause_s(0.1, 3.0))

    def stop_in_the_middle(self) -> None:
        """Pause a random node (SIGSTOP) for shorter or longer than a session, then continue it
        (SIGCONT).
        """
        node = self.any_node()
        node.pause()
        self.go_on(self.pause_s(0.3, 5.0))
        node.resume()

    def cut(self) -> None:
        """Cut a broker off from another broker or from all others.

        Sometimes only the broker's messages to one other broker are lost.
        """
        assert self._wires is not None
        victim, other = self._dice.sample(self.cluster.brokers, 2)
        match self._dice.randrange(3):
            case 0:
                self._wires.cut(victim, other)
            case 1:
                self._wires.cut(victim, other, one_way=True)
            case _:
                for node in (HOST, *self.cluster.nodes):
                    if node != victim:
                        self._wires.cut(victim, node)
        self.go_on(self.pause_s(1.0, 5.0))

    def fill_disk(self) -> None:
        """Fill the disk of one broker to the last byte for a while."""
        self.cluster.disks[FULL].fill()
        self.go_on(self.pause_s(2.0, 4.0))

    def without_zookeeper(self) -> None:
        """Stop all of ZooKeeper for longer than a session; records are still served."""
        assert self.cluster.zookeeper is not None
        for server in self.cluster.zookeeper.servers:
            server.kill()
        self.go_on(1.0)  # the recovery of the broker itself is over
        sent, given = self._answers(), len(self.load.history.delivered)
        self.go_on(3.0)
        self.cluster.wait_for(lambda: self._goes_on(sent), "every partition takes records")
        self.cluster.wait_for(
            lambda: len(self.load.history.delivered) > given, "the group gets records"
        )

    def kill_zookeeper_leader(self) -> None:
        """Stop the leader of an ensemble; the others elect another."""
        assert self.cluster.zookeeper is not None
        self.cluster.zookeeper.leader().kill()
        self.go_on(self.pause_s(1.0, 3.0))

    def restart_everything(self) -> None:
        """Stop each node in order and start it again, one after the other."""
        for name in (*self.cluster.brokers, *self.cluster.zkservers):
            self._wait_in_sync()
            node = self.cluster.nodes[name]
            node.stop()
            node.start()
            node.wait_ready()

    def wipe(self) -> None:
        """Kill a broker (kill -9), and restart it with an empty folder."""
        self._wait_in_sync()
        node = self.any_broker()
        node.kill()
        self.cluster.wipe(node.name)
        self.go_on(self.pause_s(0.1, 3.0))
        node.start()
        node.wait_ready()
        self._wait_in_sync()

    def _answers(self) -> dict[Part, int]:
        """Return how many records of each partition are acknowledged."""
        counts = dict.fromkeys(self.load.parts, 0)
        for sent in tuple(self.load.history.sent):
            counts[sent.part] += sent.answered_at is not None
        return counts

    def _goes_on(self, since: dict[Part, int]) -> bool:
        return all(count > since[part] for part, count in self._answers().items())

    def _wait_in_sync(self) -> None:
        """Wait until every partition has all of its replicas in sync."""
        with pymq.open(self.cluster.url) as mq:

            def is_whole() -> bool:
                try:
                    return all(
                        part.leader is not None and len(part.in_sync) == len(part.replicas)
                        for topic in TOPICS
                        for part in mq.describe_topic(topic).partitions
                    )
                except pymq.errors.PymqError as error:
                    if not error.retriable:
                        raise
                    return False

            self.cluster.wait_for(is_whole, "all replicas are in sync", 120.0)

    # --- the end --------------------------------------------------------------------------------

    def check(self) -> str:
        """End the load, and compare everything that the clients saw with the log.

        Return the report.
        """
        self.load.finish()
        history = self.load.history
        log = whole_log(self.cluster.url, TOPICS)
        self._wait_whole()
        self.cluster.stop()
        problems = [*history.errors, *history.problems(log, may_lose=[QUICK])]
        problems += self._check_disks(log)
        report = self._report(len(history.lost(log)))
        assert not problems, "\n".join([*problems, report])
        return report

    def _wait_whole(self) -> None:
        """Wait until a broker has copied the parts of sealed blocks that its disk lacks."""
        broken: list[str] = []

        def is_whole() -> bool:
            reports = [verify(str(self.cluster.data(broker))) for broker in self.cluster.brokers]
            broken[:] = [str(report) for report in reports if not report.is_ok]
            return not broken

        try:
            self.cluster.wait_for(is_whole, "every disk is whole", WHOLE_S)
        except NodeFailed as error:
            raise NodeFailed(f"{error}; {broken}") from None

    def _check_disks(self, log: dict[Part, list[pymq.Record]]) -> list[str]:
        """Check that no disk is damaged, and that each offset has a record or belongs to a batch of
        pymq's own.
        """
        found, control = [], {part: set[int]() for part in log}
        for broker in self.cluster.brokers:
            report = verify(str(self.cluster.data(broker)))
            if not report.is_ok:
                found.append(str(report))
            for block in report.blocks:
                if (part := (block.topic, block.partition)) in control:
                    path = self.cluster.data(broker) / block.file
                    control[part] |= control_offsets(path.read_bytes())
        for part, records in log.items():
            offsets = [record.offset for record in records]
            holes = set(range(max(offsets, default=-1) + 1)) - set(offsets) - control[part]
            if holes:
                found.append(f"{part}: nothing at offsets {sorted(holes)[:10]}")
        return found

    def _report(self, lost: int) -> str:
        history = self.load.history
        away = outages(history.sent, self._rounds, self.load.parts)
        answered = sum(sent.answered_at is not None for sent in history.sent)
        lines = [
            f"{len(self._rounds)} rounds, {len(history.sent)} records sent, {answered} answered, "
            f"{lost} of them lost (only of acks=leader), {len(history.delivered)} delivered, "
            f"{history.redelivered()} of them again before they were settled",
            f"{'away for seconds after':24}{'topic':8}rounds     p50     p99     max",
        ]
        causes = dict.fromkeys(cause for cause, _, _ in self._rounds)
        rows = [
            _row(cause, topic, [outage for outage in away if outage.cause == cause])
            for cause in causes
            for topic in TOPICS
        ]
        return "\n".join([*lines, *rows])


def _row(cause: str, topic: str, away: Sequence[Outage]) -> str:
    seconds = [outage.seconds for outage in away if outage.part[0] == topic]
    figures = "  ".join(f"{percentile(seconds, p):6.2f}" for p in (50, 99, 100))
    return f"{cause:24}{topic:8}{len(seconds) // len(TOPICS[topic]):6}  {figures}"


def control_offsets(block: bytes) -> set[int]:
    """Return the offsets of pymq's own batches in the file of a block."""
    found = set()
    position = block.find(MAGIC)
    while position >= 0 and block[position : position + len(MAGIC)] == MAGIC:
        header = parse_header(memoryview(block)[position:])
        if header.is_control:
            found |= set(range(header.base_offset, header.end_offset))
        position += header.length
    return found
