"""Rules about logs, high watermarks and leaders."""

from __future__ import annotations

from pymq.core.batch.header import Header
from pymq.core.types import BlockId
from pymq.testing.checkers.base import Checker, Partition, StoreWatch
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost


class LogMatching(Checker):
    """If batches of the same epoch end at the same offset in two logs, the logs are equal up to
    there.
    """

    rules = ("log-matching", "dense-offsets", "epochs-rise", "synced-survives")

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._chains: dict[tuple[BlockId, int, int], int] = {}

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        key = (log.block, header.end_offset, header.leader_epoch)
        known = self._chains.setdefault(key, log.chains[-1])
        if known != log.chains[-1]:
            self.fail(
                "log-matching",
                f"{log.node} has another log of {log.block} up to offset {header.end_offset} than "
                f"others whose batch there is of epoch {header.leader_epoch} too",
            )

    def on_loss(self, log: ReplicaLog, end: int) -> None:
        others = [other for other in self.watch.ledger.replicas(log.block) if other is not log]
        for at, chain, header in zip(log.ends, log.chains, log.headers, strict=True):
            if at > end and all(other.chain_at(at) != chain for other in others):
                # No replica has the batch any more, so no comparison with it is needed.
                self._chains.pop((log.block, at, header.leader_epoch), None)


class Watermark(Checker):
    """The high watermark only rises, and only over durable records."""

    rules = ("hw-monotone", "hw-bounded", "epoch-monotone", "durable-before-visible")

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._led: dict[tuple[str, str, Partition], int] = {}  # epochs, by broker and its disk

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        high, block = found.high_watermark, found.block
        # In a mode without syncs a disk may lose visible records; the checker then reads the log
        # again.
        is_carried = last is not None and last.block == block and high <= last.high_watermark
        if high > found.end and (found.is_strict or not is_carried):
            self.fail("hw-bounded", f"{host.name} shows {block} up to {high}, ends at {found.end}")
        if last is not None and high < last.high_watermark and self._is_kept(found, last):
            self.fail(
                "hw-monotone",
                f"{host.name} goes back from {last.high_watermark} to {high} in {block}",
            )
        key = (host.name, host.storage_id, (block.topic_id, block.partition))
        # A crash may lose an epoch that no message contained, but not an epoch in which the broker
        # led.
        led = self._led.get(key, 0)
        before = 0
        if last is not None and last.block[:2] == block[:2]:
            # A block that was sealed meanwhile may elect another leader, which can append nothing:
            # for all blocks but the last, use the zkserver's state.
            before = last.epoch if last.block == block else last.told[0]
        if found.epoch < max(before, led):
            self.fail("epoch-monotone", f"{host.name} goes back to epoch {found.epoch} of {block}")
        if found.is_leader:
            self._led[key] = found.epoch
        is_new = last is None or high != last.high_watermark or block != last.block
        if is_new and found.is_leader and found.is_strict and high > found.start:
            self._check_durable(host, found)

    def _is_kept(self, found: probe.Look, last: probe.Look) -> bool:
        """Whether the log must still have all records of *last* that were visible.

        Records that a disk's cache has lost may be missing from the sealed block; the rule
        ``seal-keeps-what-is-visible`` checks at the seal's commit whether that is allowed.
        """
        if found.block[:2] != last.block[:2]:
            return False  # another topic of that name
        is_same = found.block == last.block
        return is_same or last.is_strict or not self.watch.ledger.has_lost(found.block)

    def _check_durable(self, host: BrokerHost, found: probe.Look) -> None:
        own = self.watch.ledger.log(host.name, found.block)
        wanted = own.chain_at(found.high_watermark) if own is not None else None
        holders = self.watch.ledger.holders(found.block, found.high_watermark, wanted)
        is_durable = wanted is not None and len(holders) >= found.majority
        # A follower may have removed its copy of a deleted block since its answer.
        if not is_durable and not self.watch.is_deleted(found.block):
            self.fail(
                "durable-before-visible",
                f"{host.name} shows {found.block} up to {found.high_watermark}, which is durable "
                f"on {holders} only; {found.majority} are needed",
            )


class OneLeader(Checker):
    """An epoch of a partition has at most one leader, and the leader has all visible records."""

    rules = ("one-leader-per-epoch", "leader-completeness")

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._leaders: dict[tuple[Partition, int], str] = {}

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        if not found.is_leader:
            return
        block = found.block
        key = ((block.topic_id, block.partition), found.epoch)
        leader = self._leaders.setdefault(key, host.name)
        if leader != host.name:
            self.fail(
                "one-leader-per-epoch",
                f"{host.name} leads {block} at epoch {found.epoch}, as {leader} does",
            )
        is_same = last is not None and last.is_leader and last.epoch == found.epoch
        if not is_same or (last is not None and last.block != block):
            self._check_complete(host, found)

    def _check_complete(self, host: BrokerHost, found: probe.Look) -> None:
        history = self.watch.history(found.block)
        seen = history.blocks.get(found.block.number)
        if seen is None or not seen.ends or seen.epoch > found.epoch:
            # a leader need not have records that a later leader has committed (Raft, figure 3)
            return
        log = self.watch.ledger.log(host.name, found.block)
        if log is not None and log.chain_at(seen.end) == seen.chains[-1]:
            return
        node = self.watch.node(found.block)
        keepers = self.watch.keepers(found.block, node, seen) if node is not None else []
        if found.is_strict or keepers or not self.watch.ledger.has_lost(found.block):
            self.fail(
                "leader-completeness",
                f"{host.name} leads {found.block} at epoch {found.epoch} without all that was "
                f"visible up to {seen.end}",
            )
        # No acknowledgement has promised that the lost records survive a power failure, so forget
        # them.
        common = [
            end
            for end, chain in zip(seen.ends, seen.chains, strict=True)
            if log is not None and log.chain_at(end) == chain
        ]
        seen.cut(common[-1] if common else seen.start)
        history.losses += 1
        history.sequences.clear()
