"""Carries out the operations of Kafka's clients, and what the end of a run demands of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymq.core.message import DeleteRecords
from pymq.core.types import NEVER
from pymq.errors import RecordTooLarge
from pymq.kafka.wire import messages as k
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.checkers.kafka.groups import KafkaGroupRules, disjoint
from pymq.testing.checkers.kafka.records import KafkaRecordRules
from pymq.testing.checkers.promises import AnswerRules
from pymq.testing.cluster import Cluster
from pymq.testing.faults.kinds import Step
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation import probe
from pymq.testing.simulation.process import Process
from pymq.testing.workload.applications import Application, WorkloadHistory
from pymq.testing.workload.kafka.client import SimKafkaClient
from pymq.testing.workload.kafka.groups import ClassicMemberApp, KafkaMember, ReconciledMember848
from pymq.testing.workload.kafka.names import indexes, partition_name
from pymq.testing.workload.kafka.producer import KafkaProducerApp
from pymq.testing.workload.kafka.reader import KafkaReaderApp, Place
from pymq.testing.workload.kafka.share import ShareWorkerApp
from pymq.testing.workload.liveness import Liveness

LAST = "kafka-last"  # the client that the end of a run needs
MEMBERS: dict[str, type[KafkaMember]] = {
    "classic": ClassicMemberApp,
    "reconciled": ReconciledMember848,
}


class KafkaProcess:
    """One process of an application that uses a Kafka client."""

    def __init__(self, operations: KafkaOperations, name: str, config: dict[str, Any]) -> None:
        cluster = operations.cluster
        host = cluster.clients.get(name) or cluster.add_client(name)
        host.start()
        self.client = SimKafkaClient(cluster, host, config, operations.watch.fail)
        self.producer = KafkaProducerApp(self.client, operations.history, operations.answers)
        self.readers: list[tuple[str, KafkaReaderApp]] = []
        self.members: list[KafkaMember] = []
        self._operations = operations
        self._members_made = 0
        topics = [str(topic) for topic in config.get("topics", ())]
        self.client.refresh(topics)
        for topic in config.get("readers", ()):
            self.read(str(topic))
        for topic, group, kind in config.get("groups", ()):
            self.join(str(topic), str(group), str(kind))
        self.workers = [
            ShareWorkerApp(self.client, str(group), str(topic), number)
            for number, (topic, group) in enumerate(config.get("shares", ()))
        ]

    def read(self, topic: str) -> None:
        """Read all partitions of a topic from their beginnings."""
        operations = self._operations
        reader = KafkaReaderApp(self.client, operations.history, operations.records)
        self.readers.append((topic, reader))
        self.client.refresh([topic])
        for index in operations.indexes(topic):
            reader.add((topic, index))

    def join(self, topic: str, group: str, kind: str) -> None:
        """Join a group."""
        operations, self._members_made = self._operations, self._members_made + 1
        rules = operations.records, operations.groups
        made = MEMBERS[kind](
            self.client, group, topic, operations.history, rules, self._members_made
        )
        self.members.append(made)

    def die(self) -> None:
        """Die, in the middle of everything."""
        for member in self.members:
            member.crashed()
        for worker in self.workers:
            worker.crashed()
        self.client.die()
        for sent in self._operations.history.sent:
            if sent.app == self.client.name and sent.done_at < 0:
                sent.done_at = self.client.world.now  # the answer is lost with the process


class KafkaOperations:
    """The clients of Kafka of a run."""

    def __init__(
        self, cluster: Cluster, watch: StoreWatch, plan: Plan, history: WorkloadHistory
    ) -> None:
        self.cluster = cluster
        self.watch = watch
        self.history = history
        self.records = KafkaRecordRules(watch)
        self.groups = KafkaGroupRules(watch)
        (self.answers,) = (each for each in watch.checkers if isinstance(each, AnswerRules))
        watch.add(self.records)
        self._plan = plan
        self._processes: dict[str, KafkaProcess] = {}
        self._last: KafkaProcess | None = None
        # ends of partitions when the clients began to read to the end, by topic and partition
        self._ends: dict[tuple[str, str], int] = {}
        for host in cluster.brokers.values():
            host.on_turn.append(self._turned)

    def _turned(self, host: Process) -> None:
        disjoint([self.cluster.brokers[host.name]], self.watch.fail)

    def indexes(self, topic: str) -> list[int]:
        """Return the numbers of the partitions that a topic began with."""
        (count,) = (t["partitions"] for t in self._plan.topics if t["name"] == topic)
        return [*range(int(count))]

    # --- processes ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all clients of the plan that are not running."""
        for slot in range(len(self._plan.kafka)):
            self._start(slot)

    def _start(self, slot: int) -> None:
        name = f"kafka-{slot}"
        found = self._processes.get(name)
        if found is None or not found.client.is_up:
            self._processes[name] = KafkaProcess(self, name, self._plan.kafka[slot])

    def kill_all(self) -> None:
        """Kill all clients."""
        for process in self._processes.values():
            if process.client.is_up:
                process.die()

    def do(self, step: Step) -> None:
        """Carry out one operation of a plan."""
        _, _, slot, kind, *args = step
        process = self._processes.get(f"kafka-{slot}")
        if process is None or not process.client.is_up:
            return
        if kind == "send":
            process.producer.send(*args)
        elif kind == "forge":
            process.producer.forge(*args)
        elif kind == "bump":
            process.producer.bump()
        elif kind == "odd":
            for _, reader in process.readers:
                reader.be_odd()
        elif kind == "delete":
            self._delete(process, *args)
        elif kind == "stale":
            for member in process.members:
                member.forge(*args)
        elif kind == "join":
            process.join(*args)
        elif kind == "leave" and process.members:
            process.members.pop(0).leave()
        elif kind == "crash":
            process.die()
            self.cluster.world.after(int(args[0]), lambda a, b: self._start(int(slot)))

    def _delete(self, process: KafkaProcess, topic: str, index: int, share: float) -> None:
        """Delete the records up to a share of the partition, which may be beyond its end."""
        name = partition_name(self.cluster, topic, index)
        history = self.watch.history_of(topic, name)
        end = history.end() if history is not None else 0
        before = round(end * share)
        part = k.DeleteRecordsRequestDeleteRecordsPartition(index, before)
        topics = [k.DeleteRecordsRequestDeleteRecordsTopic(topic, [part])]
        client = process.client

        def done(answer: k.DeleteRecordsResponse | None) -> None:
            if answer is None:
                return
            found = answer.topics[0].partitions[0]
            client.check_code(found.error_code, f"DeleteRecords of {topic}/{name}")
            now = self._end(topic, name)
            if not found.error_code:
                if before > now and history is not None and not history.losses:
                    client.fail("deletes-what-is-there", f"{topic}/{name}: {before} of {now}")
                if found.low_watermark < before:
                    what = f"{topic}/{name}: {found.low_watermark}, and {before} was asked"
                    client.fail("deleted-as-asked", what)
                place = topic, name
                known = self.records.deleted.get(place, 0)
                self.records.deleted[place] = max(known, before)

        body = k.DeleteRecordsRequest(topics, 5_000)
        client.ask(client.leader(topic, index), "DeleteRecords", body, done, line="d")

    def delete_natively(self, boss: Application, step: Step) -> None:
        """Ask the zkserver itself to delete records, as a client of pymq does."""
        _, _, topic, index, share = step
        name = partition_name(self.cluster, topic, index)
        history = self.watch.history_of(topic, name)
        before = round((history.end() if history is not None else 0) * share)
        boss.admin(
            f"delete records of {topic}/{name} before {before}",
            lambda r: DeleteRecords(r, topic, name, before),
        )

    # --- the end of a run -----------------------------------------------------------------------

    def settle(self, liveness: Liveness) -> None:
        """Check that Kafka's clients get their service within the time that others have."""
        if not self._plan.kafka:
            return
        topics = self._topics()
        config = {"topics": topics, "compacted": self._compacted(), "keys": True}
        last = self._last = KafkaProcess(self, LAST, config)
        clients = [each.client for each in (last, *self._processes.values())]
        for client in clients:
            client.hurry(self.cluster.world.now)
        other = KafkaProducerApp(last.client, self.history, self.answers, acks=1)
        sent = []
        for topic in self._plan.topics:
            if topic["name"] in topics:
                producer = last.producer if topic["acks"] == "raft" else other
                for index in self.indexes(str(topic["name"])):
                    sent += producer.send(str(topic["name"]), index, 1, 0)
        liveness.until(
            lambda: all(each.done_at >= 0 for each in sent), "kafka-partitions-take-records"
        )
        limited = {t["name"] for t in self._plan.topics if "max_record_bytes" in t["config"]}
        for each in sent:
            if isinstance(each.error, RecordTooLarge) and each.topic in limited:
                continue  # Even a batch with an empty record may be larger.
            if each.error is not None:
                what = f"{each.topic}/{each.partition}: {each.error}"
                liveness.fail("kafka-partitions-take-records", what)
        for name in topics:
            last.read(name)
        liveness.until(self._is_read, "kafka-readers-reach-the-end", progress=self._progress)
        # Rolls go on, and append control batches: an end that moves may never be reached.
        self._ends = {
            (topic, name): self._end(topic, name)
            for topic in topics
            for name in (
                partition_name(self.cluster, topic, at) for at in indexes(self.cluster, topic)
            )
        }
        liveness.until(self._is_committed, "kafka-groups-reach-the-end", progress=self._committed)
        for client in clients:
            client.calm_at = NEVER

    def _topics(self) -> list[str]:
        """The topics that Kafka's clients use."""
        found = [topic for config in self._plan.kafka for topic in config.get("topics", ())]
        return list(dict.fromkeys(map(str, found)))

    def _compacted(self) -> list[str]:
        found = [topic for config in self._plan.kafka for topic in config.get("compacted", ())]
        return list(dict.fromkeys(map(str, found)))

    def _readers(self) -> list[KafkaReaderApp]:
        processes = [*self._processes.values(), *([self._last] if self._last is not None else [])]
        return [reader for p in processes if p.client.is_up for _, reader in p.readers]

    def _progress(self) -> int:
        return sum(at or 0 for reader in self._readers() for at in reader.positions.values())

    def _is_read(self) -> bool:
        return all(
            self._is_at_end(reader, place)
            for reader in self._readers()
            for place in reader.positions
        )

    def _is_at_end(self, reader: KafkaReaderApp, place: Place) -> bool:
        topic, index = place
        name, position = partition_name(self.cluster, topic, index), reader.positions[place]
        if position is None:
            return False
        orphan = self.watch.orphan(topic, name, position)
        if orphan is not None and orphan.end is not None:
            reader.positions[place] = orphan.end  # No disk has these records any more.
        return position >= self._end(topic, name)

    def _end(self, topic: str, name: str) -> int:
        history = self.watch.history_of(topic, name)
        return history.end() if history is not None else 0

    def _offsets(self) -> dict[tuple[str, str, str], int]:
        return {
            (group, topic, partition): leases.committed
            for host in self.cluster.brokers.values()
            if host.broker is not None
            for _, group, topic, partition, leases in probe.all_leases(host.broker)
        }

    def _committed(self) -> int:
        groups = {group for group, _ in self._wanted()}
        return sum(at for (group, _, _), at in self._offsets().items() if group in groups)

    def _wanted(self) -> list[tuple[str, str]]:
        """The groups that have members now, with their topics."""
        return [
            (member.group, member.topic)
            for process in self._processes.values()
            for member in process.members
            if process.client.is_up and not member.is_over
        ] + [
            (worker.group, worker.topic)
            for process in self._processes.values()
            for worker in process.workers
            if process.client.is_up and not worker.is_over
        ]

    def _is_committed(self) -> bool:
        offsets = self._offsets()
        for group, topic in self._wanted():
            for index in self._assignable(group, topic):
                name = partition_name(self.cluster, topic, index)
                end = min(self._end(topic, name), self._ends.get((topic, name), 0))
                if offsets.get((group, topic, name), 0) < end and not self._is_stuck(group, topic):
                    return False
        return True

    def _assignable(self, group: str, topic: str) -> list[int]:
        """The numbers of the partitions that members of a group get.

        A classic group learns of later partitions when its leading member looks at the metadata
        again, which real clients do every five minutes, and this one never.
        """
        is_classic = any(
            isinstance(member, ClassicMemberApp)
            for process in self._processes.values()
            for member in process.members
            if member.group == group
        )
        return self.indexes(topic) if is_classic else indexes(self.cluster, topic)

    def _is_stuck(self, group: str, topic: str) -> bool:
        """Whether a member reads what no disk has any more."""
        return any(
            self.watch.orphan(topic, partition_name(self.cluster, *place), at or 0) is not None
            for process in self._processes.values()
            for member in process.members
            if (member.group, member.topic) == (group, topic)
            for place, at in member.reader.positions.items()
        )

    def check(
        self, values: Mapping[tuple[str, str, int], int], starts: Mapping[tuple[str, str], int]
    ) -> None:
        """Compare what was read through both doors; *values* is what pymq's reader has read."""
        if self._last is None:
            return
        compacted = set(self._compacted())
        last: dict[tuple[str, str, int], int] = {}
        spans: dict[tuple[str, str], tuple[int, int]] = {}
        for _, reader in self._last.readers:
            last |= reader.read
            for (topic, index), at in reader.positions.items():
                if topic not in compacted:
                    name = partition_name(self.cluster, topic, index)
                    spans[topic, name] = reader.starts.get((topic, index), 0), at or 0
        plain = {place: n for place, n in values.items() if place[0] not in compacted}
        found = {place: n for place, n in last.items() if place[0] not in compacted}
        self.records.compare(plain, starts, found, spans)
        for place, start in self.records.deleted.items():
            history = self.watch.history_of(*place)
            if history is not None and not history.losses and starts.get(place, start) < start:
                what = f"{place} begins at {starts[place]}, and {start} was acknowledged"
                self.watch.fail("deleted-stays-deleted", what)
