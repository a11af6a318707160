"""What must never happen: one class for a family of rules, each looking where it can be broken.

The rules are named; a broken one is a :class:`Violation` with that name. They are checked while a
run goes on, at the event that breaks them and in about constant time. This module has those about
logs and leaders; :mod:`pymq.testing.checkers.promises` has what clients are promised, and
:mod:`pymq.testing.checkers.leases` what groups are; :mod:`pymq.testing.checkers.metadata` is about
zkservers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.batch.header import COMPACTED, Header
from pymq.core.message import Message
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, TopicNode, decode_node
from pymq.core.types import OFFSETS_TOPIC, AckMode, BlockId
from pymq.core.values import Factory, define
from pymq.testing.checkers.ledger import Ledger, ReplicaLog, WatchedStore
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import Violation

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

Partition = tuple[str, int]  # topic id and index


@define
class CheckedHistory:
    """What consumers may have seen of one partition, for ever."""

    blocks: dict[int, ReplicaLog] = Factory(dict)  # by number: as far as it was visible
    # Of producers: epoch, next sequence, and the block of the last batch.
    sequences: dict[int, tuple[int, int, int]] = Factory(dict)
    losses: int = 0  # how often something visible was lost, as weak settings allow

    def end(self) -> int:
        """The first offset that nobody may have seen."""
        return self.blocks[max(self.blocks)].end if self.blocks else 0

    def batch_at(self, offset: int) -> Header | None:
        """The batch that holds *offset*."""
        for number in sorted(self.blocks, reverse=True):
            log = self.blocks[number]
            if log.start <= offset:
                index = log.batch_at(offset)
                return log.headers[index] if index < len(log.headers) else None
        return None


class StoreWatch:
    """All that is watched of a cluster, and the checkers that do it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ledger = Ledger(self.fail)
        self.histories: dict[Partition, CheckedHistory] = {}
        self.names: dict[Partition, tuple[str, str]] = {}
        self.indexes: dict[tuple[str, str], Partition] = {}
        self.mortal: set[str] = set()  # topics that come and go: names say nothing about them
        self.orphans: set[BlockId] = set()  # not seen by anybody before their disks were gone
        self.checkers: list[Checker] = []

    def add(self, checker: Checker) -> None:
        """Let a checker watch from now on."""
        self.checkers.append(checker)
        kind = type(checker)
        if kind.on_append is not Checker.on_append:
            self.ledger.on_append.append(checker.on_append)
        if kind.on_loss is not Checker.on_loss:
            self.ledger.on_loss.append(checker.on_loss)
        if kind.on_truncate is not Checker.on_truncate:
            self.ledger.on_truncate.append(checker.on_truncate)
        if kind.on_submit is not Checker.on_submit:
            self.cluster.ensemble.on_submit.append(checker.on_submit)
        if kind.on_commit is not Checker.on_commit:
            self.cluster.ensemble.on_commit.append(checker.on_commit)

    def adopt(self, host: Process) -> None:
        """Watch a process."""
        if isinstance(host, BrokerHost):
            host.wrapped = lambda store: WatchedStore(store, host.name, self.ledger)
            host.on_turn.append(self._turned)
        for checker in self.checkers:
            for kind in checker.sends:
                host.on_send.setdefault(kind, []).append(checker.on_send)
            for kind in checker.receives:
                host.on_receive.setdefault(kind, []).append(checker.on_receive)
            if type(checker).on_death is not Checker.on_death:
                host.on_death.append(checker.on_death)

    def _turned(self, host: Process) -> None:
        assert isinstance(host, BrokerHost)
        broker = host.broker
        if broker is None:
            return
        signs, sign_of = host.signs, probe.sign
        for partition in probe.partitions(broker):
            sign = sign_of(partition)
            if signs.get(partition) == sign:
                continue
            signs[partition] = sign
            last = host.looks.get(partition.name)
            found = probe.look(partition, last)
            if found is None or found == last:
                continue
            if last is None or last.block != found.block:
                self._meet(partition.name, found.block)
            host.looks[partition.name] = found
            for checker in self.checkers:
                checker.on_look(host, found, last)

    def _meet(self, name: tuple[str, str], block: BlockId) -> None:
        key = (block.topic_id, block.partition)
        self.names[key] = name
        if name[0] not in self.mortal:
            self.indexes[name] = key

    def history(self, block: BlockId) -> CheckedHistory:
        """The history of a block's partition."""
        key = (block.topic_id, block.partition)
        found = self.histories.get(key)
        if found is None:
            found = self.histories[key] = CheckedHistory()
        return found

    def history_of(self, topic: str, partition: str) -> CheckedHistory | None:
        """The history of a partition by its names, as they are used now."""
        key = self.indexes.get((topic, partition))
        return self.histories.get(key) if key is not None else None

    def keepers(self, block: BlockId, node: BlockNode, seen: ReplicaLog) -> list[str]:
        """Who is in sync in a fetched block and has all that was visible in it.

        Where there is one, nothing of that may be lost, however little was synced: it did not
        crash, or what it had not synced is there all the same.
        """
        if node.acks is AckMode.RAFT or len(node.replicas) < 2 or not seen.ends:
            return []
        found = []
        for name in node.in_sync:
            log, host = self.ledger.log(name, block), self.cluster.brokers[name]
            is_there = log is not None and log.chain_at(seen.end) == seen.chains[-1]
            if is_there and log is not None and (host.is_up or log.synced_end >= seen.end):
                found.append(name)
        return [name for name in found if name not in self.ledger.damaged]

    def orphan(self, topic: str, partition: str, offset: int) -> BlockNode | None:
        """The block of *offset*, if it was sealed too late and nobody has all of it."""
        for block in self.orphans:
            node = self.node(block)
            if node is None or node.in_sync or node.end is None:
                continue
            is_there = self.indexes.get((topic, partition)) == (block.topic_id, block.partition)
            if is_there and node.start <= offset < node.end:
                logs = self.ledger.replicas(block)
                return node if all(log.chain_at(node.end) is None for log in logs) else None
        return None

    def node(self, block: BlockId) -> BlockNode | None:
        """What the tree says of a block now."""
        name = self.names.get((block.topic_id, block.partition))
        if name is None or self.indexes.get(name) != (block.topic_id, block.partition):
            return None
        entry = self.cluster.ensemble.tree.get(paths.block(*name, block.number))
        return decode_node(BlockNode, entry.data) if entry is not None else None

    def is_deleted(self, block: BlockId) -> bool:
        """Whether a block's topic was deleted: its brokers hear of it one after the other."""
        name = self.names.get((block.topic_id, block.partition))
        if name is None:
            return False
        entry = self.cluster.ensemble.tree.get(paths.topic(name[0]))
        return entry is None or decode_node(TopicNode, entry.data).id != block.topic_id

    def fail(self, name: str, message: str) -> None:
        """A rule was broken."""
        self.cluster.violate(Violation(name, message))


class Checker:
    """Looks for broken rules; a subclass overrides what it wants to hear of."""

    rules: ClassVar[Sequence[str]] = ()
    sends: ClassVar[Sequence[type[Message]]] = ()  # the messages that on_send wants to hear of
    receives: ClassVar[Sequence[type[Message]]] = ()  # and on_receive

    def __init__(self, watch: StoreWatch) -> None:
        self.watch = watch
        self.fail = watch.fail

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        """A partition is not as it was after the broker's turn before, in this incarnation."""

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        """A replica has written a batch."""

    def on_truncate(self, log: ReplicaLog, end: int) -> None:
        """A replica is about to cut its log, not by a crash."""

    def on_loss(self, log: ReplicaLog, end: int) -> None:
        """A replica has come back without what it had behind *end*."""

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        """A process sends something that is in :attr:`sends`."""

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        """A process gets something that is in :attr:`receives`, and will look at it next."""

    def on_death(self, process: Process) -> None:
        """A process has died."""

    def on_submit(self, zkserver: str, commit: Commit) -> None:
        """A zkserver has planned a commit and asks for it, for the first time or once more."""

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        """A zkserver's commit is about to be done, perhaps long after it was planned."""


class LogMatching(Checker):
    """If two logs have a batch of the same epoch end at the same offset, all before it is equal."""

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
                # Nobody has it any more, so nobody can take another batch for it.
                self._chains.pop((log.block, at, header.leader_epoch), None)


class Watermark(Checker):
    """The high watermark only rises, and only over what is safe."""

    rules = ("hw-monotone", "hw-bounded", "epoch-monotone", "durable-before-visible")

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._led: dict[tuple[str, str, Partition], int] = {}  # epochs, by broker and its disk

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        high, block = found.high_watermark, found.block
        # Where writes are not synced a disk may lose what its replica has shown. It is read again.
        is_carried = last is not None and last.block == block and high <= last.high_watermark
        if high > found.end and (found.is_strict or not is_carried):
            self.fail("hw-bounded", f"{host.name} shows {block} up to {high}, ends at {found.end}")
        if last is not None and high < last.high_watermark and self._is_kept(found, last):
            self.fail(
                "hw-monotone",
                f"{host.name} goes back from {last.high_watermark} to {high} in {block}",
            )
        key = (host.name, host.storage_id, (block.topic_id, block.partition))
        # An epoch that nobody was told of may be gone after a crash; one that it has led may not.
        led = self._led.get(key, 0)
        before = 0
        if last is not None and last.block[:2] == block[:2]:
            # In a block that was sealed meanwhile others may be elected, who can lead nothing on:
            # of what comes before another block, what the zkserver has told counts.
            before = last.epoch if last.block == block else last.told[0]
        if found.epoch < max(before, led):
            self.fail("epoch-monotone", f"{host.name} goes back to epoch {found.epoch} of {block}")
        if found.is_leader:
            self._led[key] = found.epoch
        is_new = last is None or high != last.high_watermark or block != last.block
        if is_new and found.is_leader and found.is_strict and high > found.start:
            self._check_durable(host, found)

    def _is_kept(self, found: probe.Look, last: probe.Look) -> bool:
        """Whether all that was visible in the last block has to be there in this one.

        What a disk's cache has lost may be missing from where the last block was sealed; whether it
        may, is looked at when that is committed (``seal-keeps-what-is-visible``).
        """
        if found.block[:2] != last.block[:2]:
            return False  # Another topic of that name.
        is_same = found.block == last.block
        return is_same or last.is_strict or not self.watch.ledger.has_lost(found.block)

    def _check_durable(self, host: BrokerHost, found: probe.Look) -> None:
        own = self.watch.ledger.log(host.name, found.block)
        wanted = own.chain_at(found.high_watermark) if own is not None else None
        holders = self.watch.ledger.holders(found.block, found.high_watermark, wanted)
        is_durable = wanted is not None and len(holders) >= found.majority
        # A follower may have removed its copy of what is deleted since it answered.
        if not is_durable and not self.watch.is_deleted(found.block):
            self.fail(
                "durable-before-visible",
                f"{host.name} shows {found.block} up to {found.high_watermark}, which is durable "
                f"on {holders} only; {found.majority} are needed",
            )


class OneLeader(Checker):
    """An epoch of a partition has one leader at most, and that one has all that is visible."""

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
            return  # A leader need not have what a later one has committed (Raft, figure 3).
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
        # Nobody was promised that it survives a crash of the disk's cache: forget what is gone.
        common = [
            end
            for end, chain in zip(seen.ends, seen.chains, strict=True)
            if log is not None and log.chain_at(end) == chain
        ]
        seen.cut(common[-1] if common else seen.start)
        history.losses += 1
        history.sequences.clear()


class Immutable(Checker):
    """What was visible at an offset stays what is there; it is written once, in order, by somebody.

    It comes after :class:`OneLeader`, which forgets what may be lost.
    """

    rules = (
        "immutable-offset",
        "written-once",
        "send-order",
        "no-invention",
        "no-truncation",
        "seal-keeps-what-is-visible",
    )

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self.sent: dict[int, int] = {}  # batches that clients have sent, by CRC: how many records

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        if last is not None and (last.block, last.high_watermark) == (
            found.block,
            found.high_watermark,
        ):
            return
        log = self.watch.ledger.log(host.name, found.block)
        if log is None:
            return  # Nothing was ever written to it.
        self._show(host.name, log, found.block, found.start, found.high_watermark)

    def _show(self, who: str, log: ReplicaLog, block: BlockId, start: int, high: int) -> None:
        """All of *log* before *high* is visible now."""
        history = self.watch.history(block)
        seen = history.blocks.get(block.number)
        if seen is None:
            seen = history.blocks[block.number] = ReplicaLog("", block, start)
        common = min(seen.end, high)
        if log.chain_at(common) != seen.chain_at(common):
            self.fail(
                "immutable-offset",
                f"{who} shows another log of {block} up to {common} than was seen",
            )
        if high > seen.end:
            first = log.batch_at(seen.end)
            for index in range(first, len(log.headers)):
                header = log.headers[index]
                if header.end_offset > high:
                    break
                seen.add(header, log.chains[index])
                self._check_batch(block, history, header)

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        """What a block holds when it is sealed is visible from then on."""
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            match paths.parse(path):
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    before = tree.get(path)
                    node = decode_node(BlockNode, entry.data) if entry is not None else None
                    if node is not None and before is not None and node.end is not None:
                        self._sealed(topic, partition, number, node, before.data)
                case _:
                    pass

    def _sealed(
        self, topic: str, partition: str, number: int, node: BlockNode, before: bytes
    ) -> None:
        key = self.watch.indexes.get((topic, partition))
        if key is None or decode_node(BlockNode, before).end is not None or node.end is None:
            return
        block, end = BlockId(*key, number), node.end
        history = self.watch.history(block)
        seen = history.blocks.get(number)
        entry = self.watch.cluster.ensemble.tree.get(paths.topic(topic))
        config = decode_node(TopicNode, entry.data).config if entry is not None else None
        if seen is not None and seen.end > end:
            is_strict = config is None or config.sync_policy(node.acks) == "always"
            keepers = self.watch.keepers(block, decode_node(BlockNode, before), seen)
            is_told = node.is_unclean or (self.watch.ledger.has_lost(block) and not keepers)
            if is_strict or not is_told:
                self.fail(
                    "seal-keeps-what-is-visible",
                    f"{block} is sealed at {end}, and was visible up to {seen.end}"
                    + (f": {keepers} have all of that" if keepers else ""),
                )
            # Nobody was promised that it survives a crash of the disks' caches.
            seen.cut(end)
            history.losses += 1
            history.sequences.clear()
        for broker in node.in_sync:
            log = self.watch.ledger.log(broker, block)
            if log is not None and log.chain_at(end) is not None:
                self._show(broker, log, block, node.start, end)
                return

    def _check_batch(self, block: BlockId, history: CheckedHistory, header: Header) -> None:
        names = self.watch.names[block.topic_id, block.partition]
        if header.is_control or header.attributes & COMPACTED or names[0] == OFFSETS_TOPIC:
            return
        place = f"{names[0]}/{names[1]} at {header.base_offset}"
        if header.batch_crc not in self.sent:
            self.fail("no-invention", f"nobody has sent what is in {place}")
        if header.producer_id < 0:
            return
        producer, sequence = header.producer_id, header.base_sequence
        known = history.sequences.get(producer)
        # A later epoch of a producer goes on where the one before has stopped.
        is_on = known is None or (sequence == known[1] and header.producer_epoch >= known[0])
        if known is not None and not is_on and not self._is_new(block, header, known):
            is_repeat = sequence < known[1] and header.producer_epoch >= known[0]
            self.fail(
                "written-once" if is_repeat else "send-order",
                f"producer {producer} at epoch {header.producer_epoch} has sequence {sequence} "
                f"in {place}, after {known[1]} of epoch {known[0]}",
            )
        following = sequence + header.count
        history.sequences[producer] = (header.producer_epoch, following, block.number)

    def _is_new(self, block: BlockId, header: Header, known: tuple[int, int, int]) -> bool:
        """Whether a producer begins anew, which was forgotten with all that it had written."""
        if header.base_sequence or header.producer_epoch <= known[0] or block.number <= known[2]:
            return False
        return self.watch.node(block._replace(number=known[2])) is None

    def on_truncate(self, log: ReplicaLog, end: int) -> None:
        history = self.watch.histories.get((log.block.topic_id, log.block.partition))
        seen = history.blocks.get(log.block.number) if history is not None else None
        if seen is None:
            return
        for at, chain in zip(reversed(log.ends), reversed(log.chains), strict=True):
            if at <= end:
                break
            if seen.chain_at(at) == chain:
                self.fail(
                    "no-truncation",
                    f"{log.node} cuts {log.block} at {end}, and holds what is visible up to {at}",
                )
