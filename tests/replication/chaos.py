"""A Raft cluster under random faults, in an order decided by a seed.

The run checks at all times: Raft's promises (one leader in a term, log matching, leader
completeness, committed entries never change); the high watermark never decreases; no message leaves
before its data is durable; reads see all earlier commits. At the end all faults are healed; then
all replicas must agree, and become idle.
"""

from __future__ import annotations

import random

import attrs

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import RaftAppend, RaftAppended, RaftVote, RaftVoted
from pymq.core.observe.coverage import BrokenInvariant
from pymq.core.types import NEVER
from pymq.replication.raft.election import RaftRole
from pymq.replication.raft.quorum_features.messages import RaftSnapshot
from tests.replication.harness import (
    Batch,
    Cluster,
    Disk,
    Letter,
    MakeRaft,
    Node,
    SnapshotFakeLog,
    default_raft,
    hard,
)

BAG_MAX = 60


class Violation(AssertionError):
    """A promise was broken."""


class Chaos:
    """One random run of replicas under faults."""

    def __init__(self, seed: int, make_raft: MakeRaft = default_raft) -> None:
        rng = self.rng = random.Random(seed)
        size = rng.choice([1, 2, 3, 3, 3, 3, 3, 5, 5, 5])
        names = tuple("ABCDE"[:size])
        self.learners = ("C",) if size == 3 and rng.randrange(8) == 0 else ()
        config = ReplicationConfig(
            election_ms=rng.choice([50, 150]),
            retry_ms=rng.choice([20, 100]),
            tell_ms=20 * (seed % 2),
            append_bytes=rng.choice([1, 1, 300, 1 << 20]),
            in_flight=rng.choice([1, 2, 8]),
        )
        self.cluster = Cluster(
            names,
            seed=seed,
            config=config,
            snapshots=rng.randrange(3) == 0,
            learners=self.learners,
            make_raft=make_raft,
        )
        self.cluster.on_post = self.posted
        self.loss = rng.choice([0, 0, 10, 30])  # loss of messages in percent
        self.copies = rng.choice([0, 0, 10, 40])
        self.reorder = rng.choice([True, True, False])
        weights = {
            self.deliver: [30],
            self.disk: [10, 20, 40],
            self.push: [2, 5, 15],
            self.pass_time: [5, 10],
            self.notice: [5, 10, 20],
            self.crash: [0, 1, 3, 6],
            self.cut: [0, 1, 3],
            self.odd: [0, 3, 6],
            self.depose: [0, 2, 8, 15],
            self.hurry: [0, 3, 8],
        }
        self.haste = rng.choice([10, 30, 60])  # number of steps between two faults
        self.acts = list(weights)
        self.weights = [rng.choice(chances) for chances in weights.values()]
        self.slow = rng.choice(["", *names])  # the node with a slow disk
        self.evicts = rng.choice([0, 0, 3])
        self.committed: list[Batch] = []  # the committed batches, as the first replica had them
        self.known: dict[int, Batch] = {}  # the same batches by their end
        self.leaders: dict[int, tuple[str, int]] = {}  # term -> (node, its incarnation)
        self.led: dict[str, int] = {}  # the last term in which a node led
        self.senders: dict[int, str] = {}  # term -> the sender of its appends
        self.marks: dict[str, int] = {}  # the last high watermark of this incarnation
        # incarnations by (node, peer), as the node knows them
        self.incarnations: dict[tuple[str, str], int] = {}
        self.lives = dict.fromkeys(names, 0)
        self.asked: dict[tuple[str, int], int] = {}  # (node, token) -> committed at the request
        self.token = 0
        self.pushed = 0
        self.is_healed = False

    # --- one run

    def run(self, steps: int = 400) -> None:
        nodes = self.cluster.nodes.values()
        for node in nodes:
            self.start(node, is_new=True)
        for _ in range(steps):
            self.act()
        self.heal()

    def start(self, node: Node, is_new: bool = False) -> None:
        node.state_first = self.rng.randrange(2) == 0
        node.start(is_new)
        self.lives[node.me] += 1
        self.marks[node.me] = 0
        self.led.pop(node.me, None)
        self.asked = {key: end for key, end in self.asked.items() if key[0] != node.me}

    def act(self) -> None:
        (act,) = self.rng.choices(self.acts, self.weights)
        act(self.rng.choice(list(self.cluster.nodes.values())))
        self.check()

    def hurry(self, node: Node) -> None:
        """Raise the rate of steps for a while."""
        for _ in range(self.rng.randrange(self.haste)):
            self.disk(self.rng.choice(list(self.cluster.nodes.values())))
            self.deliver(node)
            self.check()

    def depose(self, node: Node) -> None:
        """Cut off a leader, alone or with a few, possibly just after it has taken a record.

        The leader may continue for some time without noticing the cut.
        """
        cluster, rng = self.cluster, self.rng
        if not cluster.leaders:
            self.pass_time(node)
            return
        leader = rng.choice(cluster.leaders)
        if leader.raft.is_leader and rng.randrange(2):
            self.push(leader)
        names = list(cluster.nodes)
        rng.shuffle(names)
        here = {leader.me, *names[: rng.randrange(len(names))]}
        cluster.cuts = {(a, b) for a in names for b in names if (a in here) != (b in here)}
        knows = rng.randrange(2)
        for me in cluster.up:
            for peer in cluster.nodes:
                if peer != me.me and (knows or me.me not in here):
                    is_alive = cluster.nodes[peer].is_up and (peer, me.me) not in cluster.cuts
                    self.tell(me, peer, is_alive)
        others = [each for each in cluster.up if each.raft.deadline < NEVER]
        for each in others:
            if rng.randrange(2):
                cluster.now = max(cluster.now, each.raft.deadline)
                each.raft.tick(cluster.now)
                return

    def deliver(self, node: Node) -> None:
        bag, rng = self.cluster.bag, self.rng
        if not bag:
            return
        while len(bag) > BAG_MAX:
            del bag[rng.randrange(len(bag))]
        index = rng.randrange(len(bag)) if self.reorder else 0
        if rng.randrange(100) < self.loss:
            del bag[index]
        else:
            self.cluster.deliver(index, keep=rng.randrange(100) < self.copies)

    def disk(self, node: Node) -> None:
        if not node.is_up or (node.me == self.slow and self.rng.randrange(10)):
            return
        if node.reads and self.rng.randrange(2):
            node.read()
        elif node.writing is not None:
            node.sync()
        elif node.has_work:
            node.write()

    def push(self, node: Node) -> None:
        leaders = [each for each in self.cluster.up if each.raft.is_leader]
        if leaders:
            self.pushed += 1
            self.rng.choice(leaders).push(f"{self.pushed}", self.rng.choice([1, 1, 2, 5]))

    def pass_time(self, node: Node) -> None:
        cluster = self.cluster
        if self.rng.randrange(3) == 0 and cluster.deadline < NEVER:
            cluster.now = max(cluster.now, cluster.deadline)
        else:
            cluster.now += self.rng.randrange(1, 100)
        for each in cluster.up:
            if each.raft.deadline <= cluster.now and self.rng.randrange(4):
                each.raft.tick(cluster.now)

    def notice(self, node: Node) -> None:
        """Notify a broker that another broker is alive or dead, which may be true or false."""
        cluster, rng = self.cluster, self.rng
        me, peer = node, rng.choice(list(cluster.nodes))
        if not me.is_up or peer == me.me:
            return
        is_alive = cluster.nodes[peer].is_up and (peer, me.me) not in cluster.cuts
        if rng.randrange(30) == 0:
            is_alive = not is_alive
        self.tell(me, peer, is_alive)

    def tell(self, me: Node, peer: str, is_alive: bool) -> None:
        key = (me.me, peer)
        knew = self.incarnations.get(key, 1)
        if is_alive:
            self.incarnations[key] = self.lives[peer]
        if is_alive != (peer not in me.dead) or (is_alive and knew != self.lives[peer]):
            me.hears(peer, is_alive)

    def crash(self, node: Node) -> None:
        if node.is_up:
            done = self.rng.randrange(len(node.writing.ops) + 1) if node.writing else 0
            node.crash(done)
            if node.me in self.learners and self.rng.randrange(2):
                node.disk = Disk()
                self.incarnations.clear()  # each broker will be notified again
        else:
            self.start(node)

    def cut(self, node: Node) -> None:
        cluster, rng = self.cluster, self.rng
        if cluster.cuts and rng.randrange(2):
            cluster.cuts.clear()
            return
        names = list(cluster.nodes)
        kind = rng.randrange(3)
        if kind == 0:  # cut one link in one direction
            a, b = rng.choice(names), rng.choice(names)
            cluster.cuts.add((a, b))
        elif kind == 1:  # cut a single link
            a, b = rng.choice(names), rng.choice(names)
            cluster.cuts |= {(a, b), (b, a)}
        else:
            here = {name for name in names if rng.randrange(2)}
            cluster.cuts |= {(a, b) for a in names for b in names if (a in here) != (b in here)}

    def odd(self, node: Node) -> None:
        """Inject a rare fault."""
        rng = self.rng
        if not node.is_up:
            return
        dice = rng.randrange(10) + (5 if isinstance(node.log, SnapshotFakeLog) else 0)
        if dice < 2:
            node.raft.transfer(rng.choice(list(self.cluster.nodes)), self.cluster.now)
        elif dice < 3:
            self.zkserver(node)
        elif dice < 6:
            self.token += 1
            if node.raft.read_index(self.token, self.cluster.now):
                self.asked[node.me, self.token] = self.log_end
        elif dice < 8 and self.evicts:
            node.log.evict(rng.randrange(node.log.end + 1))
        elif isinstance(node.log, SnapshotFakeLog) and node.raft.high_watermark > node.log.start:
            ends = [b.end for b in node.log.batches if b.end <= node.raft.high_watermark]
            node.log.compact(rng.choice(ends))

    def zkserver(self, node: Node) -> None:
        """Give a replica the zkserver's state, which may name a leader that was elected since."""
        cluster = self.cluster
        terms = [term for term in sorted(self.leaders) if term > cluster.state.epoch]
        if terms:
            term = self.rng.choice(terms)
            leader = self.leaders[term][0]
            cluster.state = attrs.evolve(cluster.state, epoch=term, leader=leader)
        node.raft.adopt(cluster.state, cluster.now)

    # --- what must hold

    @property
    def log_end(self) -> int:
        return self.committed[-1].end if self.committed else 0

    def check(self) -> None:
        for node in self.cluster.up:
            raft = node.raft
            if raft.election.role is RaftRole.LEADER:
                self.check_leader(node)
            if raft.high_watermark < self.marks[node.me]:
                raise Violation(f"{node.me}: the high watermark went back")
            if raft.high_watermark > self.marks[node.me]:
                self.check_committed(node, self.marks[node.me])
                self.marks[node.me] = raft.high_watermark
            for token, end in raft.reads.take(raft.high_watermark):
                asked = self.asked.pop((node.me, token))
                if end is not None and end < asked:
                    raise Violation(f"{node.me}: a read saw {end}, and {asked} was committed")

    def check_leader(self, node: Node) -> None:
        term, me = node.raft.epoch, (node.me, self.lives[node.me])
        if self.leaders.setdefault(term, me) != me:
            raise Violation(f"{me} and {self.leaders[term]} lead term {term}")
        if self.led.get(node.me) == term:
            return
        self.led[node.me] = term
        have = {b.end: b for b in node.log.batches}
        for b in self.committed:
            if b.end > node.log.start and have.get(b.end) != b:
                raise Violation(f"{node.me} leads term {term} without {b.end}/{b.epoch}")

    def check_committed(self, node: Node, since: int) -> None:
        """Compare a replica's committed batches with the known ones, and extend these."""
        high_watermark = node.raft.high_watermark
        if high_watermark > node.disk.end:
            raise Violation(f"{node.me}: committed beyond the disk")
        for b in node.log.batches:
            if not since < b.end <= high_watermark:
                continue
            if b.end > self.log_end:
                if b.base != self.log_end:
                    raise Violation(f"{node.me}: what is committed does not go on at {b.base}")
                self.committed.append(b)
                self.known[b.end] = b
            elif self.known.get(b.end) != b:
                raise Violation(f"{node.me}: {b.end} was committed otherwise before")

    def check_matching(self) -> None:
        logs = [node.log.batches for node in self.cluster.up]
        for i, one in enumerate(logs):
            for other in logs[:i]:
                theirs = {(b.end, b.epoch): b for b in other}
                same = False  # equal batches have equal logs before them
                for b in reversed(one):
                    found = theirs.get((b.end, b.epoch))
                    if same and found is None and other and b.base >= other[0].base:
                        raise Violation("logs that match later do not match before")
                    if found is not None and found != b:
                        raise Violation("two batches have one offset and epoch")
                    same = same or found is not None

    def posted(self, letter: Letter) -> None:
        """Check that no message is sent before its data is durable."""
        node = self.cluster.nodes[letter.source]
        disk, m = node.disk, letter.message
        match m:
            case RaftAppended(conflict=None, end=end) if end > disk.end and end >= 0:
                raise Violation(f"{node.me} has {end} not on disk, but says so")
            case RaftVoted(pre=False, granted=True) | RaftVote(pre=False):
                self.check_vote(node, disk, letter)
            case RaftAppend(epoch=term) | RaftSnapshot(epoch=term):
                if (saved := hard(disk.saved)) is None or saved.term < term:
                    raise Violation(f"{node.me} leads term {term} and has not saved it")
                if (other := self.senders.setdefault(term, node.me)) != node.me:
                    raise Violation(f"{node.me} and {other} send appends of term {term}")
            case _:
                pass

    def check_vote(self, node: Node, disk: Disk, letter: Letter) -> None:
        m, saved = letter.message, hard(disk.saved)
        assert isinstance(m, RaftVote | RaftVoted)
        vote = node.me if isinstance(m, RaftVote) else letter.target
        if saved is None or saved.term < m.epoch:
            raise Violation(f"{node.me} votes in term {m.epoch} and has not saved it")
        if saved.term == m.epoch and saved.vote != vote:
            raise Violation(f"{node.me} votes for {vote} and has saved {saved.vote}")

    # --- afterwards

    def heal(self) -> None:
        """End all faults, and check that the replicas agree and become idle."""
        self.check_matching()
        cluster = self.cluster
        self.loss = self.copies = 0
        cluster.cuts.clear()
        for node in cluster.nodes.values():
            if not node.is_up:
                self.start(node)
            elif node.writing is not None:
                node.sync()
        for me in cluster.nodes.values():
            for peer in cluster.nodes:
                if peer != me.me:
                    self.tell(me, peer, True)
        self.check()
        for _ in range(40):
            cluster.run(500)
            self.check()
            if self.is_settled():
                break
        else:
            raise Violation("it does not come to rest:\n" + self.show())
        self.check_matching()
        (leader,) = cluster.leaders
        before = cluster.sent
        leader.push("last", 1)
        cluster.run(cluster.config.tell_ms)
        self.check()
        if not self.is_settled() or any(
            node.raft.high_watermark != leader.log.end for node in cluster.up
        ):
            raise Violation("it does not take one more record:\n" + self.show())
        if cluster.sent - before > 4 * (len(cluster.nodes) - 1):
            raise Violation(f"{cluster.sent - before} messages for one record")
        for token in [key for key in self.asked if key[0] == leader.me]:
            raise Violation(f"read {token} was never answered")

    def is_settled(self) -> bool:
        cluster = self.cluster
        return (
            len(cluster.leaders) == 1
            and cluster.leaders[0].raft.is_leader
            and cluster.deadline == NEVER
            and all(node.raft.high_watermark == cluster.leaders[0].log.end for node in cluster.up)
        )

    def show(self) -> str:
        return "\n".join(node.show() for node in self.cluster.nodes.values())


def run(seed: int, make_raft: MakeRaft = default_raft, steps: int = 400) -> Chaos:
    """Run a seed.

    Raises:
        Violation: a promise was broken, or :class:`BrokenInvariant`, or an ``assert``.
    """
    chaos = Chaos(seed, make_raft)
    try:
        chaos.run(steps)
    except (AssertionError, BrokenInvariant) as error:
        error.add_note(f"seed {seed}\n{chaos.show()}")
        raise
    return chaos
