"""Very many producers write to one partition of three replicas, which continues to roll."""

from __future__ import annotations

from random import Random

import pytest

from pymq.client.client import Client
from pymq.client.option_types import Acks
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import PAST_BYTES
from pymq.core.types import AckMode
from pymq.testing import Cluster
from pymq.testing.simulation.nodes import ZkserverHost

PRODUCERS = 10_000
AT_ONCE = 500


def produce(
    mq: Client, producers: list[int], sequence: int, wall_ms: int
) -> tuple[list[int], list[bool]]:
    """Send one record of each producer.

    Returns the offsets, and whether the records were duplicates.
    """
    offsets, repeats = [], []
    for start in range(0, len(producers), AT_ONCE):
        calls = []
        for producer in producers[start : start + AT_ONCE]:
            batch = EncodedBatch.encode(
                [b"%d" % sequence],
                timestamp_ms=wall_ms,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            )

            def make(request: int, batch: EncodedBatch = batch) -> msg.Message:
                return msg.Produce(request, "t", "0", AckMode.RAFT, batch)

            calls.append((mq.questions.begin("t", "0", make), make))
        for call, make in calls:
            answer = mq.questions.end(call) if call is not None else None
            if not isinstance(answer, msg.Produced):
                answer = mq.questions.ask_leader("t", "0", make)
            assert isinstance(answer, msg.Produced)
            offsets.append(answer.base_offset)
            repeats.append(answer.duplicate)
    return offsets, repeats


@pytest.mark.timeout(300)
@pytest.mark.parametrize("acks", [pytest.param("leader", marks=pytest.mark.slow), "raft"])
def test_a_partition_with_ten_thousand_producers_rolls(acks: Acks) -> None:
    """Each producer continues, and new replicas, too, recognise repeated batches.

    In an earlier version the table of some 6,500 producers made a node too large for ZooKeeper.
    """
    rng = Random(1)
    producers = [rng.getrandbits(62) for _ in range(PRODUCERS)]
    with Cluster(brokers=4, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=1, replicas=3, acks=acks)
        wall_ms = mq._wall_ms()
        first, _ = produce(mq, producers, 0, wall_ms)
        before = mq.describe_topic("t").partitions[0]
        moved = [f"broker-{n}" for n in range(4) if f"broker-{n}" != before.replicas[0]]
        mq.reassign("t", 0, moved)
        some = producers[:: PRODUCERS // 50]
        again, were_there = produce(mq, some, 0, wall_ms)
        assert again == first[:: PRODUCERS // 50]
        assert all(were_there)
        _, were_there = produce(mq, some, 1, wall_ms)
        assert not any(were_there)
        after = mq.describe_topic("t").partitions[0]
        assert len(after.blocks) > len(before.blocks)
        assert before.replicas[0] not in after.replicas
        zkserver = cluster.host("zkserver-0")
        assert isinstance(zkserver, ZkserverHost)
        assert zkserver.controller is not None
        opened = zkserver.controller.image.partition("t", "0").open_block
        assert 0 < len(opened.past) <= PAST_BYTES
