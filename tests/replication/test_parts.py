"""The parts of Raft, each alone."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

import pymq.replication
from pymq.core.message import RaftAppend, RaftVote, ReplicaFetch
from pymq.core.observe.coverage import BrokenInvariant, counting, invariant, mark
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.errors import CorruptMetadata
from pymq.replication.quorum import majority, reached
from pymq.replication.raft.election import Ballot
from pymq.replication.raft.log_matching import conflict, end_of_data, held, resume
from pymq.replication.raft.persistent_state import HardState
from pymq.replication.raft.progress import FollowerProgress, Mode
from pymq.replication.raft.quorum_features.read_index import PendingReads
from tests.replication import chaos
from tests.replication.harness import BLOCK, Batch, Cluster, FakeLog, Node, batch
from tests.replication.raft_script import RaftScript
from tests.simulator.script import check_script

SCRIPTS = Path(__file__).parents[1] / "data" / "raft"

# --- quorum and votes


def test_reached_is_what_a_majority_has() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        ends = [rng.randrange(8) for _ in range(rng.randrange(1, 8))]
        have = [end for end in range(8) if sum(e >= end for e in ends) >= majority(len(ends))]
        assert reached(ends) == max(have)


@pytest.mark.parametrize("members", range(1, 8))
def test_two_majorities_share_a_member(members: int) -> None:
    assert 2 * majority(members) > members >= majority(members)


def test_a_ballot_is_won_or_lost_as_soon_as_it_must_be() -> None:
    ballot = Ballot(5)
    for member, granted in ("A", True), ("B", False), ("B", True), ("C", False):
        ballot.cast(member, granted)
        assert (ballot.is_won, ballot.is_lost) == (False, False)
    ballot.cast("D", False)
    assert (ballot.is_won, ballot.is_lost) == (False, True)
    assert Ballot(4).is_lost is False


@pytest.mark.parametrize("state", [HardState(0, None), HardState(1 << 40, "A")])
def test_hard_state_is_what_was_saved(state: HardState) -> None:
    assert HardState.loads(state.dumps()) == state


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x83\x02\x01\xf6", b"\x83\x01\x20\xf6", b"\x80"])
def test_hard_state_that_is_none(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        HardState.loads(data)


# --- progress


def progress(match: int = 3, following: int = 5, mode: Mode = Mode.PROBE) -> FollowerProgress:
    return FollowerProgress("B", match, following, 0, mode, sent=8)


def test_progress_probe_never_goes_below_what_matches() -> None:
    p = progress()
    p.probe(1)
    assert (p.next, p.mode, p.is_waiting) == (3, Mode.PROBE, False)


def test_progress_frees_what_is_answered() -> None:
    p = progress(3, 3, Mode.REPLICATE)
    p.in_flight.extend([4, 6, 9])
    p.next = 9
    assert p.answered(6)
    assert (list(p.in_flight), p.match, p.next) == ([9], 6, 9)
    assert not p.answered(6)
    assert not p.answered(2)
    assert (list(p.in_flight), p.match) == ([9], 6)
    assert p.answered(12)
    assert (list(p.in_flight), p.match, p.next) == ([], 12, 12)


@pytest.mark.parametrize(
    ("mode", "end", "counts"),
    [
        (Mode.PROBE, 5, True),  # the offset at which the probe matches
        (Mode.PROBE, 8, True),  # the end offset of the probe
        (Mode.PROBE, 6, False),
        (Mode.REPLICATE, 3, False),
        (Mode.REPLICATE, 4, True),
        (Mode.READ, 4, False),
        (Mode.READ, 5, True),
        (Mode.SNAPSHOT, 9, False),
    ],
)
def test_progress_knows_which_refusals_count(mode: Mode, end: int, counts: bool) -> None:
    assert progress(mode=mode).refused(end) is counts


def test_progress_retries_from_what_is_known() -> None:
    for mode, at in (Mode.PROBE, 5), (Mode.REPLICATE, 3), (Mode.READ, 3), (Mode.SNAPSHOT, 8):
        p = progress(mode=mode)
        p.retry()
        assert (p.mode, p.next, p.retry_at) == (Mode.PROBE, at, NEVER)


# --- where logs part


def history(rng: random.Random) -> list[list[Batch]]:
    """Return logs left by leaders that replicate in part before the next election."""
    logs: list[list[Batch]] = [[] for _ in range(3)]
    for epoch in range(1, rng.randrange(2, 8)):
        log = logs[rng.randrange(3)]
        for _ in range(rng.randrange(4)):
            end = log[-1].end if log else 0
            log.append(batch(end, epoch, "", rng.choice([1, 2, 7])))
        for other in logs:
            if other is not log and rng.randrange(2):
                other[:] = log[: rng.randrange(len(log) + 1)]
    return logs


def log_of(batches: list[Batch]) -> FakeLog:
    node = Node("A", Cluster(("A", "B", "C")))
    node.disk.batches = list(batches)
    return FakeLog(node)


def test_back_off_finds_where_logs_part() -> None:
    """Each probe is at the end of a batch in the leader's log, and never above the previous one."""
    rng = random.Random(2)
    longest = 0
    for _ in range(1_500):
        ours, theirs, _ = history(rng)
        leader, follower = log_of(ours), log_of(theirs)
        same = 0
        for mine, other in zip(ours, theirs, strict=False):
            if mine != other:
                break
            same = mine.end
        at, rounds = leader.end, 0
        while (pair := conflict(follower, at, leader.epoch_at(at))) is not None:
            before, at = at, resume(leader, *pair)
            assert at in [0, *(b.end for b in ours)]
            assert same <= at < before or at == before == 0 or at <= same
            rounds += 1
            assert rounds < 10
        longest = max(longest, rounds)
        assert at <= same
        data = leader.gather(at, 1 << 20, leader.end)
        position, end = held(follower, at, data)
        assert end == same
        assert end_of_data(at, data) == leader.end
        assert end_of_data(end, data[position:]) == leader.end
    assert longest <= 6  # no more than the number of epochs


# --- reads


def test_reads_share_rounds() -> None:
    reads = PendingReads()
    assert not reads.begin(0)
    reads.add(1)
    assert reads.begin(4)
    assert not reads.begin(5)
    reads.add(2)
    assert reads.confirmed([1, 0, 0]) == []
    assert reads.confirmed([1, 1, 0]) == [(1, 4)]
    assert reads.begin(6)
    assert reads.confirmed([2, 1, 1]) == []
    reads.add(3)
    assert reads.give_up() == [2, 3]
    assert not reads


# --- the machine itself, where a script cannot express the case


def make(*names: str, seed: int = 0) -> Cluster:
    cluster = Cluster(names, seed=seed)
    for node in cluster.nodes.values():
        node.start(is_new=True)
    cluster.settle()
    return cluster


def test_election_timeouts_are_random() -> None:
    """Each possible timeout occurs, and two members seldom have the same one (Raft 5.2)."""
    waits: Counter[int] = Counter()
    same = 0
    for seed in range(2_000):
        cluster = make("A", "B", "C", seed=seed)
        cluster.nodes["A"].crash()
        for name in "BC":
            cluster.nodes[name].hears("A", False)
        b, c = (cluster.nodes[name].raft.deadline for name in "BC")
        waits.update([b, c])
        same += b == c
    base = cluster.config.election_ms
    assert set(waits) == set(range(base, 2 * base))
    assert same < 2_000 // 50


@pytest.mark.parametrize("name", ["A", "B"])
def test_what_could_not_be_saved_is_saved_before_anything_is_taken_in(name: str) -> None:
    """The disk is full when the block begins, and the replica starts again.

    A replica saves its term before it appends records; without a term, recovery would refuse the
    block. Found by the simulator: --profile all --seconds 4 --seeds 7383.
    """
    cluster = Cluster(("A", "B"), seed=0)
    node = cluster.nodes[name]
    node.start(is_new=True)
    node.write()
    node.crash()
    node.start(is_new=False)
    node.write()
    node.sync()
    assert node.disk.saved is not None
    assert not node.raft.is_leader  # The replica does not know the fate of its earlier messages.


def test_what_is_damaged_is_not_taken_in() -> None:
    cluster = make("A", "B")
    good = batch(0, 1).data
    node = cluster.nodes["B"]
    for at in range(0, len(good), 7):
        bad = bytearray(good)
        bad[at] ^= 0x40
        node.raft.step("A", RaftAppend(BLOCK, 1, 0, 0, 1, bytes(bad)), 0)
        assert (node.log.end, node.raft.high_watermark) == (0, 0)
    node.raft.step("A", RaftAppend(BLOCK, 1, 0, 0, 1, good), 0)
    assert node.log.end == 1


def test_damage_does_not_look_like_a_conflict() -> None:
    """A damaged append that fails the comparison does not cut the log."""
    cluster = make("A", "B")
    node = cluster.nodes["B"]
    good = batch(0, 1).data
    node.raft.step("A", RaftAppend(BLOCK, 1, 0, 0, 0, good), 0)
    for at in range(0, 96, 5):
        bad = bytearray(good)
        bad[at] ^= 0x01
        node.raft.step("A", RaftAppend(BLOCK, 1, 0, 0, 0, bytes(bad)), 0)
        assert node.log.end == 1


def test_messages_of_other_disciplines_are_none_of_its() -> None:
    node = make("A", "B").nodes["A"]
    node.raft.step("B", ReplicaFetch(0, BLOCK, 0, 0, 9, 1, 1), 0)
    assert node.raft.epoch == 1


def test_what_was_held_back_leaves_in_the_same_ready_as_the_write() -> None:
    cluster = make("A", "B", "C")
    node = cluster.nodes["B"]
    node.dead.add("A")
    node.raft.step("C", RaftVote(BLOCK, 2, 0, 0, pre=False), 0)
    assert node.raft.is_dirty
    ready = Ready()
    node.raft.flush(ready, 0)
    assert [len(ready.write), len(ready.after), len(ready.send)] == [1, 1, 0]
    assert not node.raft.is_dirty


def test_a_snapshot_that_is_not_at_hand_is_waited_for() -> None:
    script = RaftScript()
    for line in "nodes A B C snapshots", "cut C / A B", "push A", "settle", "compact A 1":
        script(line.split()[0], line.split()[1:])
    log = script.node("A").log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "snapshot", lambda: None)
        assert script("mend", []).strip() == ""
        assert script("pass", ["100"]).strip() == ""
    assert script("pass", ["100"]).strip() == "A>C t1 snapshot 1/1"
    script("settle", [])
    assert script("due", []).split() == ["A", "idle", "B", "idle", "C", "idle"]


# --- marks


def test_marks_are_counted_only_while_asked() -> None:
    mark("before")
    with counting() as outer:
        mark("once")
        with counting() as inner:
            mark("within")
        mark("once")
    mark("after")
    assert (outer, inner) == ({"once": 2}, {"within": 1})


def test_an_invariant_says_what_it_found() -> None:
    invariant(True, "all is well")
    with pytest.raises(BrokenInvariant, match="up is not down: up=1, down=2"):
        invariant(False, "up is not down", up=1, down=2)


def test_scripts_and_chance_come_by_every_mark() -> None:
    """Scripts and random runs reach every mark: an unreached mark is an untested branch."""
    source = Path(pymq.replication.__file__).parent
    marks = {
        name
        for path in sorted(source.rglob("*.py"))
        for name in re.findall(r'"(raft\.[a-z_.]+)"', path.read_text(encoding="utf-8"))
    }
    with counting() as seen:
        for path in sorted(SCRIPTS.glob("*.txt")):
            check_script(path, RaftScript())
    with counting() as met:
        for seed in range(100):
            chaos.run(seed)
    # see the comment above
    assert marks - set(seen) <= {"raft.append.corrupt", "raft.snapshot.missing"}
    assert len(marks) >= 50
    assert len(marks - set(met)) <= 16  # marks that random runs seldom reach
