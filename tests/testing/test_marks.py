"""Runs of the simulator reach the code paths that are marked as rarely reached.

Two simulations are counted: that of a cluster, and that of the replicas of one block, which also
uses features that a cluster does not use yet (snapshots of the log, reads by index, transfers of
leadership). Marks that need several events within microseconds are reached by scripts and tests,
which are run here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pymq.core.observe.coverage import counting
from pymq.testing.faults.plan import Plan, generate
from pymq.testing.marks import all_marks
from pymq.testing.run import run_plan
from tests.broker import test_batch_copies, test_broker
from tests.broker.hosting import test_removals
from tests.client import test_cluster_groups, test_cluster_idle_workers
from tests.controller import (
    test_controller_brokers,
    test_controller_election,
    test_controller_rolls,
    test_gradual_reads,
    test_large_topics,
    test_made_anew,
    test_many_partitions,
    test_slices,
)
from tests.controller.operations import test_departures, test_subscribers
from tests.controller.state import test_transactions
from tests.controller.transitions import test_partition_sweep, test_takeover
from tests.core import test_producer_table, test_reading_again
from tests.core.block import test_idempotence, test_log, test_recovery
from tests.core.group import test_coordinator
from tests.core.message import test_chunks as test_states
from tests.core.partition import test_fetch as test_serving
from tests.core.partition import test_maintenance
from tests.core.pending import test_fetch_limits
from tests.core.repair import test_block_repair, test_repair_scheduler, test_repair_throttle
from tests.replication import chaos, test_fetch, test_parts
from tests.replication.fetch_script import FetchScript
from tests.replication.raft_script import RaftScript
from tests.replication.test_scripts import FETCH_SCRIPTS, SCRIPTS
from tests.simulator.script import check_script
from tests.testing import (
    test_damaged_copies,
    test_late_seals,
    test_no_descriptors,
    test_promotion,
    test_repeats,
    test_rereplication,
    test_what_enters,
    test_what_lies_inside,
)
from tests.testing.test_run import PLANS

# Seeds whose runs pass many marks, and the number of further runs for the remaining marks, which
# changes with the code.
GOOD = """117 529 119 17 640 2022 18 549 74 92 2024 668 920 2000 540 46 330 140 38 57
167 343 376 3038 4438 4460 4006""".split()
KEPT = "repair-cannot-write wiped-213-6 wiped-18-6 more-ranges-than-are-written".split()
SEEDS_MAX = 20
CHAOS = 400


def _refused(what: str) -> None:
    test_what_enters.test_an_unsound_batch_is_refused_and_nothing_else_is_touched(what, 1, "leader")


def _damaged(kind: str) -> None:
    test = test_what_lies_inside.test_what_every_copy_has_wrong_was_so_when_it_came
    test(kind, pytest.MonkeyPatch())


def _patched(test: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test(patch)


# Tests that reach marks which random runs seldom pass.
DIRECTED: dict[str, Callable[[], None]] = {
    "broker.late_state": lambda: test_broker.test_a_late_state_does_not_bring_back_what_was_stopped(
        test_broker.Bench()
    ),
    "copies.again": test_batch_copies.test_who_asks_again_takes_its_copy_over,
    "copies.held_up": test_batch_copies.test_a_copy_is_paid_for_as_it_is_made,
    "copies.failed": test_batch_copies.test_an_append_that_is_refused_ends_a_copy,
    "departures.asked_again": (
        test_transactions.test_a_broker_that_leaves_is_answered_what_it_has_asked_last
    ),
    "departures.called_off": partial(
        _patched, test_departures.test_a_departure_ends_when_its_broker_has_started_anew
    ),
    "departure.out_of_time": test_departures.test_a_departure_ends_in_time,
    "fetches.gone": test_fetch_limits.test_what_was_asked_by_who_has_gone_is_not_read,
    "fetches.too_many": test_fetch_limits.test_so_many_fetches_wait_and_no_more,
    "fetches.wait": test_fetch_limits.test_what_waits_is_served_as_soon_as_there_is_room,
    "fetch.past": (test_fetch.test_what_a_follower_had_before_it_was_started_anew_counts_no_more),
    "group.load_again": test_coordinator.test_damaged_offsets_do_not_break_the_broker,
    "group.load_corrupt": test_coordinator.test_damaged_offsets_do_not_break_the_broker,
    "group.member_without_topic": lambda: (
        test_coordinator.test_who_waits_for_records_of_a_deleted_topic_is_told_at_once(
            test_coordinator.Host()
        )
    ),
    "group.load_elsewhere": test_coordinator.test_what_was_read_elsewhere_is_written_anew,
    "group.offsets_moved": test_coordinator.test_what_was_read_elsewhere_is_written_anew,
    "group.loading_refused": test_coordinator.test_requests_do_not_wait_for_ever_for_the_offsets,
    "promotion.offsets": partial(
        test_promotion.test_the_offsets_topic_goes_to_raft_when_the_third_broker_comes, 0
    ),
    "commits.smaller_slices": test_slices.test_slices_fit_a_coordinator_that_takes_less,
    "sweep.gets_nowhere": partial(
        _patched,
        partial(
            test_partition_sweep.test_a_sweep_ends_though_everything_changes_between_two_slices, 1
        ),
    ),
    "topics.not_made": (
        test_large_topics.test_a_topic_that_cannot_be_made_in_full_leaves_nothing_behind
    ),
    "topics.removed_later": (
        test_large_topics.test_a_name_may_be_asked_for_while_what_a_crash_has_left_is_removed
    ),
    "repair.paced": test_rereplication.test_a_decommission_ends_with_an_empty_broker,
    "log.begins_again": partial(
        test_no_descriptors.test_a_partition_goes_on_after_its_next_block_could_not_be_begun,
        "leader",
        3,
    ),
    "log.durable_is_gone": (test_recovery.test_what_was_durable_is_gone_when_the_log_is_read_again),
    "partition.recover_earlier": partial(
        test_recovery.test_a_roll_before_the_store_has_answered, is_asked=False
    ),
    "partition.repeat_of_too_few": test_repeats.test_it_is_answered_once_a_majority_has_it,
    "partition.past_unread": partial(
        test_recovery.test_a_roll_before_the_store_has_answered, is_asked=True
    ),
    "partition.unsound": partial(_refused, "count"),
    "partition.invalid": partial(_refused, "tomorrow"),
    "reader.damaged": partial(_damaged, "reader"),
    "leased.damaged": partial(_damaged, "group"),
    "repair.clipped": test_block_repair.test_a_holder_has_compacted_what_this_copy_has_half_of,
    "repair.cut": (
        test_block_repair.test_what_the_sealed_block_has_not_is_cut_though_there_are_as_many
    ),
    "repair.damaged": test_block_repair.test_a_damaged_copy_that_nobody_else_holds_stays,
    "repair.replaced": (
        test_block_repair.test_a_damaged_copy_goes_when_there_is_a_better_one_and_not_before
    ),
    "repair.nobody_answers": (
        test_repair_scheduler.test_who_does_not_answer_is_asked_by_one_at_a_time_and_less_and_less_often
    ),
    "repair.unanswered": (
        test_repair_scheduler.test_whoever_else_holds_it_is_asked_when_one_does_not_answer
    ),
    "lending.later": test_repair_throttle.test_what_is_beyond_the_bound_has_the_next_turns,
    "repair.unreadable": test_block_repair.test_a_copy_that_cannot_be_read_now_is_read_again,
    "serving.too_many_wait": (
        test_serving.test_of_a_connection_so_many_fetches_wait_and_the_oldest_is_answered
    ),
    "serving.no_room_to_wait": (
        test_serving.test_over_all_partitions_a_principal_has_as_many_waiting_as_it_leaves_for_others
    ),
    "serving.damaged": partial(
        test_damaged_copies.test_the_only_copy_is_missed_by_its_readers_alone, "raft"
    ),
    "partition.found_damaged": (
        test_damaged_copies.test_damage_in_the_open_block_is_found_by_a_reader_and_another_broker_leads
    ),
    "upkeep.compact_in_part": (
        test_maintenance.test_a_block_under_repair_is_compacted_once_it_is_whole
    ),
    "repair.corrupt": test_block_repair.test_a_damaged_batch_is_asked_of_another,
    "producers.fenced": (
        test_idempotence.test_what_is_new_under_an_epoch_that_was_replaced_is_fenced
    ),
    "producers.later_epoch": (
        test_idempotence.test_a_higher_epoch_goes_on_where_the_one_before_stopped
    ),
    "producers.old_repeat": (
        test_idempotence.test_a_repeat_that_is_remembered_no_more_is_told_to_be_one
    ),
    "producers.other_batch": (
        test_idempotence.test_another_batch_under_the_same_numbers_is_not_acknowledged
    ),
    "producers.clock_set": partial(
        test_producer_table.test_a_clock_that_is_set_makes_nobody_silent, 1 << 30, moved=False
    ),
    "producers.expired": (
        test_producer_table.test_who_was_silent_too_long_is_forgotten_but_a_name_is_not
    ),
    "producers.shortened": (
        test_producer_table.test_of_those_that_are_long_silent_only_the_last_batch_goes_along
    ),
    "producers.left_out": partial(
        test_producer_table.test_no_table_is_larger_than_a_roll_can_take, 5_000
    ),
    "notices.gets_on": (
        test_controller_brokers.test_a_broker_is_told_the_next_of_much_when_it_has_taken_in_what_was_before
    ),
    "registry.old_incarnation": test_controller_brokers.test_an_ended_incarnation_is_refused,
    "rolls.leader_in_trouble": test_controller_rolls.test_a_leader_whose_disk_broke_is_taken_over,
    "rolls.orphaned_seal": (
        test_controller_rolls.test_a_block_that_was_sealed_for_somebody_else_is_rolled
    ),
    "rolls.decides_later_still": (
        test_controller_rolls.test_a_clock_that_jumps_does_not_end_the_wait
    ),
    "rolls.commit_failed": (test_controller_rolls.test_a_full_coordinator_leaves_the_roll_going_on),
    "rolls.disk_gone_since": (
        test_takeover.test_who_told_the_end_has_another_disk_before_that_is_committed
    ),
    "rolls.made_anew": partial(
        test_made_anew.test_where_the_old_block_ends_is_not_where_the_new_one_does, is_asked=True
    ),
    "reports.made_anew": partial(
        test_made_anew.test_a_report_on_the_old_topic_changes_nothing, test_made_anew.join
    ),
    "rolls.told_another": partial(
        test_late_seals.test_what_was_told_to_the_zkserver_before_does_not_end_the_block,
        is_takeover=True,
    ),
    "rolls.forced": (
        test_takeover.test_who_waits_for_a_dead_block_does_not_keep_it_from_being_recovered
    ),
    "candidates.more": (
        test_many_partitions.test_a_decommission_of_many_partitions_goes_on_with_the_next_zkserver
    ),
    "controller.under_way": (
        test_large_topics.test_who_asks_again_for_what_takes_many_commits_hears_that_it_is_under_way
    ),
    "gradual.more": (
        test_gradual_reads.test_of_a_topic_that_is_made_again_meanwhile_the_new_one_is_told
    ),
    "lookup.made_again": (
        test_gradual_reads.test_of_a_topic_that_is_made_again_meanwhile_the_new_one_is_told
    ),
    "notices.large_topic": (
        test_large_topics.test_a_large_topic_is_made_in_slices_and_told_when_it_is_whole
    ),
    "notices.many_removals": (
        test_many_partitions.test_removals_that_a_broker_does_not_confirm_let_others_pass
    ),
    "notices.many": (
        test_controller_brokers.test_a_broker_is_told_the_next_of_much_when_it_has_taken_in_what_was_before
    ),
    "removals.more": test_removals.test_what_is_asked_again_meanwhile_is_answered_once,
    "removals.asked_again": test_removals.test_what_is_asked_again_meanwhile_is_answered_once,
    "commits.looked_up": (
        test_controller_election.test_a_commit_that_is_refused_when_it_is_repeated_may_have_been_done_before
    ),
    "commits.was_not_done": partial(
        test_controller_election.test_a_commit_of_which_nobody_knows_is_looked_up, False
    ),
    "group.member_unsubscribed": lambda: (
        test_coordinator.test_who_waits_in_a_group_that_is_unsubscribed_is_told_at_once(
            test_coordinator.Host()
        )
    ),
    "serving.end_not_known": (
        test_serving.test_a_new_leader_refuses_to_tell_the_end_before_it_knows_it
    ),
    "repair.store_failed": (
        test_block_repair.test_a_store_that_failed_for_good_is_tried_ever_less_often
    ),
    "repair.cut_later": (
        test_block_repair.test_a_cut_that_fails_is_tried_again_later_and_not_at_once
    ),
    "worker.surplus": partial(
        test_cluster_idle_workers.test_what_comes_for_a_worker_beyond_its_task_is_soon_another_s,
        10,
        5,
    ),
    "worker.unsubscribed": partial(
        test_cluster_groups.test_a_coordinator_that_has_not_heard_does_not_keep_an_unsubscribed_member,
        60,
    ),
    "commits.conflicted": (
        test_controller_election.test_a_lost_race_is_planned_again_on_what_the_tree_is
    ),
    "parts.kept": test_states.test_a_state_is_put_together_again,
    "parts.missing": test_states.test_what_has_not_come_is_missed,
    "log.released": test_log.test_what_is_released_is_read_from_the_disk,
    "subscribers.silent": test_subscribers.test_a_reader_that_is_silent_is_forgotten,
    "reported.wish_withdrawn": (
        test_controller_rolls.test_a_wish_that_is_taken_back_voids_the_one_on_its_way
    ),
    "partition.appointed_too_late": lambda: (
        test_broker.test_another_is_elected_before_the_appointed_leader_has_begun(
            test_broker.Bench()
        )
    ),
    "partition.fence_lifted": lambda: (
        test_broker.test_another_zkserver_may_leave_a_block_to_its_leader(test_broker.Bench())
    ),
    "partition.sequence_waits": lambda: (
        test_broker.test_a_sequence_is_told_once_its_records_are_safe(test_broker.Bench())
    ),
    "partition.unreadable": test_reading_again.test_the_block_before_cannot_be_read,
    "partition.votes_lost": partial(
        test_recovery.test_records_without_votes_are_not_believed, None, "saved vote is missing"
    ),
    "raft.snapshot.missing": test_parts.test_a_snapshot_that_is_not_at_hand_is_waited_for,
    "raft.append.corrupt": test_parts.test_what_is_damaged_is_not_taken_in,
}
# Marks that no run or test here passes, with the reason.
KAFKA = """
    classic.did_not_join classic.did_not_sync classic.joined_again classic.never_came
    classic.other_kind classic.silent classic.static_back partition.kafka_without_key
    producers.kafka.fenced producers.kafka.gap producers.kafka.old_repeat
    reconciled.did_not_revoke reconciled.other_kind reconciled.silent reconciled.static_back
""".split()
SELDOM: dict[str, str] = {
    "balance.given_up": "a leader that is to hand over, and answers nothing until it is late",
    "balance.target_gone": "the next leader dies between the decision and the request",
    "broker.late_stop": "an order to give a block up that comes after the block was given again",
    "copying.void": "a move whose block retires in the moment in which its copy is whole",
    "delays.damaged": "all copies of a delayed record are damaged, and a read notices first",
    "delays.gone": "an unclean leader, whose log has another record where a delayed one was",
    "delays.note_not_committed": "a leader that commits nothing in its first 100 ms, and whose last"
    " record is a note",
    "delays.retired": "an administrator deletes records while one is being delivered",
    "delays.soon_full": "records of more than 4 MiB that are due in one minute",
    "serving.follower.out_of_range": "retention deletes what a reader asks a follower for",
    "moves.cancelled": "a lost broker that is back while its copies are being made",
    **dict.fromkeys(
        KAFKA, "few plans have such clients of Kafka; tests/core and tests/kafka pass it"
    ),
}


def plans() -> Iterator[Plan]:
    """The runs, one after the other."""
    for name in KEPT:
        yield Plan.from_json((PLANS / f"{name}.json").read_text(encoding="utf-8"))
    for seed in (*map(int, GOOD), *range(3_000, 3_000 + SEEDS_MAX)):
        yield generate(seed, brokers=None, zkservers=None, profile="all", seconds=4)


def told(known: dict[str, str], rest: list[str]) -> str:
    """Report how many marks simulations and scripts have passed, and the reasons of the other
    marks.
    """
    lines = [
        f"{len(known) - len(rest)} of {len(known)} marks were passed by simulation; not these:"
    ]
    for name in rest:
        why = "a test on purpose" if name in DIRECTED else SELDOM.get(name, "nothing")
        lines.append(f"  {name:28} {known[name]:28} {why}")
    return "\n".join(lines)


def test_there_are_many_marks() -> None:
    """All marks are found in the source, and each has one name."""
    marks = all_marks()
    assert len(marks) >= 100
    assert marks["raft.elected"] == "replication/raft/raft.py"
    assert marks["leases.again"] == "core/group/leases.py"  # one of two marks in the same call


@pytest.mark.parametrize("name", DIRECTED)
def test_a_directed_test_comes_by(name: str) -> None:
    with counting() as met:
        DIRECTED[name]()
    assert met[name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_of_them_are_passed(record_property: Callable[[str, object], None]) -> None:
    """The tests reach each coverage mark, except those that are listed with a reason.

    Pytest's summary names the missing ones.
    """
    with counting() as met:
        for path in SCRIPTS:
            check_script(path, RaftScript(), rewrite=False)
        for path in FETCH_SCRIPTS:
            check_script(path, FetchScript(), rewrite=False)
        for seed in range(CHAOS):
            chaos.run(seed)
    counts, known = Counter(met), all_marks()
    wanted = set(known) - set(SELDOM) - set(DIRECTED)
    for plan in plans():
        if all(counts[name] for name in wanted):
            break
        counts += run_plan(plan, marks=True).marks
    missing = sorted(name for name in wanted if not counts[name])
    record_property("marks", told(known, sorted(set(known) - set(+counts))))
    assert not missing, f"passed by no run: {missing}"
    assert set(SELDOM) | set(DIRECTED) <= set(known), "of a mark that is not there any more"
    assert not set(SELDOM) & set(DIRECTED)
    assert len(known) - len(SELDOM) >= 120
