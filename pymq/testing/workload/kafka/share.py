"""Workers of share groups (KIP-932): they lease single records, and accept or release each."""

from __future__ import annotations

from typing import Any

from pymq.core.values import Factory, define
from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as k
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.kafka.batches import BadBatch, read_batches
from pymq.testing.workload.kafka.client import BACKOFF_US, RETRIABLE, SimKafkaClient
from pymq.testing.workload.kafka.groups import LOST

BEAT_US = SECOND // 2
WAIT_MS = 300  # of a fetch
FETCH_BYTES = 1 << 16
ANSWER_US = 30 * SECOND  # a slow stream takes long for one large batch
ACCEPT, RELEASE = 1, 2
RELEASED = 0.05  # of the records
UNKNOWN_MEMBER, FENCED_EPOCH, NOT_FOUND = 25, 110, 69
IDLE_US = 20_000  # before the next fetch, if there was nothing
NO_SESSION = (
    Code.SHARE_SESSION_NOT_FOUND,
    Code.INVALID_SHARE_SESSION_EPOCH,
    Code.SHARE_SESSION_LIMIT_REACHED,
)
Place = tuple[bytes, int]  # a topic's id and a partition


@define
class WorkerSession:
    """A session of a worker at one broker, as the worker knows it."""

    epoch: int = 0
    parts: dict[Place, None] = Factory(dict)
    # what the next request acknowledges: by partition, offsets and kinds
    acks: dict[Place, dict[int, int]] = Factory(dict)
    is_asking: bool = False


class ShareWorkerApp:
    """A worker: it has a session at each broker whose partitions it reads."""

    def __init__(
        self,
        client: SimKafkaClient,
        group: str,
        topic: str,
        number: int,
    ) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.member = f"{client.name}-{client.rng.getrandbits(64):016x}"
        self.taken = 0  # records
        self.is_over = False
        self._line = f"s{number}"
        self._epoch = 0
        self._parts: dict[Place, None] = {}
        self._sessions: dict[str, WorkerSession] = {}
        self._coordinator: str | None = None
        client.refresh([topic])
        self._find()

    # --- membership -----------------------------------------------------------------------------

    def _find(self) -> None:
        def found(address: str | None) -> None:
            self._coordinator = address
            if address is None:
                self.client.later(BACKOFF_US, self._find)
            else:
                self._beat()

        if not self.is_over:
            self.client.find_coordinator(self.group, found)

    def _beat(self) -> None:
        if self.is_over:
            return
        names = [self.topic] if self._epoch == 0 else None
        body = k.ShareGroupHeartbeatRequest(self.group, self.member, self._epoch, None, names)

        def beaten(answer: k.ShareGroupHeartbeatResponse | None) -> None:
            code = answer.error_code if answer is not None else 0
            self.client.check_code(code, f"share heartbeat of {self.group}")
            if answer is None or code in LOST:
                self.client.later(BACKOFF_US, self._find)
                return
            if code:
                if code not in (UNKNOWN_MEMBER, FENCED_EPOCH, Code.GROUP_MAX_SIZE_REACHED):
                    self._odd("ShareGroupHeartbeat", code)
                self._epoch = 0
                self.client.later(BACKOFF_US, self._beat)
                return
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._parts = {
                    (each.topic_id, index): None
                    for each in answer.assignment.topic_partitions
                    for index in each.partitions
                }
            self.go_on()
            self.client.later(BEAT_US, self._beat)

        self.client.ask(
            self._coordinator, "ShareGroupHeartbeat", body, beaten, line=f"{self._line}b"
        )

    def _odd(self, name: str, code: int) -> None:
        self.client.fail("errors-have-a-reason", f"{name} of {self.group} gets {code}")

    def crashed(self) -> None:
        """Note that the process has died."""
        self.is_over = True

    def leave(self) -> None:
        """Close all sessions, and leave the group."""
        for address, session in self._sessions.items():
            last = self._request(session, -1, [], [])
            self.client.ask(address, "ShareFetch", last, lambda answer: None, line=self._line)
        body = k.ShareGroupHeartbeatRequest(self.group, self.member, -1)
        self.client.ask(
            self._coordinator,
            "ShareGroupHeartbeat",
            body,
            lambda answer: None,
            line=f"{self._line}b",
        )
        self.is_over = True

    # --- sessions -------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Fetch from each leader that is not asked at present."""
        by_leader: dict[str, list[Place]] = {}
        for place in self._parts:
            leader = self.client.leader(self.topic, place[1])
            if leader is None:
                self.client.refresh([self.topic])
            else:
                by_leader.setdefault(leader, []).append(place)
        for address in {**by_leader, **self._sessions}:
            session = self._sessions.setdefault(address, WorkerSession())
            if not session.is_asking and (address in by_leader or session.epoch):
                self._fetch(address, session, by_leader.get(address, []))

    def _request(
        self, session: WorkerSession, epoch: int, added: list[Place], gone: list[Place]
    ) -> k.ShareFetchRequest:
        acks, session.acks = session.acks if epoch else {}, {}
        topics: dict[bytes, k.ShareFetchRequestFetchTopic] = {}
        for topic_id, index in dict.fromkeys((*added, *acks)):
            topic = topics.setdefault(topic_id, k.ShareFetchRequestFetchTopic(topic_id))
            runs = [
                k.ShareFetchRequestAcknowledgementBatch(offset, offset, [kind])
                for offset, kind in sorted(acks.get((topic_id, index), {}).items())
            ]
            topic.partitions.append(
                k.ShareFetchRequestFetchPartition(index, acknowledgement_batches=runs)
            )
        forgotten = [k.ShareFetchRequestForgottenTopic(id, [index]) for id, index in gone]
        return k.ShareFetchRequest(
            self.group,
            self.member,
            epoch,
            WAIT_MS,
            1,
            FETCH_BYTES,
            self.client.rng.choice([1, 3, 100]),
            100,
            1,
            False,
            list(topics.values()),
            forgotten,
        )

    def _fetch(self, address: str, session: WorkerSession, wanted: list[Place]) -> None:
        session.is_asking = True
        epoch = session.epoch
        if not epoch:
            session.parts = {}
        added = [place for place in wanted if place not in session.parts]
        gone = [place for place in session.parts if place not in wanted]
        session.parts = dict.fromkeys(wanted)
        session.epoch += 1

        def fetched(answer: k.ShareFetchResponse | None) -> None:
            session.is_asking = False
            code = answer.error_code if answer is not None else 0
            self.client.check_code(code, f"share fetch of {self.group}")
            if answer is None or code:
                if code not in (0, *NO_SESSION):
                    self._odd("ShareFetch", code)
                session.epoch = 0
                self.client.refresh([self.topic])
                self.client.later(BACKOFF_US, self._resume)
                return
            has_records = False
            for topic in answer.responses:
                for part in topic.partitions:
                    has_records = has_records or bool(part.acquired_records)
                    self._took(session, (topic.topic_id, part.partition_index), part)
            # Workers of one connection end each other's waits: they would never rest.
            self.client.later(1_000 if has_records else IDLE_US, self._resume)

        body = self._request(session, epoch, added, gone)
        self.client.ask(address, "ShareFetch", body, fetched, line=self._line, wait_us=ANSWER_US)

    def _resume(self) -> None:
        if not self.is_over:
            self.go_on()

    def _took(self, session: WorkerSession, place: Place, part: Any) -> None:
        """Take the records of a partition, and decide about each."""
        code = self.client.check_code(part.error_code, f"share fetch of {self.group}")
        if code and code in RETRIABLE:
            self.client.refresh([self.topic])
        acked = self.client.check_code(part.acknowledge_error_code, f"acks of {self.group}")
        known = (0, *LOST, Code.INVALID_RECORD_STATE, Code.UNKNOWN_TOPIC_ID)
        if acked not in (*known, Code.THROTTLING_QUOTA_EXCEEDED):
            self._odd("an acknowledgement", acked)
        leased = {
            offset
            for each in part.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        if len(leased) != sum(
            each.last_offset + 1 - each.first_offset for each in part.acquired_records
        ):
            self.client.fail("share-ranges-are-disjoint", f"{self.group}: {part.acquired_records}")
        try:
            held = {
                header.base_offset + delta
                for header, found in read_batches(part.records or b"")
                for delta in found.offsets
            }
        except BadBatch as error:
            self.client.fail("share-ranges-have-records", f"{self.group}: {error}")
            return
        rng = self.client.rng
        for offset in sorted(leased):
            # Compaction may have removed a record of a batch: a gap, which a client accepts.
            kind = RELEASE if offset in held and rng.random() < RELEASED else ACCEPT
            session.acks.setdefault(place, {})[offset] = kind
        self.taken += len(leased & held)
        if leased and not held and self.topic not in self.client.config.get("compacted", ()):
            self.client.fail("share-ranges-have-records", f"{self.group}: {sorted(leased)}")
