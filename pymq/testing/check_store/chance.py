"""Compares random operations on a store with a plain list."""

from __future__ import annotations

import random

from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    Recovered,
    SaveState,
    Truncate,
    Write,
)
from pymq.core.types import BlockId
from pymq.testing.check_store.suite import StoreSuite, make_batch


class Random:
    """A few blocks, each with the list of batches that the block should hold."""

    def __init__(self, suite: StoreSuite, dice: random.Random) -> None:
        self.suite = suite
        self.dice = dice
        self.model = {suite.block(start=i): list[EncodedBatch]() for i in range(4)}
        self.start = {block: i for i, block in enumerate(self.model)}
        self.snapshot: dict[BlockId, tuple[int, bytes]] = {}
        self.state: dict[BlockId, bytes] = {}

    def end(self, block: BlockId) -> int:
        batches = self.model[block]
        return batches[-1].end_offset if batches else self.start[block]

    def run(self, steps: int) -> None:
        actions = [self.append] * 6 + [self.read] * 4 + [self.truncate, self.checkpoint]
        actions += [self.recover, self.find_time, self.save]
        for _ in range(steps):
            self.dice.choice(actions)()
            if self.suite.durable and self.dice.random() < 0.02:
                self.suite.store.close()
                self.suite.open()
                for block in self.model:
                    self.recover(block)

    def append(self) -> None:
        writes: list[Write] = []
        for block in self.dice.sample(list(self.model), self.dice.randint(1, 3)):
            batches = self.model[block]
            epoch = batches[-1].header.leader_epoch if batches else 0
            for _ in range(self.dice.randint(1, 3)):
                end = self.end(block)
                size = self.dice.choice((0, 100, 3_000, 40_000))
                batch = make_batch(end, self.dice.randint(1, 5), epoch=epoch, size=size)
                batches.append(batch)
                writes.append(Append(block, [batch], sync=self.dice.random() < 0.3))
                epoch += self.dice.random() < 0.1
        self.suite.write(*writes)

    def read(self) -> None:
        block = self.dice.choice(list(self.model))
        start, end = self.start[block], self.end(block)
        offset = self.dice.randint(start, end)
        most = self.dice.choice((1, 500, 30_000, 1 << 20))
        stop = self.dice.choice([end, self.dice.randint(start, end)])
        found = self.suite.store.read(block, offset, stop, most)
        expected = b""
        for batch in self.model[block]:
            if offset < batch.end_offset and max(offset, batch.base_offset) < stop:
                if expected and len(expected) + batch.size > most:
                    break
                expected += bytes(batch.head) + bytes(batch.body)
        assert found == expected, f"read({block}, {offset}, {stop}, {most}) gave something else"

    def truncate(self) -> None:
        block = self.dice.choice(list(self.model))
        batches = self.model[block]
        keep = self.dice.randint(max(len(batches) - 5, 0), len(batches))
        del batches[keep:]
        self.suite.write(Truncate(block, self.end(block)))
        if block in self.snapshot and self.snapshot[block][0] > self.end(block):
            del self.snapshot[block]

    def checkpoint(self) -> None:
        block = self.dice.choice(list(self.model))
        self.snapshot[block] = (self.end(block), self.dice.randbytes(10))
        self.suite.write(Checkpoint(block, self.snapshot[block][1]))

    def recover(self, block: BlockId | None = None) -> None:
        block = block or self.dice.choice(list(self.model))
        found = self.suite.recovered(block, self.start[block])
        after, snapshot = self.snapshot.get(block, (self.start[block], None))
        batches = self.model[block]
        assert found == Recovered(
            block,
            self.start[block],
            self.end(block),
            sum(batch.size for batch in batches),
            snapshot,
            [batch.header for batch in batches if batch.base_offset >= after],
            0,
            self.state.get(block),
        ), f"recovering {block} gave something else"

    def save(self) -> None:
        chosen = self.dice.sample(list(self.model), self.dice.randint(1, 3))
        states = {block: self.dice.randbytes(10) for block in chosen}
        self.state |= states
        self.suite.write(*(SaveState(block, state) for block, state in states.items()))

    def find_time(self) -> None:
        block = self.dice.choice(list(self.model))
        end = self.end(block)
        offset = self.dice.randint(self.start[block], end + 1)
        found = self.suite.store.find_time(block, end, 1_000 + 10 * offset)
        assert found == (offset if offset < end else None)
