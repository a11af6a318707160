"""Reads partitions through Kafka's protocol: positions, fetches from leaders, fetch sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.core.values import Factory, define
from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as k
from pymq.testing.checkers.kafka.records import KafkaRecordRules, ReadPosition, decoded
from pymq.testing.workload.applications import WorkloadHistory
from pymq.testing.workload.consuming import number_of
from pymq.testing.workload.kafka.batches import BadBatch, read_batches
from pymq.testing.workload.kafka.client import BACKOFF_US, RETRIABLE, SimKafkaClient
from pymq.testing.workload.kafka.names import partition_name

LATEST, EARLIEST = -1, -2
WAIT_MS = 500  # of a fetch
FETCH_BYTES = 1 << 20
Place = tuple[str, int]


@define
class SessionOfClient:
    """A fetch session as the client knows it."""

    id: int = 0
    epoch: int = 0
    parts: dict[Place, int] = Factory(dict)  # offsets that the broker was told


class KafkaReaderApp:
    """Reads partitions from their leaders, one fetch at a time from each."""

    def __init__(
        self,
        client: SimKafkaClient,
        history: WorkloadHistory,
        rules: KafkaRecordRules,
        took: Callable[[Place, int], None] = lambda place, offset: None,
    ) -> None:
        self.client = client
        self.positions: dict[Place, int | None] = {}  # None: to be looked up
        self.starts: dict[Place, int] = {}  # where reading has begun
        self.read: dict[tuple[str, str, int], int] = {}
        self._history = history
        self._rules = rules
        self._took = took
        self._has_sessions = bool(client.config.get("sessions", True))
        self._sessions: dict[str, SessionOfClient] = {}
        self._fetching: dict[str, None] = {}
        self._finding: dict[Place, None] = {}
        # A fetch that waits is answered as soon as another request comes, so each reader has a
        # connection of its own; one may share that of the producer.
        client.readers += 1
        is_shared = client.config.get("shared") and client.readers == 1
        self._line = "" if is_shared else f"f{client.readers}"
        self._is_odd = False  # the next fetch has an epoch that its session has not
        self._refused: dict[Place, None] = {}  # partitions with an error in the last answer
        self._is_waiting = False
        self.is_stopped = False

    # --- partitions -----------------------------------------------------------------------------

    def add(self, place: Place, offset: int | None = None) -> None:
        """Begin to read a partition; without *offset*, at its begin."""
        self.positions[place] = offset
        if offset is not None:
            self.starts[place] = offset
        self.go_on()

    def remove(self, place: Place) -> None:
        """Stop reading a partition."""
        self.positions.pop(place, None)

    def stop(self) -> None:
        """Stop reading."""
        self.is_stopped = True
        self.positions.clear()

    def go_on(self) -> None:
        """Fetch from each leader that is not asked at present."""
        if self.is_stopped:
            return
        by_leader: dict[str, list[Place]] = {}
        for place, offset in self.positions.items():
            leader = self.client.leader(*place)
            if leader is None:
                self._wait([place[0]])
            elif offset is None:
                self._find(place, leader)
            else:
                by_leader.setdefault(leader, []).append(place)
        for leader, places in by_leader.items():
            if leader not in self._fetching:
                self._fetch(leader, places)

    def _wait(self, topics: list[str]) -> None:
        """Refresh the metadata, and go on a little later."""
        self.client.refresh(topics)
        if self._is_waiting:
            return
        self._is_waiting = True

        def resume() -> None:
            self._is_waiting = False
            self.go_on()

        self.client.later(BACKOFF_US, resume)

    # --- offsets --------------------------------------------------------------------------------

    def _find(self, place: Place, leader: str) -> None:
        """Look up the begin of a partition."""
        if place in self._finding:
            return
        self._finding[place] = None

        def found(offset: int | None) -> None:
            self._finding.pop(place, None)
            if place in self.positions and self.positions[place] is None:
                self.positions[place] = offset
                if offset is not None:
                    self.starts[place] = offset
            if offset is None:
                self._wait([place[0]])
            else:
                self.go_on()

        self.list_offset(place, EARLIEST, found)

    def list_offset(self, place: Place, time: int, then: Callable[[int | None], None]) -> None:
        """Ask the leader for an offset; None if it does not say."""
        topic, index = place
        part = k.ListOffsetsRequestListOffsetsPartition(index, -1, time)
        body = k.ListOffsetsRequest(-1, 0, [k.ListOffsetsRequestListOffsetsTopic(topic, [part])])

        def answered(answer: k.ListOffsetsResponse | None) -> None:
            if answer is None:
                then(None)
                return
            found = answer.topics[0].partitions[0]
            self._judge(found.error_code, f"offsets of {topic}/{index}")
            then(None if found.error_code else found.offset)

        self.client.ask(self.client.leader(topic, index), "ListOffsets", body, answered)

    def _judge(self, code: int, where: str) -> None:
        self.client.check_code(code, where)
        known = code in RETRIABLE or code in (Code.NONE, Code.OFFSET_OUT_OF_RANGE)
        if not known:
            self.client.fail("errors-have-a-reason", f"{where}: {code}")

    # --- fetches --------------------------------------------------------------------------------

    def be_odd(self) -> None:
        """Let the next fetch of a session have a wrong epoch, which the broker must refuse."""
        self._is_odd = True

    def _fetch(self, leader: str, places: list[Place]) -> None:
        session = self._sessions.setdefault(leader, SessionOfClient())
        wanted = {place: self.positions[place] or 0 for place in places}
        news, gone = wanted, list[Place]()
        is_odd = False
        if session.epoch > 0:
            news = {p: at for p, at in wanted.items() if session.parts.get(p) != at}
            gone = [place for place in session.parts if place not in wanted]
            is_odd, self._is_odd = self._is_odd, False
        session.parts = wanted
        epoch = session.epoch if self._has_sessions else -1
        body = k.FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            session_id=session.id if self._has_sessions else 0,
            session_epoch=epoch + 5 if is_odd else epoch,
            topics=[
                k.FetchRequestFetchTopic(
                    topic,
                    self._id(topic),
                    [
                        k.FetchRequestFetchPartition(
                            index,
                            fetch_offset=at,
                            partition_max_bytes=int(self.client.config.get("fetch_bytes", 65_536)),
                        )
                        for (name, index), at in news.items()
                        if name == topic
                    ],
                )
                for topic in dict.fromkeys(name for name, _ in news)
            ],
            forgotten_topics_data=[
                k.FetchRequestForgottenTopic(topic, self._id(topic), [index])
                for topic, index in gone
            ],
        )
        asked_at, ends = self.client.world.now, {place: self._end(place) for place in wanted}
        self._fetching[leader] = None

        def fetched(answer: k.FetchResponse | None) -> None:
            self._fetching.pop(leader, None)
            self._fetched(leader, session, wanted, answer, is_odd=is_odd)
            if answer is not None and not answer.error_code and asked_at >= self.client.calm_at:
                self._check_news(leader, wanted, ends)

        self.client.ask(leader, "Fetch", body, fetched, line=self._line)

    def _end(self, place: Place) -> int:
        """The end of a partition, as far as its records are visible."""
        cluster = self.client.cluster
        assert cluster.watch is not None
        history = cluster.watch.history_of(place[0], partition_name(cluster, *place))
        return history.end() if history is not None else 0

    def _check_news(self, leader: str, wanted: dict[Place, int], ends: dict[Place, int]) -> None:
        """Check that a fetch without faults has returned what was there before."""
        for place, offset in wanted.items():
            is_stuck = self.positions.get(place) == offset < ends[place]
            if is_stuck and self.client.leader(*place) == leader and place not in self._refused:
                what = f"{leader} has records of {place} from {offset} to {ends[place]}"
                self.client.fail("fetch-answers-what-was-asked", f"{what}, and returns none")

    def _id(self, topic: str) -> bytes:
        known = self.client.topics.get(topic)
        return known.id if known is not None else k.NO_ID

    def _fetched(
        self,
        leader: str,
        session: SessionOfClient,
        wanted: dict[Place, int],
        answer: k.FetchResponse | None,
        *,
        is_odd: bool,
    ) -> None:
        if self.is_stopped:
            return
        if answer is None or answer.error_code:
            if answer is not None:
                self._judge(answer.error_code, f"fetch from {leader}")
            self._sessions.pop(leader, None)
            self._wait([topic for topic, _ in wanted])
            return
        if is_odd and session.epoch > 0:
            self.client.fail("session-epoch-counts", f"{leader} takes a fetch of another epoch")
        if self._has_sessions:
            session.id = answer.session_id
            session.epoch = session.epoch + 1 if answer.session_id else 0
        refused, answered = list[str](), dict[Place, None]()
        self._refused.clear()
        for each in answer.responses:
            topic = each.topic or self.client.topic_of(each.topic_id) or ""
            for part in each.partitions:
                place = (topic, part.partition_index)
                answered[place] = None
                if place not in wanted:
                    what = f"{leader} answers for {place}, which nobody asks for"
                    self.client.fail("fetch-answers-what-was-asked", what)
                if self._take(place, wanted.get(place, 0), part):
                    refused.append(topic)
                    self._refused[place] = None
        if not session.id and wanted.keys() - answered.keys():
            what = f"{leader} leaves out {wanted.keys() - answered.keys()}"
            self.client.fail("fetch-answers-what-was-asked", what)
        if refused:
            self._wait(refused)
        else:
            self.client.later(1_000 if answered else 20_000, self.go_on)

    def _take(self, place: Place, asked: int, part: k.FetchResponsePartitionData) -> bool:
        """Take in the records of a partition; returns whether it was refused."""
        topic, index = place
        name = partition_name(self.client.cluster, topic, index)
        self._judge(part.error_code, f"fetch of {topic}/{name}")
        if self.positions.get(place) != asked:
            return False  # It is no longer read, or from another offset.
        if part.error_code == Code.OFFSET_OUT_OF_RANGE:
            self.positions[place] = None
            return True
        if part.error_code:
            return True
        is_compacted = topic in self._compacted
        at = ReadPosition(topic, name, asked, part.high_watermark, is_compacted)
        records: Any = part.records or b""
        data = b"".join(records) if isinstance(records, list) else records
        try:
            for header, found in read_batches(data):
                self._rules.read(self.client.name, at, header)
                for offset, value in decoded(found, header.base_offset):
                    if offset >= asked:
                        self._record(topic, name, offset, value)
                at.offset = header.base_offset + header.last + 1
        except BadBatch as error:
            self.client.fail("no-silent-corruption", f"{topic}/{name} at {at.offset}: {error}")
        self.positions[place] = at.offset
        self._took(place, at.offset)
        return False

    @property
    def _compacted(self) -> list[str]:
        found: list[str] = self.client.config.get("compacted", [])
        return found

    def _record(self, topic: str, name: str, offset: int, value: bytes) -> None:
        number, place = number_of(value), f"{topic}/{name} at {offset}"
        if number is None or number >= len(self._history.sent):
            self.client.fail("no-silent-corruption", f"{place} holds {value[:40]!r}")
            return
        sent = self._history.sent[number]
        if (sent.topic, sent.partition) != (topic, name):
            self.client.fail("no-invention", f"{place} holds what was sent elsewhere")
        self._history.reads += 1
        self.read[topic, name, offset] = number
        self._rules.record(self.client.name, (topic, name, offset), number)
