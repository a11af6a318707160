"""Bugs of the gate, of its door, and of the groups of Kafka's clients."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import attrs

from pymq.controller.transitions import blocks, request_plans
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import KAFKA_FORMAT
from pymq.core.block import idempotence
from pymq.core.block.idempotence import ProducerState
from pymq.core.block.log_writer import LogWriter
from pymq.core.group.kafka.classic.codes import ClassicCode
from pymq.core.group.kafka.classic.coordinator import ClassicCoordinator
from pymq.core.group.kafka.classic.group import ClassicGroupState
from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.coordinator import ReconciledCoordinator
from pymq.core.group.kafka.reconciled.group import ReconciledGroup
from pymq.core.group.member import Member
from pymq.core.message import Produce
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import ProducerFenced
from pymq.kafka import door, frames
from pymq.kafka.connection import KafkaConnection
from pymq.kafka.door import KafkaDoor
from pymq.kafka.gate import KafkaGate
from pymq.kafka.handlers import delete_records, fetch, produce
from pymq.kafka.handlers.share import fetch as share_fetch
from pymq.kafka.handlers.share import reading
from pymq.kafka.handlers.share.reading import LeasedPart
from pymq.kafka.shared.conversation import Pause
from pymq.kafka.shared.fetch_sessions import FetchSession, FetchSessions
from tests.testing.planted.bug import bug, plant

AREA = "kafka"
RUNS = "kafka-1 kafka-3"

# --- producers ------------------------------------------------------------------------------------

bug(
    "kafka-sequence-unchecked",
    AREA,
    "the sequences of Kafka's producers are not checked",
    "KAFKA-5494; own",
    RUNS,
)


@plant("kafka-sequence-unchecked", idempotence, "_check_kafka")
def unchecked(check: Any, header: Any, known: ProducerState | None) -> None:
    return None


bug(
    "kafka-epoch-goes-on",
    AREA,
    "the next epoch of a Kafka producer has to continue the sequences of the one before",
    "research on Kafka's protocol, 7.3; KIP-360",
    RUNS,
)


@plant("kafka-epoch-goes-on", idempotence, "_check_kafka")
def goes_on(check: Any, header: Any, known: ProducerState | None) -> Any:
    if known is not None and header.producer_epoch > known.epoch:
        known = known._replace(epoch=header.producer_epoch)
    return check(header, known)


bug(
    "kafka-zombie-accepted",
    AREA,
    "a Kafka producer goes on under an epoch that was replaced",
    "KAFKA-7763; own",
    RUNS,
)


@plant("kafka-zombie-accepted", idempotence, "_check_kafka")
def zombie_accepted(check: Any, header: Any, known: ProducerState | None) -> Any:
    found = check(header, known)
    return None if isinstance(found, ProducerFenced) else found


bug(
    "kafka-answered-by-leader-alone",
    AREA,
    "the gate answers a producer with acks=all when the leader alone has the records",
    "KAFKA-1211 in the small",
    "kafka-3",
)


@plant("kafka-answered-by-leader-alone", produce, "_numbered")
def by_leader_alone(numbered: Any, m: Produce) -> Any:
    return numbered(attrs.evolve(m, acks=AckMode.LEADER))


# --- connections ----------------------------------------------------------------------------------

bug(
    "kafka-answers-overtake",
    AREA,
    "an answer that is ready first leaves first, before those of earlier requests",
    "research on Kafka's protocol, 7.3",
    RUNS,
)


@plant("kafka-answers-overtake", KafkaGate, "_drain")
def overtake(drain: Any, self: KafkaGate, connection: KafkaConnection) -> None:
    ready = [slot for slot in connection.slots if slot.parts is not None or slot.is_over]
    waiting = [slot for slot in connection.slots if slot not in ready]
    connection.slots.clear()
    connection.slots.extend([*ready, *waiting])
    drain(self, connection)


bug(
    "kafka-half-frame-stays",
    AREA,
    "the next connection continues the frame that a reset has cut",
    "own; buffers that are pooled",
    "kafka-narrow kafka-3",
)


@plant("kafka-half-frame-stays", KafkaDoor, "_leave")
def leave_the_reader(leave: Any, self: KafkaDoor, client: Any) -> None:
    if client.reader.size:
        self.__dict__.setdefault("readers", []).append(client.reader)
    leave(self, client)


@plant("kafka-half-frame-stays", KafkaDoor, "hand_over")
def take_the_reader(hand_over: Any, self: KafkaDoor, loop: Any) -> None:
    before = set(self._clients)
    hand_over(self, loop)
    for connection, client in self._clients.items():
        if connection not in before and self.__dict__.get("readers"):
            client.reader = self.__dict__["readers"].pop()


bug(
    "kafka-full-for-ever",
    AREA,
    "a connection that was full once is never read again",
    "own; epoll without the event that was removed",
    "kafka-narrow",
)
_FULL = WeakSet[KafkaConnection]()


@plant("kafka-full-for-ever", KafkaConnection, "is_full")
def full_for_ever(is_full: Any, self: KafkaConnection) -> bool:
    if is_full(self):
        _FULL.add(self)
    return self in _FULL


bug(
    "kafka-rest-of-a-buffer-lost",
    AREA,
    "of a buffer that a socket takes in part, the rest is dropped",
    "own; send() instead of sendall()",
    RUNS,
)


@plant("kafka-rest-of-a-buffer-lost", door, "_cut")
def cut_whole(cut: Any, parts: Any, count: int) -> None:
    while count > 0:
        count -= len(parts.popleft())


bug(
    "kafka-reads-when-full",
    AREA,
    "the door reads on from a connection that has too many requests or answers",
    "CVE-2019-9511 and others: answers that nobody reads",
    "kafka-narrow",
)


@plant("kafka-reads-when-full", KafkaDoor, "_send")
def read_when_full(send: Any, self: KafkaDoor, client: Any) -> None:
    send(self, client)
    if not client.is_gone and not client.events & 1:
        if client.events:
            self._selector.modify(client.socket, client.events | 1, client)
        else:
            self._selector.register(client.socket, 1, client)
        client.events |= 1


bug(
    "kafka-frame-split-wrongly",
    AREA,
    "the bytes of a frame that come together with its length are lost",
    "own",
    RUNS,
)


@plant("kafka-frame-split-wrongly", frames.FrameReader, "received")
def split_wrongly(received: Any, self: frames.FrameReader, count: int) -> Any:
    before = self._large
    found = received(self, count)
    if before is None and self._large is not None:
        self._filled = 0
    return found


# --- consumers ------------------------------------------------------------------------------------

bug(
    "kafka-base-offset-as-sent",
    AREA,
    "the base offset of a Kafka batch is the producer's when it is read",
    "own",
    RUNS,
)


@plant("kafka-base-offset-as-sent", fetch, "serve")
def as_sent(serve: Any, batch: Any, crc32c: Any, start: int = 0, end: int = 0) -> Any:
    return [batch.body] if batch.header.body_format == KAFKA_FORMAT else serve(batch, crc32c)


bug(
    "kafka-leader-epoch-as-sent",
    AREA,
    "the leader epoch of a Kafka batch is the producer's when it is read",
    "KIP-320 needs it; own",
    RUNS,
)


@plant("kafka-leader-epoch-as-sent", fetch, "serve")
def epoch_as_sent(serve: Any, batch: Any, crc32c: Any, start: int = 0, end: int = 0) -> Any:
    parts = serve(batch, crc32c)
    if batch.header.body_format != KAFKA_FORMAT:
        return parts
    stamp, rest = parts
    return [stamp[:12], bytes(batch.body[12:16]), rest]


bug(
    "kafka-old-watermark",
    AREA,
    "the high watermark of an answer is older than its records",
    "KAFKA-9835 in the small",
    RUNS,
)


@plant("kafka-old-watermark", fetch, "_note")
def old_watermark(note: Any, context: Any, place: Any, fetched: Any, sound: Any) -> int:
    size: int = note(context, place, fetched, sound)
    if size and not place.part.error_code:
        place.part.high_watermark = max(place.asked.fetch_offset, 0)
    return size


bug(
    "kafka-session-forgets",
    AREA,
    "a fetch session forgets a partition whose records it has returned",
    "own; KAFKA-9137",
    RUNS,
)


@plant("kafka-session-forgets", FetchSession, "finish")
def forgets(finish: Any, self: FetchSession, answer: Any) -> None:
    finish(self, answer)
    for topic in answer.responses:
        for each in topic.partitions:
            self.parts.pop((topic.topic, topic.topic_id, each.partition_index), None)


bug(
    "kafka-session-epoch-ignored",
    AREA,
    "a fetch of another epoch continues the session",
    "KIP-227 warns of it",
    RUNS,
)


@plant("kafka-session-epoch-ignored", FetchSessions, "turn")
def epoch_ignored(turn: Any, self: FetchSessions, m: Any, now: int) -> Any:
    known = self._sessions.get(m.session_id)
    if known is not None and m.session_epoch > 0:
        m = attrs.evolve(m, session_epoch=known.epoch)
    return turn(self, m, now)


bug(
    "kafka-old-news",
    AREA,
    "a fetch session leaves records out when the watermark is as before",
    "own",
    RUNS,
)


@plant("kafka-old-news", FetchSession, "_is_news")
def old_news(is_news: Any, self: FetchSession, name: str, topic_id: bytes, each: Any) -> bool:
    part = self.parts.get((name, topic_id, each.partition_index))
    if part is not None and (part.high_watermark, part.log_start) == (
        each.high_watermark,
        each.log_start_offset,
    ):
        return False
    found: bool = is_news(self, name, topic_id, each)
    return found


# --- groups ---------------------------------------------------------------------------------------

bug(
    "kafka-old-heartbeat-accepted",
    AREA,
    "a heartbeat of an old generation is accepted",
    "research on Kafka's protocol, 7.3",
    RUNS,
)


@plant("kafka-old-heartbeat-accepted", ClassicCoordinator, "_beat")
def old_beat(beat: Any, self: ClassicCoordinator, m: Any) -> ClassicCode:
    group = self.groups.get(m.group)
    is_stable = group is not None and group.state is ClassicGroupState.STABLE
    if group is not None and is_stable and m.member in group.members:
        m = attrs.evolve(m, generation=group.generation)
    found: ClassicCode = beat(self, m)
    return found


bug(
    "kafka-fenced-commit-accepted",
    AREA,
    "members commit under a generation that is over",
    "KAFKA-8104 in the small",
    RUNS,
)


@plant("kafka-fenced-commit-accepted", ClassicCoordinator, "_may_commit")
def may_commit(may: Any, self: ClassicCoordinator, m: Any) -> Any:
    found = may(self, m)
    return ClassicCode.NONE if found == ClassicCode.ILLEGAL_GENERATION else found


bug(
    "kafka-stale-commit-accepted",
    AREA,
    "members of the new protocol commit under an epoch that is over",
    "KIP-848, section on commits",
    RUNS,
)


@plant("kafka-stale-commit-accepted", ReconciledCoordinator, "commit_code")
def stale_commit(code: Any, self: ReconciledCoordinator, m: Any) -> Any:
    found = code(self, m)
    return ReconciledCode.NONE if found == ReconciledCode.STALE_MEMBER_EPOCH else found


bug(
    "kafka-partition-of-two",
    AREA,
    "a partition is given to a member while another one holds it",
    "KIP-848 forbids it",
    RUNS,
)


@plant("kafka-partition-of-two", ReconciledGroup, "_is_free")
def is_always_free(is_free: Any, self: ReconciledGroup, part: Any, member: str) -> bool:
    return True


bug(
    "kafka-moved-before-given-up",
    AREA,
    "a partition moves as soon as it has another target, before its member has given it up",
    "research on Kafka's protocol, 7.3; KIP-848",
    RUNS,
)


@plant("kafka-moved-before-given-up", ReconciledGroup, "_assign")
def before_given_up(assign: Any, self: ReconciledGroup) -> None:
    assign(self)
    for member in self.members.values():
        self._release(member)
        member.assigned &= member.target
        self._hold(member)


# --- the start of the log -------------------------------------------------------------------------

bug(
    "kafka-start-goes-back",
    AREA,
    "a deletion up to an earlier offset moves the start of the log back",
    "own",
    RUNS,
)


@plant("kafka-start-goes-back", request_plans, "delete_records")
def goes_back(delete: Any, draft: Any, m: Any) -> None:
    image = draft.image.partition(m.topic, m.partition)
    if m.before < image.node.log_start:
        name = TopicPartition(m.topic, m.partition)
        blocks.change(draft, name, log_start=m.before)
        return
    delete(draft, m)


bug(
    "kafka-deletion-answered-early",
    AREA,
    "a deletion is answered before the leader has the new start",
    "own",
    RUNS,
)


@plant("kafka-deletion-answered-early", delete_records, "_delete")
def answered_early(
    delete: Any, context: Any, topic: Any, partition: Any, before: int, until: int
) -> Any:
    steps = delete(context, topic, partition, before, until)
    answer, pause = None, None
    while True:
        try:
            pause = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(pause, Pause):
            return 0
        answer = yield pause


bug(
    "kafka-deleted-offsets-again",
    AREA,
    "a leader that has lost deleted records gives their offsets to new ones",
    "own, found by seeds",
    test="tests/testing/test_run.py::test_what_failed_once[deleted-and-then-lost]",
)


@plant("kafka-deleted-offsets-again", LogWriter, "skip_deleted")
def skips_nothing(skip: Any, self: LogWriter, log_start: int, epoch: int) -> None:
    return None


bug(
    "kafka-damage-served",
    AREA,
    "the gate serves a batch that the disk has damaged, to clients that do not check the CRC",
    "own, found by seeds; librdkafka's check.crcs is false",
    test="tests/testing/test_run.py::test_what_failed_once"
    "[a-damaged-batch-is-not-served-to-kafkas-clients]",
)


@plant("kafka-damage-served", fetch, "_sound")
def served_unchecked(sound: Any, found: Any) -> Any:
    batches = list(split(found.data)) if getattr(found, "data", b"") else []
    return fetch._SoundBatches(batches)


# --- share groups ---------------------------------------------------------------------------------

bug(
    "kafka-share-any-partition",
    AREA,
    "a share session gets records of partitions that its broker does not lead",
    "own; KIP-932",
    "kafka-3",
)


@plant("kafka-share-any-partition", Member, "can_consume")
def any_partition(can_consume: Any, self: Member, partition: str) -> bool:
    return True


bug(
    "kafka-share-holes-stay",
    AREA,
    "the gate leaves it to share consumers to acknowledge offsets without a record for them",
    "own; KIP-932",
    RUNS,
    is_slow=True,
)


@plant("kafka-share-holes-stay", share_fetch, "fill")
def holes_stay(fill: Any, context: Any, leased: LeasedPart, group: str) -> None:
    fill(context, leased, group)
    leased.holes.clear()


bug(
    "kafka-share-leases-of-whole-batches",
    AREA,
    "a share consumer is told that it has leased all records of the batches that it gets",
    "own; KIP-932",
    RUNS,
)


@plant("kafka-share-leases-of-whole-batches", reading, "_acquired")
def whole_batches(acquired: Any, context: Any, batch: Any, leased: LeasedPart, group: str) -> Any:
    if list(acquired(context, batch, leased, group)):
        yield batch.base_offset, batch.end_offset, 1
