"""Child processes of the acceptance tests.

This module is run as a script, with the name of a program and a folder.

A process that is killed repeatedly would spend most of its time on imports. So the nursery, which
has imported all modules, forks a child for each start.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count

import pymq
from pymq.client.producer.producer import Producer
from pymq.errors import CommitFailed

PARTITIONS = 3
MILLION_PARTITIONS = 4


def tell(*words: object) -> None:
    """Print a line to the parent in one write, so that a kill leaves whole lines."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


# --- a million records ----------------------------------------------------------------------------


def million_key(number: int) -> bytes | None:
    return b"key-%d" % (number % 997) if number % 4 == 0 else None


def million_headers(number: int) -> list[tuple[str, bytes]] | None:
    return [("number", b"%d" % number), ("odd", b"")] if number % 16 == 3 else None


def million_write(folder: str, how_many: str) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("orders", partitions=MILLION_PARTITIONS)
        with mq.producer() as producer:
            send = producer.send
            for number in range(int(how_many)):
                value = b"%0100d" % number
                if number % 4 == 0:
                    send("orders", value, key=million_key(number))
                elif number % 16 == 3:
                    send("orders", value, headers=million_headers(number))
                else:
                    send("orders", value)


def million_read(folder: str, how_many: str) -> None:
    """Read everything back, once, and compare."""
    wanted = int(how_many)
    seen = bytearray(wanted)
    last = dict.fromkeys(map(str, range(MILLION_PARTITIONS)), -1)
    ends = dict.fromkeys(last, 0)
    homes: dict[bytes, str] = {}
    with pymq.open(folder) as mq, mq.consumer("orders", mode="psb") as consumer:
        left = wanted
        while left:
            batches = consumer.poll_batches(timeout=5)
            assert batches, f"{left} records are missing"
            for batch in batches:
                partition = batch.partition
                assert list(batch.offsets) == list(
                    range(ends[partition], ends[partition] + len(batch))
                )
                ends[partition] += len(batch)
                numbers = list(map(int, batch.values))
                assert [last[partition], *numbers] == sorted({last[partition], *numbers})
                last[partition] = numbers[-1]
                for number in numbers:
                    seen[number] += 1
                assert list(batch.keys) == list(map(million_key, numbers))
                wanted_headers = [tuple(million_headers(number) or ()) for number in numbers]
                assert list(batch.headers) == wanted_headers
                for key in set(batch.keys) - {None}:
                    assert key is not None
                    assert homes.setdefault(key, partition) == partition
                left -= len(batch)
        assert seen.count(1) == wanted
        assert not consumer.poll(timeout=0)
    tell("fine", sum(ends.values()), min(ends.values()) > 0, len(homes))


# --- processes that are killed --------------------------------------------------------------------


def produce(folder: str, seed: str) -> None:
    """Produce under a name, continuing where the last process stopped.

    Print the acknowledgements.
    """
    dice = random.Random(seed)
    with pymq.open(folder) as mq:
        producer = mq.producer(producer_id="phoenix", linger_ms=0)
        following = [producer.next_sequence("t", p) for p in range(PARTITIONS)]
        tell("open")
        while True:
            _send_some(producer, following, dice)


def _send_some(producer: Producer, following: list[int], dice: random.Random) -> None:
    sent = []
    for _ in range(dice.randrange(1, 12)):
        partition = dice.randrange(PARTITIONS)
        number = following[partition]
        following[partition] += 1
        value = payload(partition, number)
        sent.append((partition, number, producer.send("t", value, partition=partition)))
    for partition, number, delivery in sent:
        tell("ack", partition, delivery.result(timeout=30).offset, number)


def payload(partition: int, number: int) -> bytes:
    """Return the value of record *number* of a partition; some are long, so that blocks fill up."""
    return b"%d %d " % (partition, number) + b"." * (300 * (number % 3))


def change(folder: str, seed: str) -> None:
    """Produce while the partitions change from one ack mode to the next."""
    dice = random.Random(seed)
    with pymq.open(folder) as mq:
        producer = mq.producer(producer_id="phoenix", linger_ms=0)
        following = [producer.next_sequence("t", p) for p in range(PARTITIONS)]
        tell("open")
        while True:
            _send_some(producer, following, dice)
            acks = dice.choice([pymq.AckMode.RAFT, pymq.AckMode.LEADER])
            mq.set_partition_state("t", dice.randrange(PARTITIONS), acks=acks)


def create(folder: str, seed: str) -> None:
    """Create topics, send a record to each, and delete some of them."""
    dice = random.Random(seed)
    with pymq.open(folder) as mq:
        producer = mq.producer(linger_ms=0)
        tell("open")
        for number in count(len(mq.topics())):
            name = f"{seed}-{number}"
            tell("making", name)
            mq.create_topic(name, partitions=dice.randrange(1, 4), fsync="always")
            tell("made", name)
            producer.send(name, name.encode()).result(timeout=30)
            tell("ack", name)
            if dice.random() < 0.2:
                tell("deleting", name)
                mq.delete_topic(name)
                tell("deleted", name)


def consume(folder: str, seed: str) -> None:
    """Consume in a group.

    Print the records before their acknowledgement, and the commits afterwards.
    """
    dice = random.Random(seed)
    with (
        pymq.open(folder) as mq,
        mq.consumer("t", group="g", ack_wait_s=0.05, max_deliver=0) as consumer,
    ):
        tell("open")
        while True:
            records = consumer.poll(dice.randrange(1, 20), timeout=0.1)
            for record in records:
                tell("got", record.partition, record.offset, record.value.decode()[:20])
            done = records[: dice.randrange(len(records) + 1)]
            for record in done:
                tell("acking", record.partition, record.offset)
            consumer.ack(done)
            try:
                consumer.commit(timeout=30)
            except CommitFailed:
                # The leases expired because the machine is slow, so the records are delivered
                # again.
                continue
            for record in done:
                tell("committed", record.partition, record.offset)


PROGRAMS: dict[str, Callable[[str, str], None]] = {
    "million_write": million_write,
    "million_read": million_read,
    "produce": produce,
    "change": change,
    "create": create,
    "consume": consume,
}


def nursery() -> None:
    """Fork a child for each line ``program folder seed``, and kill it at the next line."""
    for line in sys.stdin:
        program, folder, seed = line.split()
        child = os.fork()
        if not child:
            try:
                PROGRAMS[program](folder, seed)
            except BaseException:
                tell("failed", repr(traceback.format_exc()))
            os._exit(1)
        sys.stdin.readline()
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        tell("dead", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        import pymq.nodes.embedded  # imported here, because every child needs it

        nursery()
    else:
        PROGRAMS[sys.argv[1]](*sys.argv[2:])
