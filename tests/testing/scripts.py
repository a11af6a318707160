"""What applications do, in a way that lives with a broker that dies, for crash-point tests."""

from __future__ import annotations

from pymq.errors import PymqError
from pymq.testing import Cluster


def produce(cluster: Cluster) -> None:
    """Five records, each waited for."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft", exist_ok=True)
    acked = cluster.notes["acked"] = {}
    with mq.producer() as producer:
        for number in range(5):
            value = b"%d" % number
            acked[producer.send("t", value).result().offset] = value


def roll(cluster: Cluster) -> None:
    """Enough for several blocks, in batches."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft", exist_ok=True, block_bytes=4096)
    acked = cluster.notes["acked"] = {}
    with mq.producer() as producer:
        for number in range(4):
            values = [b"%d " % (number * 10 + i) + bytes(300) for i in range(10)]
            for found, value in zip(producer.send_many("t", values).result(), values, strict=True):
                acked[found.offset] = value


def change_modes(cluster: Cluster) -> None:
    """From one ack mode to the other and back, with records in between."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft", exist_ok=True, fsync="always")
    acked = cluster.notes["acked"] = {}
    with mq.producer() as producer:
        for number, acks in enumerate(["leader", "raft", "leader"]):
            value = b"%d before" % number
            acked[producer.send("t", value).result().offset] = value
            _insist(mq.set_partition_state, "t", "0", acks)
            value = b"%d after" % number
            acked[producer.send("t", value).result().offset] = value


def _insist(ask: object, *arguments: object) -> None:
    """Ask again what was not answered."""
    assert callable(ask)
    for _ in range(5):
        try:
            ask(*arguments)
        except PymqError as error:
            if not error.retriable:
                raise
        else:
            return


def retain(cluster: Cluster) -> None:
    """More than retention keeps."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft", exist_ok=True, block_bytes=4096, retention_bytes=8192)
    acked = cluster.notes["acked"] = {}
    with mq.producer() as producer:
        for number in range(6):
            values = [b"%d " % (number * 10 + i) + bytes(500) for i in range(10)]
            for found, value in zip(producer.send_many("t", values).result(), values, strict=True):
                acked[found.offset] = value
    cluster.run(seconds=12)


def commit(cluster: Cluster) -> None:
    """A group works through a few records; whoever gets no answer begins anew."""
    produce(cluster)
    mq = cluster.client()
    done = cluster.notes["done"] = {}
    for _ in range(8):
        if len(done) == 5:
            return
        with mq.consumer("t", group="g") as consumer:
            for record in consumer.poll(timeout=3.0):
                consumer.ack(record)
                done[record.offset] = record.value
            try:
                consumer.commit(timeout=3.0)
            except PymqError:
                continue
    raise AssertionError(f"only {sorted(done)} were consumed")


def reopen(cluster: Cluster) -> None:
    """An orderly restart in the middle."""
    produce(cluster)
    cluster.stop("broker-0")
    cluster.restart("broker-0")
    mq = cluster.client()
    with mq.producer() as producer:
        cluster.notes["acked"][producer.send("t", b"last").result().offset] = b"last"


def all_is_there(cluster: Cluster) -> None:
    """Everything acknowledged can be read, at its offset; and nothing else but what was sent."""
    mq = cluster.client()
    with mq.consumer("t", mode="psb") as consumer:
        found = {record.offset: record.value for record in consumer.until_end()}
    acked = cluster.notes["acked"]
    start = min(found, default=0)
    missing = {o: v for o, v in acked.items() if o >= start and found.get(o) != v}
    assert not missing, f"{missing} were acknowledged, {found} is there"
    assert len(set(found.values())) == len(found), f"something is there twice: {found}"
