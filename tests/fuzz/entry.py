"""A hostile client with the right to write sends forged batches between those of another client."""

from __future__ import annotations

from random import Random

from pymq.client.admin.appends import append
from pymq.core.batch.header import parse_header
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, PymqError
from pymq.testing import Cluster
from pymq.testing.simulation.world import WALL_MS
from tests.fuzz.damage import scramble
from tests.fuzz.targets import forged, sound_batches

BATCHES = 12  # batches of the hostile client


class Entry:
    """A broker on a simulated disk, which is killed in the end and restarted.

    The other client's acknowledged records are there afterwards, and every reader can read all
    accepted batches.
    """

    inputs = BATCHES

    def __init__(self) -> None:
        self.batches = sound_batches()

    def attempt(self, rng: Random) -> bool:
        """Run one input; returns whether any forged batch was accepted."""
        with Cluster(brokers=1, seed=rng.randrange(1 << 30)) as cluster:
            mq = cluster.client()
            mq.create_topic("t", fsync="always")
            topic = mq.questions.topic_metadata("t")
            told: dict[int, bytes] = {}
            taken = 0
            for number in range(BATCHES):
                try:
                    append(mq.questions, topic, {"0": self._batch(rng)}, 10.0)
                    taken += 1
                except PymqError:
                    pass  # the batch may be refused for any reason
                mine = EncodedBatch.encode([b"mine %d" % number], timestamp_ms=WALL_MS)
                told[append(mq.questions, topic, {"0": mine}, 10.0)["0"]] = b"mine %d" % number
            cluster.crash("broker-0")
            cluster.restart("broker-0")
            cluster.run(seconds=2)
            with mq.consumer("t", mode="psb", offset="begin") as consumer:
                read = {record.offset: record.value for record in consumer.until_end()}
            assert told.items() <= read.items(), "an acknowledged record of another is lost"
        return taken > 0

    def _batch(self, rng: Random) -> EncodedBatch:
        """Return a batch that a broker's decoder accepts: its header is sound, and contains the
        body's length.
        """
        batch = rng.choice(self.batches)
        header = batch.header._replace(producer_id=-1, base_sequence=-1)
        batch = EncodedBatch.sealed(header, batch.body)
        data = bytes(batch.head) + bytes(batch.body)
        if rng.random() < 0.3:
            head, body = data[: len(batch.head)], scramble(rng, bytes(batch.body), ())
            data = head + body[: len(batch.body)].ljust(len(batch.body), b"\0")
        elif rng.random() < 0.8:
            data = forged(rng, batch, ())
        try:
            parsed = parse_header(data)
        except CorruptBatch:
            return batch
        return EncodedBatch.parse(data) if parsed.length == len(data) else batch
