"""A few seeds take the machines to most of the places that are marked as easily missed."""

from __future__ import annotations

from collections import Counter

from pymq.testing.marks import all_marks
from pymq.testing.plan import generate
from pymq.testing.swarm import LIVENESS, run_plan

RUNS = [
    *((seed, "rolls", 2) for seed in range(3)),
    *((seed, "crash", 1) for seed in range(2)),
    *((seed, "swarm", 2) for seed in (0, 2, 3)),
    (1, "wipe", 1),
]
UNREACHED = set(
    """
    commits.conflicted commits.was_not_done election.was_won_already fetch.diverging
    fetch.from_disk fetch.isr_shrink fetch.restarted_leader fetch.stale_epoch fetch.truncate
    group.load_again group.not_stored leases.dead leases.overtaken log.cut.stable log.seal_cut
    notices.again.full notices.gone_meanwhile notices.removed partition.appointed_too_late
    partition.fence_lifted partition.recover_earlier partition.repeat partition.votes_lost
    producers.fenced producers.gap producers.later_epoch producers.old_repeat producers.repeat
    group.load_elsewhere producers.unknown raft.append.corrupt raft.conflict.learner
    raft.conflict.lost partition.behind_the_seal
    raft.conflict.stale raft.leader_gave_up raft.read.confirmed raft.read.too_early
    raft.self_vote.too_late raft.snapshot.done raft.snapshot.ignored raft.snapshot.installed
    raft.snapshot.known raft.snapshot.missing raft.snapshot.refused raft.snapshot.sent
    raft.stale.answer raft.stale.leader raft.stale.vote raft.stranger raft.take_over
    raft.take_over.ignored raft.transfer raft.transfer.ignored raft.transfer.lost
    raft.transfer.nobody raft.transfer.timeout raft.transfer.told raft.truncated
    raft.vote.learner raft.vote.log_behind registry.old_incarnation registry.replaced
    raft.commit.earlier_term repair.asked_again
    repair.corrupt repair.cut rolls.caller_goes_first rolls.commit_failed
    rolls.follower_in_trouble rolls.leader_in_trouble rolls.orphaned_seal
    rolls.other_incarnation serving.out_of_range serving.unsettled
    """.split()
)


def test_there_are_many_marks() -> None:
    """They are found where they stand, and each has one name."""
    marks = all_marks()
    assert len(marks) >= 100
    assert marks["raft.elected"] == "replication/raft.py"
    assert marks["leases.again"] == "core/leases.py"  # one of two in the same call


def test_most_of_them_are_passed() -> None:
    """What is not is listed: a mark that is passed now, or not any more, is to be looked at."""
    counts: Counter[str] = Counter()
    for seed, profile, zkservers in RUNS:
        plan = generate(seed, brokers=3, zkservers=zkservers, profile=profile, seconds=6)
        counts += run_plan(plan, waive=LIVENESS, marks=True).marks
    missing = set(all_marks()) - set(counts)
    assert missing <= UNREACHED, f"not passed any more: {sorted(missing - UNREACHED)}"
    assert len(UNREACHED) < len(all_marks()) / 2
