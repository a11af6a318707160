"""E10: pymq's own cost per record, layer by layer, without syncs of a disk."""

from __future__ import annotations

from benchmarks.embedded import ours
from benchmarks.model import NS, Job, Measures, Part, Side, Stopwatch, random_values

SIZE = 100
COUNT = 200_000
BATCH = 1000


def _client(job: Job) -> Measures:
    import pymq

    count = job.count(COUNT)
    values = random_values(count, SIZE)
    groups = [values[i : i + BATCH] for i in range(0, count, BATCH)]
    found: Measures = {}
    with pymq.open("memory:") as mq:
        for topic in ("warm", ours.TOPIC):  # only the run with the second topic is measured
            mq.create_topic(topic)
            with mq.producer() as producer:
                with Stopwatch() as watch:
                    ours.put_each(producer, groups, False, topic)
                found["send"] = watch.each_ns(count)
                with Stopwatch() as watch:
                    ours.put_many(producer, groups, False, topic)
                found["send_many"] = watch.each_ns(count)
            with mq.consumer(topic, mode="psb") as consumer:
                left = 2 * count
                with Stopwatch() as watch:
                    while left:
                        left -= len(consumer.poll(BATCH))
                found["poll"] = watch.each_ns(2 * count)
            with mq.consumer(topic, mode="psb") as consumer:
                left = 2 * count
                with Stopwatch() as watch:
                    while left:
                        left -= sum([len(batch.values) for batch in consumer.poll_batches()])
                found["poll_batches"] = watch.each_ns(2 * count)
    return found


def _layers(job: Job) -> Measures:
    from pymq.core.batch.batch_sequence import split
    from pymq.core.batch.record import EncodedBatch
    from pymq.core.ready import Append, CreateBlock
    from pymq.core.types import BlockId
    from pymq.store.file.file_store import FileStore

    count = max(4 * BATCH, job.count(COUNT))
    values = random_values(count, SIZE)
    job.warm(3 * count * SIZE)
    groups = [values[i : i + BATCH] for i in range(0, count, BATCH)]
    found: Measures = {}
    store = FileStore(str(job.folder / "store"))
    for number in range(2):  # only the run with the second topic is measured
        block = BlockId("0" * 32, 0, number)
        with Stopwatch() as watch:
            batches = [EncodedBatch.encode(group, timestamp_ms=1) for group in groups]
        found["encode"] = watch.each_ns(count)
        with Stopwatch() as watch:
            stamped = [batch.stamp(i * BATCH, 1, 0) for i, batch in enumerate(batches)]
        found["stamp"] = watch.each_ns(count)
        store.write([CreateBlock(block, 0, "records", "0")])
        store.write([Append(block, stamped[:1], False)])
        with Stopwatch() as watch:
            for batch in stamped[1:]:
                store.write([Append(block, [batch], False)])
        found["append"] = watch.each_ns(count - BATCH)
        data, offset = [], 0
        with Stopwatch() as watch:
            while offset < count:
                data.append(store.read(block, offset, count, 1 << 20))
                for last in split(data[-1]):
                    offset = last.end_offset
        found["read"] = watch.each_ns(count)
        with Stopwatch() as watch:
            for chunk in data:
                for batch in split(chunk):
                    batch.verify()
        found["verify"] = watch.each_ns(count)
        parsed = [batch for chunk in data for batch in split(chunk)]
        with Stopwatch() as watch:
            total = sum([len(batch.values) for batch in parsed])
        found["decode"] = watch.each_ns(count)
        assert total == count
        with Stopwatch() as watch:
            total = sum([len(batch.records()) for batch in parsed])
        found["records"] = watch.each_ns(count)
    store.close()
    return found


CLIENT = ("send", "send_many", "poll", "poll_batches")
LAYERS = ("encode", "stamp", "append", "read", "verify", "decode", "records")
PARTS = (
    Part(
        "E10-own",
        "pymq's own cost a record of 100 B, batches of 1,000",
        (
            Side("pymq client", "memory store", _client),
            Side("pymq layers", "record batch and file store, no sync", _layers),
        ),
        units=dict.fromkeys((*CLIENT, *LAYERS), NS),
    ),
)
