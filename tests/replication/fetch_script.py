"""The verbs of tests/data/fetch/*.txt: a leader, followers that fetch, and a zkserver.

A command prints the messages that it makes replicas send. ``settle`` runs everything that needs no
time to pass, and prints only the requests to the zkserver. Logs are written as in
:mod:`tests.replication.raft_script`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from pymq.core.block.replicator import Replica, ReplicationConfig
from pymq.core.message import AlterIsr, Message, ReplicaFetch, ReplicaFetched
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import Ready, SaveState
from pymq.core.types import NEVER, AckMode
from pymq.replication.fetch import FetchReplicator
from tests.replication.harness import (
    BLOCK,
    Batch,
    Cluster,
    FakeLog,
    Letter,
    Node,
    Write,
    batch,
    op_save,
    split,
)

ZKSERVER = "zk"


class FetchLog(FakeLog):
    """A log whose store reads evicted batches for a fetch."""

    def read(self, peer: str, answer: Any, offset: int, max_bytes: int) -> None:
        self.node.reads.append((peer, answer, offset, max_bytes))


class Replicas(NamedTuple):
    """The replicas of a block, and the zkserver's last state of it."""

    cluster: Cluster
    nodes: dict[str, FetchNode]


class FetchNode(Node):
    """One replica of a fetch block, in a script."""

    fetch: FetchReplicator

    def start(self, is_new: bool) -> None:
        """Make the replicator, as the broker does at its start or when it becomes a replica."""
        self.log = FetchLog(self)
        replica = Replica(BLOCK, self.log, self, self.cluster.state, self.disk.saved, is_new)
        self.fetch = FetchReplicator(replica, self.cluster.now)
        self.writing, self.reads, self.is_up = None, [], True

    def tell_controller(self, message: Message) -> None:
        """Send a message to the zkserver, which here is the script itself."""
        self.cluster.post(self.me, ZKSERVER, message)

    @property
    def has_work(self) -> bool:
        return self.is_up and self.writing is None and (self.fetch.is_dirty or bool(self.log.ops))

    def write(self) -> None:
        ready = Ready()
        self.fetch.flush(ready, self.cluster.now)
        saves = [op_save(w.state) for w in ready.write if isinstance(w, SaveState)]
        ops, self.log.ops = saves + self.log.ops, []
        self.writing = Write(ops, self.log.end, [])

    def sync(self) -> None:
        assert self.writing is not None
        write, self.writing = self.writing, None
        for op in write.ops:
            op(self.disk)
        self.fetch.stable(self.log.stable_end, self.cluster.now)

    def push(self, text: str, count: int = 1) -> None:
        self.log.push(self.fetch.epoch, text, count)
        self.fetch.appended(self.cluster.now)

    def hears(self, peer: str, is_alive: bool) -> None:
        (self.dead.discard if is_alive else self.dead.add)(peer)
        self.fetch.peer_changed(peer, self.cluster.now)

    def show(self) -> str:
        if not self.is_up:
            return f"{self.me} down"
        fetch = self.fetch
        role = f"follower of {fetch.leader}"
        if fetch.is_leader:
            role = f"leader in sync {' '.join(fetch.in_sync)}"
        elif fetch.leader in (None, self.me):
            role = "follower"
        return f"{self.me} {role} t{fetch.epoch} hw {fetch.high_watermark} log {self.log.show()}"


class FetchScript:
    """Executes commands in order."""

    def __init__(self) -> None:
        self._replicas: Replicas | None = None
        self._posted: list[Letter] = []

    def __call__(self, verb: str, words: list[str]) -> str:
        """Execute a line; returns its output, a line for each item."""
        self._posted = []
        run = getattr(self, f"do_{verb}", None)
        if run is None:
            raise AssertionError(f"no such verb: {verb}")
        said = run(*words) or ""
        return "\n".join([*map(show, self._posted), said])

    def _note(self, letter: Letter) -> None:
        self._posted.append(letter)

    @property
    def cluster(self) -> Cluster:
        assert self._replicas is not None, "the first command must be `nodes`"
        return self._replicas.cluster

    @property
    def nodes(self) -> dict[str, FetchNode]:
        assert self._replicas is not None
        return self._replicas.nodes

    # --- making a cluster

    def do_nodes(self, *words: str) -> None:
        """Make replicas of a new block, led by the first one; ``insync=AB`` is the in-sync set.

        With ``log=1,2`` the leader has batches of these epochs already.
        """
        names = tuple(word for word in words if "=" not in word)
        options = dict(word.split("=") for word in words if "=" in word)
        numbers = {
            key: int(n) for key, n in options.items() if key not in ("insync", "term", "log")
        }
        cluster = Cluster(names, config=ReplicationConfig(**numbers))
        block = BlockNode(
            *(0, 0, None, int(options.get("term", "1")), AckMode.LEADER, names[0], names),
            tuple(options.get("insync", names)),
        )
        cluster.state = PartitionState(
            *("t", BLOCK.topic_id, "p", 0, AckMode.LEADER, block.epoch, names[0], TopicConfig()),
            (block,),
            version=1,
        )
        self._replicas = Replicas(cluster, {name: FetchNode(name, cluster) for name in names})
        for node in self.nodes.values():
            if node.me == names[0] and "log" in options:
                node.disk.batches = batches(options["log"], "old")
            node.start(is_new=True)
        self.do_disk(*names)
        cluster.on_post = self._note

    def do_state(self, version: str, *words: str) -> None:
        """Send the in-sync set after a slash to the nodes before the slash, as the zkserver would.

        ``term=2`` sets the block's epoch from now on.
        """
        slash = words.index("/")
        cluster, options = self.cluster, [word for word in words if "=" in word]
        block = attrs.evolve(
            cluster.state.blocks[-1], in_sync=tuple(w for w in words[slash + 1 :] if "=" not in w)
        )
        for option in options:
            block = attrs.evolve(block, epoch=int(option.removeprefix("term=")))
        cluster.state = attrs.evolve(
            cluster.state, version=int(version), epoch=block.epoch, blocks=(block,)
        )
        for name in words[:slash]:
            self.nodes[name].fetch.adopt(cluster.state, cluster.now)

    # --- disks, crashes and what brokers know of each other

    def do_disk(self, *names: str) -> None:
        """Write and sync the data of replicas' pending writes, if there are any."""
        for name in names:
            if self.nodes[name].has_work:
                self.nodes[name].write()
                self.nodes[name].sync()

    def do_fetch(self, name: str) -> None:
        """Complete the reads that a leader has requested."""
        node = self.nodes[name]
        peer, answer, offset, max_bytes = node.reads.pop(0)
        data = node.log.gather(offset, max_bytes, node.log.stable_end)
        node.send(peer, attrs.evolve(answer, data=data))

    def do_evict(self, name: str, offset: str) -> None:
        self.nodes[name].log.evict(int(offset))

    def do_crash(self, name: str) -> None:
        self.nodes[name].crash()

    def do_start(self, name: str, *words: str) -> None:
        """Restart a node with its disk; ``log=1,2`` replaces the disk's log."""
        node = self.nodes[name]
        for word in words:
            node.disk.batches = batches(word.removeprefix("log="), "old")
        node.incarnation += 1
        node.start(is_new=False)

    def do_suspect(self, name: str, *peers: str) -> None:
        for peer in peers:
            self.nodes[name].hears(peer, False)

    def do_trust(self, name: str, *peers: str) -> None:
        for peer in peers:
            self.nodes[name].hears(peer, True)

    # --- messages

    def do_deliver(self, *routes: str) -> None:
        """Deliver the oldest message of each route, or all of its messages."""
        for route in routes:
            self._deliver(self._oldest(route))
        for _ in range(0 if routes else len(self.cluster.bag)):
            self._deliver(0)

    def do_drop(self, *routes: str) -> None:
        """Drop the oldest message of each route, or all of its messages."""
        for route in routes:
            del self.cluster.bag[self._oldest(route)]
        if not routes:
            self.cluster.bag.clear()

    def do_copy(self, route: str) -> None:
        """Deliver the oldest message of a route, and keep it."""
        index = self._oldest(route)
        letter = self.cluster.bag[index]
        self._deliver(index)
        self.cluster.bag.append(letter)

    def _oldest(self, route: str) -> int:
        source, target = route.split(">")
        for index, letter in enumerate(self.cluster.bag):
            if (letter.source, letter.target) == (source, target):
                return index
        raise AssertionError(f"nothing is on its way from {source} to {target}")

    def _deliver(self, index: int) -> None:
        letter = self.cluster.bag.pop(index)
        node = self.nodes.get(letter.target)
        if node is not None and node.is_up:
            assert isinstance(letter.message, ReplicaFetch | ReplicaFetched)
            node.fetch.step(letter.source, letter.message, self.cluster.now)

    def do_send(self, route: str, term: str, *words: str) -> None:
        """Send a follower's fetch: ``B>A t1 fetch 3/1``; ``of 2`` is its incarnation."""
        source, target = route.split(">")
        offset, last = map(int, words[1].split("/"))
        life = int(words[3]) if len(words) > 3 else 1
        fetch = ReplicaFetch(99, BLOCK, offset, last, int(term[1:]), 1 << 20, 0, life)
        self.nodes[target].fetch.step(source, fetch, self.cluster.now)

    # --- time

    def do_settle(self) -> None:
        """Run all work that needs no time to pass."""
        for _ in range(1_000):
            before = self.cluster.sent
            for name, node in self.nodes.items():
                self.do_disk(name)
                while node.is_up and node.reads:
                    self.do_fetch(name)
            self.do_deliver()
            if self.cluster.sent == before and not self.cluster.bag:
                break
        wishes = [letter for letter in self._posted if isinstance(letter.message, AlterIsr)]
        self._posted = wishes  # keep the requests back, because requests to the zkserver take time

    def do_pass(self, ms: str) -> None:
        """Let time pass; replicas with a due deadline act."""
        self.cluster.now += int(ms)
        for node in self.nodes.values():
            if node.is_up and node.fetch.deadline <= self.cluster.now:
                node.fetch.tick(self.cluster.now)

    # --- the partition

    def do_push(self, name: str, *words: str) -> str | None:
        """Append a batch of one or more records."""
        if not self.nodes[name].fetch.is_leader:
            return f"{name} does not take it"
        self.nodes[name].push("", int(words[0]) if words else 1)
        return None

    # --- looking

    def do_show(self, *names: str) -> str:
        return "\n".join(self.nodes[name].show() for name in names or self.nodes)

    def do_holders(self, name: str, end: str) -> str:
        return " ".join(self.nodes[name].fetch.holders(int(end))) or "nobody"

    def do_due(self, *names: str) -> str:
        return "\n".join(
            f"{name} {'waits' if self.nodes[name].fetch.deadline < NEVER else 'idle'}"
            for name in names or self.nodes
        )


def batches(epochs: str, text: str) -> list[Batch]:
    """Return a batch of one record for each of the given epochs."""
    return [batch(base, int(epoch), text) for base, epoch in enumerate(epochs.split(","))]


def show(letter: Letter) -> str:
    """Format a message as one line."""
    m = letter.message
    text = f"{letter.source}>{letter.target} "
    match m:
        case ReplicaFetch():
            return f"{text}t{m.leader_epoch} fetch {m.offset}/{m.last_epoch}"
        case ReplicaFetched(error=None, diverging=None):
            text += f"t{m.leader_epoch} fetched {m.offset} hw {m.high_watermark}"
            return text + "".join(f" +{b.end}/{b.epoch}" for b in split(m.data))
        case ReplicaFetched(error=None, diverging=(epoch, end)):
            return f"{text}t{m.leader_epoch} diverging at {end}/{epoch}"
        case ReplicaFetched(error=error):
            return f"{text}t{m.leader_epoch} refused {type(error).__name__}"
        case AlterIsr():
            lives = " ".join(f"{n}.{i}" for n, i in zip(m.in_sync, m.incarnations, strict=True))
            return f"{text}t{m.epoch} wants {lives} version {m.version}"
        case _:
            return text + repr(m)
