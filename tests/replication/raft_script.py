"""The verbs of tests/data/raft/*.txt.

A command prints the messages that it makes replicas send; ``settle`` and ``run`` run all steps that
are possible. A batch is written as ``end/epoch``, followed by ``x3`` if it has three records. A log
is shown as its batches; a bar separates the durable ones from the others.
"""

from __future__ import annotations

import re
from itertools import pairwise

import attrs

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import (
    RaftAppend,
    RaftAppended,
    RaftTimeout,
    RaftVote,
    RaftVoted,
)
from pymq.core.observe.coverage import BrokenInvariant
from pymq.core.types import NEVER
from pymq.replication.raft.persistent_state import HardState
from pymq.replication.raft.progress import FollowerProgress
from pymq.replication.raft.quorum_features.messages import (
    RaftSnapshot,
    RoundAppend,
    RoundAppended,
)
from tests.replication.harness import (
    BLOCK,
    Batch,
    Cluster,
    Letter,
    MakeRaft,
    Node,
    SnapshotFakeLog,
    batch,
    default_raft,
    hard,
    partition_state,
    show,
)

_BATCH = re.compile(r"(\d+)/(\d+)")
_SHORT = re.compile(r"(\d+)(?:x(\d+))?(?:\*(\d+))?")


class RaftScript:
    """Executes commands in order."""

    def __init__(self, make_raft: MakeRaft = default_raft) -> None:
        self._make_raft = make_raft
        self._cluster: Cluster | None = None
        self._posted: list[Letter] = []

    def __call__(self, verb: str, words: list[str]) -> str:
        """Execute a line; returns its output, a line for each item."""
        self._posted = []
        run = getattr(self, f"do_{verb}", None)
        if run is None:
            raise AssertionError(f"no such verb: {verb}")
        try:
            said = run(*words) or ""
        except BrokenInvariant as broken:
            return f"broken: {broken}"
        return "\n".join([*map(show, self._posted), said])

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the first command must be `nodes`"
        return self._cluster

    def node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    # --- making a cluster

    def do_nodes(self, *words: str) -> None:
        """Make replicas of a new block, led by the first of them."""
        names = tuple(word for word in words if "=" not in word and word.isupper())
        options = dict(word.split("=") for word in words if "=" in word)
        names_of = ("in_flight", "append_bytes", "tell_ms")
        settings = {key: int(options[key]) for key in names_of if key in options}
        settings.setdefault("tell_ms", 0)  # Otherwise a pause would be needed after each step.
        self._cluster = Cluster(
            names,
            config=ReplicationConfig(**settings),
            snapshots="snapshots" in words,
            learners=tuple(options.get("learners", "")),
            epoch=int(options.get("term", "1")),
            make_raft=self._make_raft,
        )
        self._cluster.on_post = self._posted_one
        if "stopped" in words:
            return
        for node in self._cluster.nodes.values():
            node.start(is_new=True)
        if "unsaved" not in words:
            self._cluster.settle()
        self._posted = []

    def _posted_one(self, letter: Letter) -> None:
        self._posted.append(letter)

    def do_node(self, name: str, *words: str) -> None:
        """Create one replica again with its old disk, as after a crash."""
        options = dict(word.split("=") for word in words)
        node = self.node(name)
        if node.is_up:
            node.crash()
        node.disk.batches, end = [], 0
        for short in options["log"].split(",") if options.get("log") else []:
            found = _SHORT.fullmatch(short)
            assert found is not None, short
            epoch, count, times = int(found[1]), int(found[2] or 1), int(found[3] or 1)
            for _ in range(times):
                node.disk.batches.append(batch(end, epoch, "", count))
                end += count
        vote = options.get("vote")
        node.disk.saved = HardState(int(options.get("term", "1")), vote).dumps()
        node.start(is_new=False)

    def do_make(self, name: str) -> None:
        """Start one replica of the new block."""
        self.node(name).start(is_new=True)

    def do_zkserver(self, epoch: str, leader: str) -> None:
        """Set the zkserver's state for replicas that are made from now on."""
        block = self.cluster.state.blocks[-1]
        state = partition_state(tuple(self.cluster.nodes), int(epoch), leader)
        self.cluster.state = attrs.evolve(state, blocks=(block,))

    # --- disks

    def do_write(self, name: str) -> None:
        """Hand a replica's writes to its disk."""
        self.node(name).write()

    def do_sync(self, name: str) -> None:
        """Complete the write."""
        self.node(name).sync()

    def do_disk(self, *names: str) -> None:
        """Write and sync the data of replicas' pending writes, if there are any."""
        for name in names:
            if self.node(name).has_work:
                self.node(name).write()
                self.node(name).sync()

    def do_fetch(self, name: str) -> None:
        """Complete the reads that a leader has requested."""
        self.node(name).read()

    def do_saved(self, name: str) -> str:
        found = hard(self.node(name).disk.saved)
        return "nothing" if found is None else f"t{found.term} vote {found.vote or '-'}"

    def do_evict(self, name: str, offset: str) -> None:
        self.node(name).log.evict(int(offset))

    def do_compact(self, name: str, end: str) -> None:
        log = self.node(name).log
        assert isinstance(log, SnapshotFakeLog)
        log.compact(int(end))

    # --- crashes, cuts and what brokers know of each other

    def do_crash(self, name: str, *words: str) -> None:
        """Stop a replica; the others notice, unless ``quietly``.

        A number says how many parts of the write in progress survive.
        """
        self.node(name).crash(sum(int(word) for word in words if word.isdigit()))
        if "quietly" not in words:
            for node in self.cluster.up:
                node.hears(name, False)

    def do_start(self, name: str, *words: str) -> None:
        """Restart a node with its disk."""
        self.node(name).start(is_new=False)
        if "quietly" not in words:
            self._all_notice()

    def do_cut(self, *words: str) -> None:
        """Cut the links between the replicas on the two sides of a slash.

        The replicas on both sides notice the cut.
        """
        slash = words.index("/")
        for a in words[:slash]:
            for b in words[slash + 1 :]:
                self.cluster.cuts |= {(a, b), (b, a)}
        self._all_notice()

    def do_mend(self, *words: str) -> None:
        """Mend all links."""
        self.cluster.cuts.clear()
        if "quietly" not in words:
            self._all_notice()

    def _all_notice(self) -> None:
        cluster = self.cluster
        for node in cluster.up:
            for peer in cluster.nodes:
                is_alive = cluster.nodes[peer].is_up and (peer, node.me) not in cluster.cuts
                if peer != node.me and is_alive != (peer not in node.dead):
                    node.hears(peer, is_alive)

    def do_suspect(self, name: str, *peers: str) -> None:
        """Make the broker of a replica believe that other brokers are dead."""
        for peer in peers:
            self.node(name).hears(peer, False)

    def do_trust(self, name: str, *peers: str) -> None:
        """Notify a replica's broker of others that are back or have restarted."""
        for peer in peers:
            self.node(name).hears(peer, True)

    # --- messages

    def do_bag(self) -> str:
        return "\n".join(map(show, self.cluster.bag))

    def do_deliver(self, *routes: str) -> None:
        """Deliver the oldest message of each route, or all of its messages."""
        for route in routes:
            self.cluster.deliver(self._on(route)[0])
        for _ in range(0 if routes else len(self.cluster.bag)):
            self.cluster.deliver()

    def do_last(self, *routes: str) -> None:
        """Deliver the newest message of each route."""
        for route in routes:
            self.cluster.deliver(self._on(route)[-1])

    def do_copy(self, *routes: str) -> None:
        """Deliver the oldest message of each route, and keep it."""
        for route in routes:
            self.cluster.deliver(self._on(route)[0], keep=True)

    def do_drop(self, *routes: str) -> None:
        """Drop the oldest message of each route, or all of its messages."""
        for route in routes:
            del self.cluster.bag[self._on(route)[0]]
        if not routes:
            self.cluster.bag.clear()

    def _on(self, route: str) -> list[int]:
        source, target = route.split(">")
        found = [
            i
            for i, letter in enumerate(self.cluster.bag)
            if letter.target == target and letter.source == source
        ]
        assert found, f"nothing is on its way from {source} to {target}"
        return found

    def do_send(self, *words: str) -> None:
        """Deliver a message, given in the notation of the output, to a replica."""
        letter = parse(" ".join(words))
        message = letter.message
        node = self.node(letter.target)
        node.raft.step(letter.source, message, self.cluster.now)  # type: ignore[arg-type] # parse makes no other

    # --- time

    def do_settle(self) -> None:
        """Run all work that needs no time to pass."""
        self.cluster.settle()
        self._posted = []

    def do_run(self, ms: str) -> None:
        """Let time pass, and run everything that is due."""
        self.cluster.run(int(ms))
        self._posted = []

    def do_pass(self, ms: str) -> None:
        """Let time pass; replicas with a due deadline act."""
        self.cluster.now += int(ms)
        for node in self.cluster.up:
            if node.raft.deadline <= self.cluster.now:
                node.raft.tick(self.cluster.now)

    def do_timeout(self, name: str) -> None:
        """Let time pass until one replica's deadline is due, and tick only that one."""
        raft = self.node(name).raft
        assert raft.deadline < NEVER, f"{name} waits for nothing"
        self.cluster.now = max(self.cluster.now, raft.deadline)
        raft.tick(self.cluster.now)

    def do_elect(self, name: str) -> str:
        """Let one replica time out, and run everything that follows."""
        self.do_timeout(name)
        self.do_settle()
        return self.node(name).show()

    def do_due(self, *names: str) -> str:
        """Print whether replicas have a deadline."""
        nodes = [self.node(name) for name in names] or self.cluster.up
        return "\n".join(
            f"{node.me} {'waits' if node.raft.deadline < NEVER else 'idle'}" for node in nodes
        )

    # --- the partition

    def do_push(self, name: str, *words: str) -> str | None:
        """Append a batch of one or more records."""
        node = self.node(name)
        if not node.raft.is_leader:
            return f"{name} does not take it"
        node.push("".join(words[1:]), int(words[0]) if words else 1)
        return None

    def do_transfer(self, name: str, peer: str) -> None:
        self.node(name).raft.transfer(peer, self.cluster.now)

    def do_relinquish(self, name: str) -> None:
        """Report that the replica's disk has failed."""
        self.node(name).raft.relinquish(self.cluster.now)

    def do_read(self, name: str, token: str) -> str | None:
        is_asked = self.node(name).raft.read_index(int(token), self.cluster.now)
        return None if is_asked else f"{name} does not lead"

    def do_reads(self, name: str) -> str:
        raft = self.node(name).raft
        found = raft.reads.take(raft.high_watermark)
        return "\n".join(
            f"{token} refused" if end is None else f"{token} at {end}" for token, end in found
        )

    def do_adopt(self, name: str, epoch: str, leader: str) -> None:
        """Send the zkserver's choice of a leader."""
        cluster = self.cluster
        state = partition_state(tuple(cluster.nodes), int(epoch), leader)
        self.node(name).raft.adopt(state, cluster.now)

    # --- looking

    def do_show(self, *names: str) -> str:
        nodes = [self.node(name) for name in names] or list(self.cluster.nodes.values())
        return "\n".join(node.show() for node in nodes)

    def do_progress(self, name: str) -> str:
        """Print a leader's progress of its followers."""
        leading = self.node(name).raft._leading
        assert leading is not None
        return "\n".join(map(show_progress, leading.followers.values()))

    def do_holders(self, name: str, end: str) -> str:
        return " ".join(self.node(name).raft.holders(int(end))) or "nobody"

    def do_insync(self, name: str) -> str:
        return " ".join(self.node(name).raft.in_sync) or "nobody"


def show_progress(progress: FollowerProgress) -> str:
    text = f"{progress.peer} {progress.mode.value} match {progress.match} next {progress.next}"
    if progress.in_flight:
        text += f" in flight {len(progress.in_flight)}"
    return text + (" waiting" if progress.is_waiting else "")


def parse(text: str) -> Letter:
    """Parse a message in the notation of the output."""
    route, term, kind, *words = text.split()
    source, target = route.split(">")
    epoch = int(term.removeprefix("t"))
    numbers = {key: int(value) for key, value in pairwise(words) if value.isdigit()}
    pairs = [(int(end), int(of)) for end, of in _BATCH.findall(text)]
    match kind.removeprefix("pre"):
        case "append":
            (prev, prev_epoch), data, end = pairs[0], b"", pairs[0][0]
            for after, of in pairs[1:]:
                data += batch(end, of, "", after - end).data
                end = after
            commit = numbers["commit"]
            message: object = RaftAppend(BLOCK, epoch, prev, prev_epoch, commit, data)
            if "round" in numbers:
                message = RoundAppend(
                    BLOCK, epoch, prev, prev_epoch, commit, data, round=numbers["round"]
                )
        case "appended":
            end, commit = int(words[0]), numbers.get("commit", 0)
            message = RaftAppended(BLOCK, epoch, end, commit)
            if "round" in numbers:
                message = RoundAppended(BLOCK, epoch, end, commit, round=numbers["round"])
        case "refused":
            message = RaftAppended(BLOCK, epoch, int(words[0]), 0, (pairs[0][1], pairs[0][0]))
        case "vote":
            end, of = pairs[0]
            is_transfer = "transfer" in words
            message = RaftVote(BLOCK, epoch, end, of, kind.startswith("pre"), is_transfer)
        case "granted" | "denied" as what:
            message = RaftVoted(BLOCK, epoch, what == "granted", kind.startswith("pre"))
        case "timeout":
            message = RaftTimeout(BLOCK, epoch)
        case "snapshot":
            message = RaftSnapshot(BLOCK, epoch, *pairs[0], b"state")
        case _:
            raise AssertionError(f"no such message: {text}")
    return Letter(source, target, message)  # type: ignore[arg-type] # one of the above


__all__ = ["Batch", "RaftScript", "parse"]
