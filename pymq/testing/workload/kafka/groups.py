"""Members of groups: classic ones, and those of the new protocol (KIP-848)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as k
from pymq.testing.checkers.kafka.groups import KafkaGroupRules
from pymq.testing.checkers.kafka.records import KafkaRecordRules
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.applications import WorkloadHistory
from pymq.testing.workload.kafka.client import BACKOFF_US, SimKafkaClient
from pymq.testing.workload.kafka.names import indexes
from pymq.testing.workload.kafka.reader import KafkaReaderApp, Place

SESSION_MS, REBALANCE_MS = 6_000, 3_000
BEAT_US = SECOND // 2
JOIN_US = 20 * SECOND  # the answer waits for the other members
COMMIT_US = SECOND // 2
# The coordinator is another one, or not ready.
LOST = (
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.REQUEST_TIMED_OUT,
)
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE = 22, 25, 27
INCONSISTENT, ID_REQUIRED, FENCED_EPOCH, STALE_EPOCH = 23, 79, 110, 113
GONE = (ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED_EPOCH)


class KafkaMember(ABC):
    """A member of a group: it reads what is assigned to it, and commits offsets."""

    def __init__(
        self,
        client: SimKafkaClient,
        group: str,
        topic: str,
        history: WorkloadHistory,
        rules: tuple[KafkaRecordRules, KafkaGroupRules],
        number: int,
    ) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.member = ""
        self.epoch = -1  # or the generation
        self.reader = KafkaReaderApp(client, history, rules[0])
        self.rules = rules[1]
        self.line = f"g{number}"
        self.coordinator: str | None = None
        self.is_over = False
        self._is_finding = False
        self._is_committing = False
        self._committed: dict[Place, int] = {}
        self.old: tuple[str, int] | None = None  # member and epoch that count no more
        client.refresh([topic])
        self._find()
        client.later(COMMIT_US, self._commit_on)

    # --- the coordinator ------------------------------------------------------------------------

    def _find(self) -> None:
        if self._is_finding or self.is_over:
            return
        self._is_finding = True

        def found(address: str | None) -> None:
            self._is_finding = False
            self.coordinator = address
            if address is None or self.topic not in self.client.topics:
                self.client.refresh([self.topic])
                self.client.later(BACKOFF_US, self._find)
            elif not self.is_over:
                self.go_on()

        self.client.find_coordinator(self.group, found)

    @abstractmethod
    def go_on(self) -> None:
        """Join, or send the next heartbeat."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group."""

    def ask(self, name: str, body: object, then: Any, *, wait_us: int = 5 * SECOND) -> None:
        """Ask the coordinator; *then* gets the answer, but not if it is no coordinator now."""
        where = self.coordinator

        def answered(answer: Any) -> None:
            if self.is_over:
                return
            code = getattr(answer, "error_code", 0)
            self.client.check_code(code, f"{name} of {self.group}")
            if answer is None or code in LOST:
                self._find()
            else:
                then(answer)

        self.client.ask(where, name, body, answered, line=self.line, wait_us=wait_us)

    def crashed(self) -> None:
        """Note that the process has died."""
        self.is_over = True
        self.rules.uses(self.group, self.member, frozenset())

    def odd(self, name: str, code: int) -> None:
        """Report an error for which the coordinator has no reason."""
        self.client.fail("errors-have-a-reason", f"{name} of {self.group} gets {code}")

    # --- offsets --------------------------------------------------------------------------------

    def _topic_id(self) -> bytes:
        return self.client.topics[self.topic].id

    def begin_at_committed(self, places: list[Place]) -> None:
        """Fetch the committed offsets of partitions, and read on from there."""
        numbers, epoch = [index for _, index in places], self.epoch
        old = k.OffsetFetchRequestOffsetFetchRequestTopic(self.topic, numbers)
        new = k.OffsetFetchRequestOffsetFetchRequestTopics(self.topic, self._topic_id(), numbers)
        group = k.OffsetFetchRequestOffsetFetchRequestGroup(self.group, topics=[new])
        body = k.OffsetFetchRequest(self.group, [old], [group])

        def fetched(answer: k.OffsetFetchResponse | None) -> None:
            if self.epoch != epoch or answer is None or self.is_over:
                return
            one: Any = answer.groups[0] if answer.groups else answer
            self.client.check_code(one.error_code, f"offsets of {self.group}")
            if one.error_code or not one.topics:
                return
            for each in one.topics[0].partitions:
                place = (self.topic, each.partition_index)
                if place in self.holding() and place not in self.reader.positions:
                    offset = each.committed_offset
                    self.reader.add(place, offset if offset >= 0 else None)

        # An answer that does not come is asked for again with the next heartbeat.
        self.client.ask(self.coordinator, "OffsetFetch", body, fetched, line=self.line)

    @abstractmethod
    def holding(self) -> frozenset[Place]:
        """The partitions that the member uses now."""

    def _commit_on(self) -> None:
        if not self.is_over:
            self.commit()
            self.client.later(COMMIT_US, self._commit_on)

    def commit(self) -> None:
        """Commit the positions of all partitions, unless a commit is under way."""
        if self.topic not in self.client.topics:
            return
        now = {place: at for place, at in self.reader.positions.items() if at is not None}
        news = {place: at for place, at in now.items() if self._committed.get(place) != at}
        if not news or self._is_committing or self.coordinator is None or self.epoch < 0:
            return
        self._is_committing = True
        epoch = self.epoch

        def committed(answer: k.OffsetCommitResponse | None) -> None:
            self._is_committing = False
            if answer is None:
                return
            for each in answer.topics[0].partitions:
                code, place = each.error_code, (self.topic, each.partition_index)
                self.client.check_code(code, f"commit of {self.group}")
                known = (*LOST, *GONE, REBALANCE, STALE_EPOCH, Code.THROTTLING_QUOTA_EXCEEDED)
                if not code:
                    self._committed[place] = news[place]
                elif code not in known and code not in (
                    Code.UNKNOWN_TOPIC_OR_PARTITION,
                    Code.UNKNOWN_TOPIC_ID,
                ):
                    self.odd(f"a commit of epoch {epoch}", code)

        self.client.ask(
            self.coordinator,
            "OffsetCommit",
            self.commit_of(news, self.member, self.epoch),
            committed,
            line=self.line,
        )

    def commit_of(self, offsets: dict[Place, int], member: str, epoch: int) -> object:
        """Return a request that commits offsets."""
        parts = [
            k.OffsetCommitRequestOffsetCommitRequestPartition(index, at)
            for (_, index), at in offsets.items()
        ]
        topic = k.OffsetCommitRequestOffsetCommitRequestTopic(self.topic, self._topic_id(), parts)
        return k.OffsetCommitRequest(self.group, epoch, member, topics=[topic])

    def forge(self, beats: bool) -> None:
        """Commit, or send a heartbeat, under an epoch that counts no more."""
        if self.old is None or self.coordinator is None or self.is_over or self.epoch <= 0:
            return  # As long as the member has not joined again, its last epoch may count.
        if self.topic not in self.client.topics:
            return
        (member, epoch), (name, body) = self.old, ("", object())
        if beats:
            name, body = self.old_beat(member, epoch)
        else:
            name, body = "OffsetCommit", self.commit_of({(self.topic, 0): 0}, member, epoch)

        def answered(answer: Any) -> None:
            code = getattr(answer, "error_code", 0)
            if answer is not None and not beats:
                code = answer.topics[0].partitions[0].error_code
            if answer is not None and not code:
                what = f"{name} of {member} and epoch {epoch} is accepted, which has {self.epoch}"
                self.client.fail("fenced-is-refused", what)

        self.client.ask(self.coordinator, name, body, answered, line=self.line)

    @abstractmethod
    def old_beat(self, member: str, epoch: int) -> tuple[str, object]:
        """Return the name and the body of a heartbeat."""


class ClassicMemberApp(KafkaMember):
    """A member of a classic group; the leading member assigns the partitions in turn."""

    places: frozenset[Place] = frozenset()
    _is_joining = False
    _leader = ""

    def holding(self) -> frozenset[Place]:
        """The partitions of the present generation."""
        return self.places

    def go_on(self) -> None:
        """Join, or send the next heartbeat."""
        if self.epoch < 0:
            self._join()
        else:
            self._beat()

    def _drop(self) -> None:
        """Give all partitions up."""
        if self.epoch >= 0:
            self.old = self.member, self.epoch
        self.places, self.epoch = frozenset(), -1
        self._committed.clear()
        self.reader.positions.clear()

    def _join(self) -> None:
        if self._is_joining:
            return
        self._is_joining = True
        body = k.JoinGroupRequest(
            self.group,
            SESSION_MS,
            REBALANCE_MS,
            self.member,
            None,
            "consumer",
            [k.JoinGroupRequestJoinGroupRequestProtocol("turns", b"")],
        )

        def joined(answer: k.JoinGroupResponse | None) -> None:
            self._is_joining = False
            if self.is_over:
                return
            code = answer.error_code if answer is not None else 0
            self.client.check_code(code, f"JoinGroup of {self.group}")
            if answer is None or code in LOST:
                self._find()
            elif code in (ID_REQUIRED, UNKNOWN_MEMBER):
                self.member = answer.member_id if code == ID_REQUIRED else ""
                self._join()
            elif code:
                if code not in (INCONSISTENT, REBALANCE, Code.THROTTLING_QUOTA_EXCEEDED):
                    self.odd("JoinGroup", code)
                self.client.later(BACKOFF_US, self._find)
            else:
                self.member, self.epoch, self._leader = (
                    answer.member_id,
                    answer.generation_id,
                    answer.leader,
                )
                self._sync([each.member_id for each in answer.members])

        self.client.ask(
            self.coordinator, "JoinGroup", body, joined, line=self.line, wait_us=JOIN_US
        )

    def _sync(self, members: list[str]) -> None:
        epoch, leader = self.epoch, self._leader
        places = indexes(self.client.cluster, self.topic)
        given: list[Any] = []
        if self.member == leader:
            given = [
                k.SyncGroupRequestSyncGroupRequestAssignment(
                    member, json.dumps(places[number :: len(members)]).encode()
                )
                for number, member in enumerate(sorted(members))
            ]
        body = k.SyncGroupRequest(
            self.group, self.epoch, self.member, None, "consumer", "turns", given
        )

        def synced(answer: k.SyncGroupResponse | None) -> None:
            if self.is_over or self.epoch != epoch:
                return
            code = answer.error_code if answer is not None else 0
            self.client.check_code(code, f"SyncGroup of {self.group}")
            if answer is None or code:
                if code not in (0, *LOST, *GONE, REBALANCE):
                    self.odd("SyncGroup", code)
                self._drop()
                if code == UNKNOWN_MEMBER:
                    self.member = ""
                self.client.later(BACKOFF_US, self._find)
                return
            numbers = json.loads(bytes(answer.assignment) or b"[]")
            self.places = frozenset((self.topic, index) for index in numbers)
            self.rules.assigned(self.group, epoch, leader, self.member, self.places)
            self._beat()
            if self.places:
                self.begin_at_committed(sorted(self.places))

        self.client.ask(
            self.coordinator, "SyncGroup", body, synced, line=self.line, wait_us=JOIN_US
        )

    def _beat(self) -> None:
        if self.epoch < 0 or self._is_joining:
            return
        epoch = self.epoch
        missing = self.places - self.reader.positions.keys()
        if missing:
            self.begin_at_committed(sorted(missing))

        def beaten(answer: k.HeartbeatResponse) -> None:
            if self.epoch != epoch:
                return
            code = answer.error_code
            if not code:
                self.client.later(BEAT_US, lambda: self._beat() if self.epoch == epoch else None)
                return
            if code not in (*GONE, REBALANCE):
                self.odd("Heartbeat", code)
            if code == REBALANCE:
                self.commit()
            self._drop()
            if code == UNKNOWN_MEMBER:
                self.member = ""
            self._join()

        self.ask("Heartbeat", k.HeartbeatRequest(self.group, epoch, self.member), beaten)

    def leave(self) -> None:
        """Leave the group."""
        if self.is_over:
            return
        self.commit()
        members = [k.LeaveGroupRequestMemberIdentity(self.member)]
        body = k.LeaveGroupRequest(self.group, self.member, members)
        self.client.ask(self.coordinator, "LeaveGroup", body, lambda answer: None, line=self.line)
        self.is_over = True
        self.reader.stop()

    def old_beat(self, member: str, epoch: int) -> tuple[str, object]:
        """Return a heartbeat of an old generation."""
        return "Heartbeat", k.HeartbeatRequest(self.group, epoch, member)


class ReconciledMember848(KafkaMember):
    """A member of a group of the new protocol: the coordinator assigns, step by step."""

    _owned: frozenset[Place] = frozenset()
    _is_beating = False
    _must_tell = True  # what it owns, or that it joins

    def holding(self) -> frozenset[Place]:
        """The partitions that the member uses."""
        return self._owned

    def go_on(self) -> None:
        """Send a heartbeat: the first one joins."""
        if self._is_beating or self.is_over:
            return
        if not self.member:
            self.member = f"{self.client.name}-{self.client.rng.getrandbits(64):016x}"
        self._is_beating = True
        is_joining = self.epoch < 0
        owned = None
        if is_joining or self._must_tell:
            numbers = [index for _, index in sorted(self._owned)]
            named = k.ConsumerGroupHeartbeatRequestTopicPartitions(self._topic_id(), numbers)
            owned = [named] if numbers else []
        body = k.ConsumerGroupHeartbeatRequest(
            self.group,
            self.member,
            0 if is_joining else self.epoch,
            None,
            None,
            REBALANCE_MS if is_joining else -1,
            [self.topic] if is_joining else None,
            None,
            None,
            owned,
        )
        self._must_tell = False
        asked = self.coordinator or ""

        def beaten(answer: k.ConsumerGroupHeartbeatResponse | None) -> None:
            self._is_beating = False
            if self.is_over:
                return
            code = answer.error_code if answer is not None else 0
            self.client.check_code(code, f"heartbeat of {self.group}")
            if answer is None or code in LOST:
                self._must_tell = True
                self._find()
            elif code:
                if code not in (*GONE, INCONSISTENT, Code.THROTTLING_QUOTA_EXCEEDED):
                    self.odd("ConsumerGroupHeartbeat", code)
                self._drop()
                self.client.later(BACKOFF_US, self._find)
            else:
                self._beaten(answer, asked.rpartition(":")[0])

        self.client.ask(self.coordinator, "ConsumerGroupHeartbeat", body, beaten, line=self.line)

    def _drop(self) -> None:
        """Give everything up: the coordinator does not know the member, or has fenced it."""
        self.old = (self.member, self.epoch) if self.epoch > 0 else self.old
        self.rules.uses(self.group, self.member, frozenset())
        self._owned, self.epoch = frozenset(), -1
        self._must_tell = True
        self._committed.clear()
        self.reader.positions.clear()
        self.member = ""  # so that an epoch of the former member is never that of this one

    def _beaten(self, answer: k.ConsumerGroupHeartbeatResponse, coordinator: str) -> None:
        if answer.member_epoch != self.epoch:
            self.old = (self.member, self.epoch) if self.epoch > 0 else self.old
            self.epoch = answer.member_epoch
        if answer.assignment is not None:
            wanted = frozenset(
                (self.topic, index)
                for each in answer.assignment.topic_partitions
                for index in each.partitions
            )
            lost, news = self._owned - wanted, wanted - self._owned
            if lost:
                self.commit()
            for place in lost:
                self.reader.remove(place)
            if lost or news:
                self._owned, self._must_tell = wanted, True
                self.rules.uses(self.group, self.member, wanted, coordinator)
        missing = sorted(self._owned - self.reader.positions.keys())
        if missing:
            self.begin_at_committed(missing)
        self.client.later(1_000 if self._must_tell else BEAT_US, self._again)

    def _again(self) -> None:
        if self.coordinator is not None and not self._is_finding:
            self.go_on()

    def leave(self) -> None:
        """Leave the group."""
        if self.is_over:
            return
        self.commit()
        body = k.ConsumerGroupHeartbeatRequest(self.group, self.member, -1)
        self.client.ask(
            self.coordinator, "ConsumerGroupHeartbeat", body, lambda answer: None, line=self.line
        )
        self.crashed()
        self.reader.stop()

    def old_beat(self, member: str, epoch: int) -> tuple[str, object]:
        """Return a heartbeat of an old epoch, which claims partitions that it cannot own."""
        named = k.ConsumerGroupHeartbeatRequestTopicPartitions(self._topic_id(), [9_999])
        return "ConsumerGroupHeartbeat", k.ConsumerGroupHeartbeatRequest(
            self.group, member, epoch, topic_partitions=[named]
        )
