"""A hostile client, which is one of the faults, and must not affect other clients.

Brokers must refuse all its batches: some have a sound header and a bad body, some a false header,
and some the id and sequences of another producer, read from the log. The client also sends more
requests than it receives answers, fills a group with members, and settles records of other members.
The hostile client knows only what every client can know, and the ends of logs. Its random numbers
are separate, so plans without a hostile client stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from pymq.client.router import Call, Router
from pymq.core import message as msg
from pymq.core.batch import columns
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import HEADER_SIZE, Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import BEGIN, Message, Produced
from pymq.core.types import AckMode
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation.driver import SimDriver
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import SECOND, WALL_MS, mix

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

NAME = "hostile"
ACTS = "body lie lie numbers numbers numbers fetch find join settle odd".split()
PATIENCE_MS = 2_000
YEAR_MS = 365 * 24 * 3600 * 1000
GREEDY_BYTES = (1 << 31) - 1
FLOOD = 20  # number of fetches at once, and of members
FAR = 1 << 62


def draw_hostile(seed: int, duration_us: int) -> list[list[object]]:
    """Draw the acts of a hostile client, as faults of a plan: ``[time, "hostile", act, dice]``."""
    rng, at = Random(mix(seed, NAME)), SECOND
    pause = rng.choice((0.05, 0.2, 0.5))
    found: list[list[object]] = []
    while (at := at + round(rng.expovariate(1 / pause) * SECOND)) < duration_us:
        found.append([at, NAME, rng.choice(ACTS), rng.getrandbits(32)])
    return found


class RefusedRequest(Checker):
    """The rule that brokers neither append nor acknowledge batches that they must refuse."""

    rules = ("refused-is-absent", "refused-is-not-acked")
    receives = (Produced,)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self.batches: dict[int, str] = {}  # the defect of each batch, by CRC
        self.asked: dict[tuple[str, int], int] = {}  # CRCs, by the client's address and request

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        wrong = self.batches.get(header.batch_crc)
        if wrong is None:
            return
        if header.producer_id >= 0 and self._may_be_new(log):
            del self.batches[header.batch_crc]
            return
        self.fail("refused-is-absent", f"{log.node} has written {wrong} to {log.block}")

    def _may_be_new(self, log: ReplicaLog) -> bool:
        """Whether a producer's records and sequences may be lost, as weak settings allow."""
        return self.watch.history(log.block).losses > 0

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, Produced) and message.error is None and process.name == NAME:
            wrong = self.batches.get(self.asked.get((peer, message.id), -1))
            if wrong is not None:
                self.fail("refused-is-not-acked", f"{source} has acknowledged {wrong}")


class Hostile:
    """A client that sends invalid requests, in a simulated process of its own."""

    def __init__(self, cluster: Cluster, topics: list[str], groups: list[str]) -> None:
        assert cluster.watch is not None
        self._cluster = cluster
        self._topics = topics
        self._groups = groups or ["g"]
        self._host: ClientHost = cluster.add_client(NAME)
        self._host.start()
        self._driver = SimDriver(self._host, 0.0)
        self._address = f"{NAME}.1"
        loop = self._driver.loop
        self._router = Router(
            self._address, list(cluster.zkservers), lambda: loop.touch(self._address)
        )
        with self._driver as turning:
            turning.add(self._address, self._router)
        self.refused = RefusedRequest(cluster.watch)
        cluster.watch.add(self.refused)
        self._host.on_receive.setdefault(Produced, []).append(self.refused.on_receive)
        self.acts = 0

    def do(self, act: str, dice: int) -> None:
        """Do one hostile act."""
        rng = Random(dice)
        topic = rng.choice(self._topics)
        with self._driver as loop:
            self._router.refresh(topic)
            known = self._router.metadata.topics.get(topic)
            place = rng.choice(known.partitions).partition if known and known.partitions else "0"
            found = self._router.leader(topic, place)
            if found is not None and found.leader is not None:
                self.acts += 1
                getattr(self, f"_{act}")(rng, topic, place, found.leader)
            loop.touch(self._address)

    def _ask(self, peer: str, make: Callable[[int], Message]) -> Call:
        now = self._driver.loop.clock()
        return self._router.call(make, now, PATIENCE_MS, peer)

    # --- its batches ------------------------------------------------------------------------------

    def _produce(self, topic: str, place: str, peer: str, batch: EncodedBatch, what: str) -> None:
        # Parse the bytes like those from a network, so that only the header is checked.
        batch = EncodedBatch.parse(bytes(batch.head) + bytes(batch.body))
        self.refused.batches[batch.header.batch_crc] = what
        call = self._ask(
            peer, lambda request: msg.Produce(request, topic, place, AckMode.LEADER, batch)
        )
        assert isinstance(call.message, msg.Produce)
        self.refused.asked[self._address, call.message.id] = batch.header.batch_crc

    def _wall_ms(self) -> int:
        return WALL_MS + self._cluster.world.now // 1000

    def _batch(self, rng: Random) -> EncodedBatch:
        """Return a sound batch with unique content."""
        values = [rng.randbytes(12) for _ in range(rng.randint(1, 5))]
        return EncodedBatch.encode(values, timestamp_ms=self._wall_ms())

    def _body(self, rng: Random, topic: str, place: str, peer: str) -> None:
        batch = self._batch(rng)
        body = bytearray(batch.body)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        broken = EncodedBatch(batch.head, bytes(body), batch.header)
        self._produce(topic, place, peer, broken, "a batch whose body has another CRC")

    def _lie(self, rng: Random, topic: str, place: str, peer: str) -> None:
        what = rng.choice([*LIES])
        batch = self._batch(rng)
        sealed = EncodedBatch.sealed(LIES[what](batch.header), batch.body)
        self._produce(topic, place, peer, sealed, f"a batch that lies: {what}")

    def _numbers(self, rng: Random, topic: str, place: str, peer: str) -> None:
        """Send a batch under used sequences, or under sequences that no producer may use now."""

        def then(call: Call) -> None:
            if isinstance(call.result, msg.Fetched) and call.error is None:
                headers = [batch.header for batch in split(call.result.data)]
                # The partition expects sequence 0 from each producer that it does not know.
                found = [h for h in headers if h.producer_id >= 0 and h.base_sequence > 0]
                if found:
                    batch, what = self._renumbered(rng, found[-1])
                    self._produce(topic, place, peer, batch, what)

        assert self._cluster.watch is not None
        known = self._cluster.watch.history_of(topic, place)
        offset = max(0, known.end() - 10) if known is not None else BEGIN
        call = self._ask(peer, lambda r: msg.Fetch(r, topic, place, offset, 1 << 20, 0))
        call.then(lambda: then(call))

    def _renumbered(self, rng: Random, other: Header) -> tuple[EncodedBatch, str]:
        """Return a batch under the id of another producer, and a description of its defect."""
        kind = rng.choice(["repeat", "repeat", "gap", "epoch"])
        sequence, epoch = other.base_sequence, other.producer_epoch
        if kind != "repeat":
            sequence += 1 << 40
        if kind == "epoch":
            epoch += 1 << 31
        batch = EncodedBatch.encode(
            [rng.randbytes(12) for _ in range(other.count)],
            timestamp_ms=self._wall_ms(),
            producer_id=other.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return batch, f"a batch under another's numbers ({kind} of {other.base_sequence})"

    # --- its requests -----------------------------------------------------------------------------

    def _fetch(self, rng: Random, topic: str, place: str, peer: str) -> None:
        for _ in range(FLOOD):
            self._ask(peer, lambda r: msg.Fetch(r, topic, place, BEGIN, GREEDY_BYTES, 30_000))

    def _find(self, rng: Random, topic: str, place: str, peer: str) -> None:
        time = rng.choice([-FAR, -1, FAR])
        self._ask(peer, lambda r: msg.FindOffset(r, topic, place, time))

    def _odd(self, rng: Random, topic: str, place: str, peer: str) -> None:
        offset, size = rng.choice([FAR, -7, -FAR]), rng.choice([-1, 0, FAR])
        wait = rng.choice([-1, FAR])
        self._ask(peer, lambda r: msg.Fetch(r, topic, place, offset, size, wait))
        self._ask(peer, lambda r: msg.GetSequence(r, topic, place, -FAR))

    def _join(self, rng: Random, topic: str, place: str, peer: str) -> None:
        """Join many members to the client's own group; one of the brokers coordinates it."""
        for number in range(FLOOD):
            join = partial(
                msg.Join,
                group=NAME,
                member=f"{NAME}-{number}",
                topic=topic,
                partitions=(place,),
                assignor="sticky",
                session_ms=1_000,
                ack_wait_ms=1_000,
                max_deliver=0,
                reset=BEGIN,
            )
            for broker in self._cluster.brokers:
                self._ask(broker, join)

    def _settle(self, rng: Random, topic: str, place: str, peer: str) -> None:
        """Settle records of groups to which the client does not belong."""
        group, start = rng.choice(self._groups), rng.randrange(50)
        ranges = ((place, (start, start + rng.choice([1, 10, FAR]))),)
        member = f"{NAME}-{rng.randrange(FLOOD)}"
        for broker in self._cluster.brokers:
            self._ask(broker, lambda r: msg.Settle(r, group, member, acks=ranges))


def _with(**fields: Any) -> Callable[[Header], Header]:
    return lambda header: header._replace(**fields)


LIES: dict[str, Callable[[Header], Header]] = {
    "more records than there are": lambda h: h._replace(count=h.count + 1, span=h.count + 1),
    "more offsets than records": lambda h: h._replace(span=h.count + 5),
    "no records": _with(count=0, span=1),
    "compressed, by a codec": _with(attributes=2),
    "a codec that there is not": _with(attributes=7),
    "control": _with(attributes=0b1000),
    "compacted": _with(attributes=0b10000),
    "columns that are not there": _with(columns=columns.VALUES | columns.KEYS),
    "no values": _with(columns=columns.KEYS),
    "a body of a format that there is not": _with(body_format=7),
    "from long before": _with(first_timestamp=-5, max_timestamp=-5),
    "from far ahead": lambda h: h._replace(
        first_timestamp=h.first_timestamp + YEAR_MS, max_timestamp=h.max_timestamp + YEAR_MS
    ),
    "later than its largest time": lambda h: h._replace(max_timestamp=h.first_timestamp - 1),
    "a bomb": lambda h: h._replace(attributes=1, raw_length=(64 << 20) - HEADER_SIZE),
}
