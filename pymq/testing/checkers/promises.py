"""Rules about answers to clients: acknowledgements and fetched records."""

from __future__ import annotations

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import COMPACTED, Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Copied, Copy, Fetched, Message, Produce, Produced
from pymq.core.types import AckMode, TopicPartition
from pymq.core.values import define
from pymq.errors import PymqError
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.checkers.immutable import Immutable
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost, ClientHost
from pymq.testing.simulation.process import Process

# Topic, partition, and the id that distinguishes topics of the same name.
Name = tuple[str, str, object]


@define
class AskedRequest:
    """A batch without an answer so far."""

    topic: str
    partition: str
    acks: AckMode
    header: Header
    name: Name
    floor: int  # the batch must be written at or after this offset


class AnswerRules(Checker):
    """An acknowledged batch is in the log, after all batches that were acknowledged before its
    sending.
    """

    rules = (
        "acked-is-committed",
        "acked-is-written",
        "synced-before-acked",
        "durable-before-acked",
        "realtime-order",
    )
    sends = (Produce, Produced, Copy, Copied)
    receives = (Produced,)

    def __init__(self, watch: StoreWatch, immutable: Immutable) -> None:
        super().__init__(watch)
        self._sent = immutable.sent
        self._asked: dict[tuple[str, int], AskedRequest] = {}
        # batches without a producer id, by CRC, because they may be copied
        self._batches: dict[int, EncodedBatch] = {}
        # batches that a broker has acknowledged, by place
        self._placed: dict[tuple[str, str, int], EncodedBatch] = {}
        # Copy requests, each with the CRCs of its copies
        self._copies: dict[tuple[str, int], tuple[Copy, list[int]]] = {}
        # by partition: the acknowledged end, and how often the partition had lost records then
        self._ends: dict[Name, tuple[int, int]] = {}
        # lowest allowed offset of each batch, by CRC
        self._floors: dict[tuple[Name, int], tuple[int, int]] = {}

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, Produce):
            # A broker's gate sends the batches of Kafka's clients.
            if isinstance(process, ClientHost) or source == f"{process.name}.kafka":
                self._asked[source, message.id] = self.expect(
                    message.topic, message.partition, message.acks, message.batch
                )
        elif isinstance(message, Produced) and isinstance(process, BrokerHost):
            asked = self._asked.get((peer, message.id))
            if asked is not None and message.error is None:
                self._check_answer(process, peer, asked, message)
        elif isinstance(message, Copy) and isinstance(process, ClientHost):
            self._copies[source, message.id] = message, self._copy(message)
        elif isinstance(message, Copied) and isinstance(process, BrokerHost):
            copy = self._copies.get((peer, message.id))
            if copy is not None and message.error is None:
                self._check_copied(process, peer, *copy)

    def expect(
        self, topic: str, partition: str, acks: AckMode, batch: EncodedBatch
    ) -> AskedRequest:
        """Note a batch that a client sends, for the first time or again."""
        header, name = batch.header, self._name(topic, partition)
        self._sent[header.batch_crc] = header.count
        if header.producer_id < 0:
            self._batches[header.batch_crc] = batch
        floor, losses = self._ends.get(name, (0, 0))
        # For a batch that is sent again, the time of its first sending counts.
        floor, losses = self._floors.setdefault((name, header.batch_crc), (floor, losses))
        history = self.watch.history_of(topic, partition)
        if history is not None and history.losses != losses:
            floor = 0
        return AskedRequest(topic, partition, acks, header, name, floor)

    def _copy(self, message: Copy) -> list[int]:
        """Note the batches of a client's copy request; return their CRCs."""
        sequence, found = message.base_sequence, []
        for piece in message.pieces:
            batch = self._placed.get((message.origin, piece.partition, piece.offset))
            if batch is not None and len(batch) == piece.records:
                copy = batch.renamed(message.producer_id, message.producer_epoch, sequence)
                self._sent[copy.header.batch_crc] = piece.records
                found.append(copy.header.batch_crc)
            sequence += piece.records
        return found

    def _check_copied(self, host: BrokerHost, peer: str, asked: Copy, crcs: list[int]) -> None:
        """Check that copied batches are as durable as produced ones."""
        looked = host.looks.get(TopicPartition(asked.topic, asked.partition))
        log = self.watch.ledger.log(host.name, looked.block) if looked is not None else None
        if looked is None or log is None:
            return
        place = f"{asked.topic}/{asked.partition}"
        if asked.producer_id not in (header.producer_id for header in log.headers):
            return  # the batch was copied before, into a block that has been sealed since
        missing = set(crcs).difference(header.batch_crc for header in log.headers)
        starts_here = log.headers[0].base_offset == 0
        if missing and starts_here:
            self.fail("acked-is-written", f"{host.name} tells {peer} that its copy is in {place}")
        if asked.acks is AckMode.RAFT and looked.is_strict:
            for index, header in enumerate(log.headers):
                if header.batch_crc in crcs:
                    self._check_durable(host, log, index, looked.majority, place)

    def _name(self, topic: str, partition: str) -> Name:
        return topic, partition, self.watch.indexes.get((topic, partition))

    def _check_answer(
        self, host: BrokerHost, peer: str, asked: AskedRequest, answer: Produced
    ) -> None:
        """A broker acknowledges only written batches; if requested, only synced batches."""
        key = self.watch.indexes.get((asked.topic, asked.partition))
        if key is None:
            return
        offset = answer.base_offset
        place = f"{asked.topic}/{asked.partition} at {offset}"
        log = self.watch.ledger.holding(host.name, *key, offset)
        if log is None and answer.duplicate:
            return  # another broker may hold the block of the batch; the rule for clients checks it
        index = log.batch_at(offset) if log is not None else 0
        if log is None or log.headers[index].batch_crc != asked.header.batch_crc:
            self.fail("acked-is-written", f"{host.name} tells {peer} that its batch is in {place}")
        elif asked.acks is AckMode.RAFT:
            looked = host.looks.get(TopicPartition(asked.topic, asked.partition))
            if looked is not None and looked.is_strict and log.block == looked.block:
                self._check_durable(host, log, index, looked.majority, place)

    def _check_durable(
        self, host: BrokerHost, log: ReplicaLog, index: int, majority: int, place: str
    ) -> None:
        """Check that the batch is on as many disks as its ack mode requires at this moment."""
        end, chain = log.ends[index], log.chains[index]
        if end > log.synced_end:
            self.fail("synced-before-acked", f"{host.name} answers for {place} too early")
        holders = self.watch.ledger.holders(log.block, end, chain)
        if len(holders) < majority:
            self.fail(
                "durable-before-acked",
                f"{host.name} answers for {place}, which is durable on {holders} only; "
                f"{majority} are needed",
            )

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(message, Produced) or not isinstance(process, ClientHost):
            return
        asked = self._asked.get((peer, message.id))
        if asked is not None and message.error is None and asked.header.producer_id < 0:
            batch = self._batches[asked.header.batch_crc]
            self._placed[asked.topic, asked.partition, message.base_offset] = batch
        if asked is not None and message.error is None:
            self.heard(asked, message.base_offset, peer)

    def heard(self, asked: AskedRequest, base_offset: int, peer: str) -> None:
        """Check the offset that a client is told for its batch."""
        if asked.acks is not AckMode.RAFT:
            return  # the loss of the leader may lose records that no other broker has
        history = self.watch.history_of(asked.topic, asked.partition)
        if history is None:
            return
        place = f"{asked.topic}/{asked.partition} at {base_offset}"
        known = history.batch_at(base_offset)
        if known is None or known.batch_crc != asked.header.batch_crc:
            if not history.losses:
                self.fail("acked-is-committed", f"{peer} is told that its batch is in {place}")
        elif known.base_offset != base_offset:
            self.fail("acked-is-committed", f"{peer} is told the wrong offset: {place}")
        name = self._name(asked.topic, asked.partition)
        if base_offset < asked.floor and name == asked.name and not history.losses:
            self.fail(
                "realtime-order",
                f"{place} was sent after offset {asked.floor - 1} had been acknowledged",
            )
        end = base_offset + asked.header.span
        if end > self._ends.get(name, (0, 0))[0] or self._ends[name][1] != history.losses:
            self._ends[name] = (end, history.losses)


class ReadRules(Checker):
    """A consumer gets only visible, undamaged records, as they were written."""

    rules = ("no-dirty-read", "immutable-offset", "no-gap-in-reads", "shown-when-committed")
    sends = (Fetched,)
    receives = (Fetched,)

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        """A replica serves no record beyond its own high watermark."""
        if not isinstance(message, Fetched) or not isinstance(process, BrokerHost):
            return
        high = probe.high_watermark(process.broker, message.topic, message.partition)
        if high is None or message.error is not None or not message.data:
            return
        try:
            *_, last = (batch.header.base_offset for batch in split(message.data))
        except PymqError:
            return  # the client itself detects this
        if last >= high:
            place = f"{message.topic}/{message.partition} at {last}"
            self.fail(
                "shown-when-committed", f"{peer} gets {place}, beyond the high watermark {high}"
            )

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(message, Fetched) or not isinstance(process, ClientHost):
            return
        if not message.data or message.error is not None:
            return
        history = self.watch.history_of(message.topic, message.partition)
        place = f"{message.topic}/{message.partition} at {message.offset}"
        try:
            batches = [batch.verify() for batch in split(message.data)]
        except PymqError:
            return  # the client itself detects this, and raises the error
        following = message.offset
        for batch in batches:
            header = batch.header
            if header.base_offset > following and not header.attributes & COMPACTED:
                self.fail("no-gap-in-reads", f"{peer} is given {header.base_offset} for {place}")
            following = header.end_offset
            known = history.batch_at(header.base_offset) if history is not None else None
            if history is None or history.losses:
                continue
            if known is None:
                self.fail("no-dirty-read", f"{peer} is given {place}, which is not visible")
            elif known.batch_crc != header.batch_crc and not header.attributes & COMPACTED:
                self.fail("immutable-offset", f"{peer} is given another batch in {place}")
