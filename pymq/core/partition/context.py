"""The shared state of one partition's parts: its metadata, its blocks, its role."""

from __future__ import annotations

from pymq.core.message import PartitionReport
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.disk_health import DiskHealth
from pymq.core.partition.host import Home
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.open_block import OpenBlock
from pymq.core.types import BlockId, TopicPartition
from pymq.core.values import define
from pymq.errors import PymqError, StoreError


@define
class DelayBounds:
    """Offsets that retention and the scheduler of delayed records exchange."""

    pending_from: int = 0  # all records before this offset are delivered or not delayed
    wanted_from: int = 0  # retention wants to remove all records before this offset
    is_full: bool = False  # the number of delayed records has reached its limit


class PartitionContext:
    """The state of a partition on one broker; its methods change nothing."""

    __slots__ = (
        "blocks",
        "delays",
        "disk",
        "host",
        "leads_at",
        "me",
        "name",
        "opened",
        "problem",
        "state",
    )

    def __init__(
        self, state: PartitionState, host: Home, blocks: LocalBlocks, opened: OpenBlock
    ) -> None:
        self.name = TopicPartition(state.topic, state.partition)
        self.me = host.me  # this broker
        self.state = state
        self.host = host
        self.blocks = blocks  # the partition's blocks on this broker's disk
        self.opened = opened
        self.disk: DiskHealth | None = None  # set at the first failed write
        self.problem: PymqError | None = None  # the error that prevents all reads and writes
        self.delays: DelayBounds | None = None  # set if this replica leads and has delayed records
        self.leads_at: int | None = None  # the epoch in which this replica leads, while it does

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition and accepts records."""
        return self.leads_at is not None and self.problem is None

    @property
    def elected(self) -> int | None:
        """The epoch for which this replica was elected, while it leads."""
        return self.leads_at if self.opened.is_voted else None

    @property
    def epoch(self) -> int:
        """The leader epoch, as far as this broker knows."""
        return self.state.epoch if self.leads_at is None else self.leads_at

    @property
    def is_settled(self) -> bool:
        """Whether recovery has ended: it found the log's end, or failed permanently."""
        opened = self.opened
        return opened.replicator is not None or self.problem is not None or opened.log is None

    @property
    def peers(self) -> tuple[str, ...]:
        """The other brokers whose liveness this replica depends on."""
        if self.opened.log is None or self.problem is not None:
            return ()
        return tuple(name for name in self.opened.node.replicas if name != self.me)

    @property
    def unable(self) -> BlockId | None:
        """The open block if this broker is a replica of it but cannot serve it; else None.

        The broker cannot serve the block if its disk has failed, or is not the disk on which the
        block was created. The broker's pings report the block to the other replicas, which would
        otherwise wait forever for a broker that is alive.
        """
        block = self.opened.node
        if self.me not in block.replicas or (self.problem is None and self.blocks.holds(block)):
            return None
        mark("partition.unable")
        return self.state.block_id(block)

    @property
    def offline(self) -> PymqError | None:
        """The error if this broker cannot hold the partition now because of its disk."""
        if isinstance(self.problem, StoreError):
            return self.problem
        return self.disk.problem if self.disk is not None else None

    def is_open(self, block: BlockId) -> bool:
        """Whether *block* is the open block."""
        return self.state.block_id(self.opened.node) == block

    def report(self) -> PartitionReport:
        """Return this replica's state, for ``describe_topic``."""
        log, replicator = self.opened.log, self.opened.replicator
        return PartitionReport(
            *self.name,
            self.state.log_start,
            self.opened.offsets.end,
            self.opened.offsets.high_watermark,
            log.size if log is not None else 0,
            replicator.in_sync if replicator is not None else (),
            next((str(x) for x in (self.problem, *self.blocks.repairs.problems) if x), None),
            self.leads_at is not None,
        )
