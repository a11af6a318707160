"""For each test of other Raft implementations there is a test here, or a reason why there is none.

The scenarios are those of etcd-io/raft (raft_test, raft_paper_test, raft_snap_test, rawnode_test,
node_test and the tests of its tracker), additional ones of raft-rs, the labs of MIT 6.824, the
fuzzy tests of hashicorp/raft and the simulation of Kafka's KRaft. A script in ``tests/data/raft``
has the name of its source; scenarios in ``ELSEWHERE`` have another name here, or are tests.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.replication.test_scripts import SCRIPTS

ROOT = Path(__file__).resolve().parents[2]
STEMS = {path.stem for path in SCRIPTS}

SCENARIOS = {
    "etcd-Test": """
        LeaderElection LeaderCycle LeaderElectionInOneRoundRPC FollowerVote Voter VoteRequest
        VoteFromAnyState PreVoteFromAnyState CandidateStartNewElection CandidateFallback
        DuelingCandidates DuelingPreCandidates CandidateConcede SingleNodeCandidate OldMessages
        LearnerElectionTimeout LearnerCanVote LearnerCampaign LeaderElectionOverwriteNewerLogs
        NodeWithSmallerTermCanCompleteElection ElectionTimeoutRandomized
        ElectionTimeoutNonconflict CandidateSelfVoteAfterLostElection
        CandidateDeliversPreCandidateSelfVote StateTransition AllServerStepdown Promotable
        UpdateTermFromMessage RejectStaleTermMessage StepIgnoreOldTermMsg
        CandidateResetTermMsgHeartbeat CandidateResetTermMsgApp LogReplication SingleNodeCommit
        CannotCommitWithoutNewTermEntry CommitWithoutNewTermEntry Commit LeaderStartReplication
        LeaderCommitEntry LeaderAcknowledgeCommit LeaderCommitPrecedingEntries
        LeaderOnlyCommitsLogFromCurrentTerm FollowerCommitEntry FollowerCheckMsgApp
        FollowerAppendEntries LeaderSyncFollowerLog HandleMsgApp HandleHeartbeat
        HandleHeartbeatResp MsgAppRespWaitReset LeaderAppResp LeaderIncreaseNext BcastBeat
        RecvMsgBeat FastLogRejection LogReplicationWithReorderedMessage Proposal ProposalByProxy
        LeaderMsgAppSelfAckAfterTermChange RawNodeBoundedLogGrowthWithPartition
        UncommittedEntryLimit ProgressLeader ProgressResumeByHeartbeatResp ProgressPaused
        ProgressFlowControl MsgAppFlowControlFull MsgAppFlowControlMoveForward
        MsgAppFlowControlRecvHeartbeat SendAppendForProgressProbe SendAppendForProgressReplicate
        SendAppendForProgressSnapshot RecvMsgUnreachable ProgressString ProgressIsPaused
        ProgressResume ProgressBecomeProbe ProgressBecomeReplicate ProgressBecomeSnapshot
        ProgressUpdate ProgressMaybeDecr Inflights LeaderStepdownWhenQuorumActive
        LeaderStepdownWhenQuorumLost LeaderSupersedingWithCheckQuorum
        LeaderElectionWithCheckQuorum FreeStuckCandidateWithCheckQuorum
        NonPromotableVoterWithCheckQuorum DisruptiveFollower DisruptiveFollowerPreVote
        PreVoteWithSplitVote PreVoteWithCheckQuorum PreVoteMigrationCanCompleteElection
        PreVoteMigrationWithFreeStuckPreCandidate ReadOnlyOptionSafe ReadOnlyWithLearner
        ReadOnlyOptionLease ReadOnlyForNewLeader ReadOnlyDuplicateRequest RaftFreesReadOnlyMem
        NodeReadIndexToOldLeader Restore RestoreWithLearner RestoreWithVotersOutgoing
        RestoreVoterToLearner RestoreLearnerPromotion LearnerReceiveSnapshot RestoreIgnoreSnapshot
        ProvideSnap IgnoreProvidingSnap RestoreFromSnapMsg SlowNodeRestore
        SendingSnapshotSetPendingSnapshot PendingSnapshotPauseReplication SnapshotFailure
        SnapshotSucceed SnapshotAbort Storage Log Unstable StepConfig StepIgnoreConfig
        NewLeaderPendingConfig AddNode AddLearner AddNodeCheckQuorum RemoveNode RemoveLearner
        CommitAfterRemoveNode RaftNodes ConfChangeCheckBeforeCampaign TransferNonMember
        RawNodeProposeAndConfChange RawNodeJointAutoLeave RawNodeProposeAddDuplicateNode
        ConfState_Equivalent LeaveJoint ConfChangeQuick RestoreQuick LeaderTransferToUpToDateNode
        LeaderTransferToUpToDateNodeFromFollower LeaderTransferWithCheckQuorum
        LeaderTransferToSlowFollower LeaderTransferAfterSnapshot LeaderTransferToSelf
        LeaderTransferToNonExistingNode LeaderTransferTimeout LeaderTransferIgnoreProposal
        LeaderTransferReceiveHigherTermVote LeaderTransferRemoveNode LeaderTransferDemoteNode
        LeaderTransferBack LeaderTransferSecondTransferToAnotherNode
        LeaderTransferSecondTransferToSameNode RawNodeRestart RawNodeRestartFromSnapshot
        NodeAdvance RawNodeConsumeReady AppendPagination CommitPagination NodeProposeWaitDropped
        BlockProposal DisableProposalForwarding""",
    "etcd-": "18055-two-snapshots",
    "ccf-": "8094",
    "raft-": "figure-7 figure-8 5.4.2-earlier-term",
    "cloudflare-2020-": "partial-partition",
    "raft-rs-": """
        election-with-priority-log election-after-change-priority
        read-only-option-lease-without-check-quorum read-when-quorum-becomes-less
        leader-transfer-to-learner""",
    "thesis-4-": "erratum wiped-member removed-leader",
    "mit-": """
        initial-election re-election many-elections basic-agree rpc-bytes follower-failure
        leader-failure fail-agree fail-no-agree concurrent-starts rejoin backup count persist-1
        persist-2 persist-3 figure-8 unreliable-agree figure-8-unreliable reliable-churn
        unreliable-churn snapshot-basic snapshot-install snapshot-install-unreliable
        snapshot-install-crash snapshot-install-uncrash snapshot-all-crash""",
    "hashicorp-": """
        leader-partitions no-issue-sanity slow-send-vote slow-recv-vote add-membership
        add-remove-nodes-not-leader remove-leader remove-partitioned-node
        fuzzy-leadership-transfer one-append-sender-per-term""",
    "kraft-": """
        initial-leader old-leader-failure all-nodes-killed all-nodes-partitioned-away
        majority-reachable back-to-back-leader-failures single-node-committed-data-loss""",
}

CHAOS = "tests/replication/test_chaos.py::test_promises_hold"
PARTS = "tests/replication/test_parts.py::"
PROGRESS = f"{PARTS}test_progress_"
# Scenarios with another name here.
ELSEWHERE = {
    "etcd-TestElectionTimeoutRandomized": f"{PARTS}test_election_timeouts_are_random",
    "etcd-TestElectionTimeoutNonconflict": f"{PARTS}test_election_timeouts_are_random",
    "etcd-TestLeaderOnlyCommitsLogFromCurrentTerm": "raft-5.4.2-earlier-term raft-figure-8",
    "etcd-TestLeaderSyncFollowerLog": "raft-figure-7-a-b raft-figure-7-c-d raft-figure-7-e-f",
    "etcd-TestProgressLeader": "pymq-own-disk-counts-last",
    "etcd-TestProgressString": "etcd-TestProgressFlowControl",
    "etcd-TestProgressIsPaused": "etcd-TestProgressPaused",
    "etcd-TestProgressResume": "etcd-TestProgressResumeByHeartbeatResp",
    "etcd-TestProgressBecomeProbe": f"{PROGRESS}probe_never_goes_below_what_matches",
    "etcd-TestProgressBecomeReplicate": "etcd-TestSendAppendForProgressReplicate",
    "etcd-TestProgressBecomeSnapshot": "etcd-TestSendingSnapshotSetPendingSnapshot",
    "etcd-TestProgressUpdate": f"{PROGRESS}frees_what_is_answered",
    "etcd-TestProgressMaybeDecr": f"{PROGRESS}knows_which_refusals_count",
    "etcd-TestInflights": f"{PROGRESS}frees_what_is_answered",
    "etcd-TestRawNodeConsumeReady": (
        f"{PARTS}test_what_was_held_back_leaves_in_the_same_ready_as_the_write"
    ),
    "etcd-TestBlockProposal": "etcd-TestProposal",
    "etcd-TestUncommittedEntryLimit": "tests/client/producer/test_producer.py::"
    "test_the_buffer_is_bounded_over_all_partitions",
    "etcd-TestRawNodeBoundedLogGrowthWithPartition": "etcd-TestLeaderStepdownWhenQuorumLost",
    "thesis-4-wiped-member": "kraft-single-node-committed-data-loss pymq-learner-is-not-counted",
    "mit-figure-8": f"raft-figure-8 {CHAOS}",
    "mit-unreliable-agree": CHAOS,
    "mit-figure-8-unreliable": CHAOS,
    "mit-reliable-churn": CHAOS,
    "mit-unreliable-churn": CHAOS,
    "mit-snapshot-install-unreliable": CHAOS,
    "mit-snapshot-install-uncrash": "mit-snapshot-install",
    "hashicorp-no-issue-sanity": "mit-basic-agree mit-initial-election",
    "hashicorp-slow-send-vote": "hashicorp-slow-vote",
    "hashicorp-fuzzy-leadership-transfer": CHAOS,
    "hashicorp-one-append-sender-per-term": CHAOS,
}
MEMBERS = "the members of a block never change: other members are another block"
BEATS = "there are no heartbeats in a block: brokers ping each other"
# Scenarios that cannot occur here.
NOT_HERE = {
    **dict.fromkeys(
        """etcd-TestRestoreWithVotersOutgoing etcd-TestRestoreVoterToLearner
        etcd-TestRestoreLearnerPromotion etcd-TestStepConfig etcd-TestStepIgnoreConfig
        etcd-TestNewLeaderPendingConfig etcd-TestAddNode etcd-TestAddLearner
        etcd-TestAddNodeCheckQuorum etcd-TestRemoveNode etcd-TestRemoveLearner
        etcd-TestCommitAfterRemoveNode etcd-TestRaftNodes etcd-TestConfChangeCheckBeforeCampaign
        etcd-TestRawNodeProposeAndConfChange etcd-TestRawNodeJointAutoLeave
        etcd-TestRawNodeProposeAddDuplicateNode etcd-TestConfState_Equivalent etcd-TestLeaveJoint
        etcd-TestConfChangeQuick etcd-TestRestoreQuick etcd-TestLeaderTransferRemoveNode
        etcd-TestLeaderTransferDemoteNode thesis-4-erratum thesis-4-removed-leader
        hashicorp-add-membership hashicorp-add-remove-nodes-not-leader hashicorp-remove-leader
        hashicorp-remove-partitioned-node""".split(),
        MEMBERS,
    ),
    **dict.fromkeys(
        """etcd-TestCandidateResetTermMsgHeartbeat etcd-TestBcastBeat etcd-TestRecvMsgBeat
        etcd-TestHandleHeartbeatResp""".split(),
        BEATS,
    ),
    **dict.fromkeys(
        """etcd-TestPreVoteMigrationCanCompleteElection
        etcd-TestPreVoteMigrationWithFreeStuckPreCandidate""".split(),
        "all members ask before they stand: there is nobody to migrate",
    ),
    **dict.fromkeys(
        """etcd-TestReadOnlyOptionLease raft-rs-read-only-option-lease-without-check-quorum
        """.split(),
        "no read relies on a lease, which a pause outlives (etcd #20418)",
    ),
    **dict.fromkeys(
        "raft-rs-election-with-priority-log raft-rs-election-after-change-priority".split(),
        "no member comes before another",
    ),
    **dict.fromkeys(
        """etcd-TestProposalByProxy etcd-TestDisableProposalForwarding
        etcd-TestNodeProposeWaitDropped""".split(),
        "nothing is forwarded: whoever sends finds the leader, and is refused by others",
    ),
    **dict.fromkeys(
        "etcd-TestNodeAdvance etcd-TestCommitPagination".split(),
        "what is committed is not handed out: it is read from the log, up to the high watermark",
    ),
    **dict.fromkeys(
        "etcd-TestStorage etcd-TestLog etcd-TestUnstable".split(),
        "the log is the block, which tests/core and check_store look after",
    ),
}
NAMES = [prefix + name for prefix, names in SCENARIOS.items() for name in names.split()]


def scripts_of(name: str) -> list[str]:
    """Return the scripts of that name, including those with a suffix."""
    return [stem for stem in STEMS if stem == name or stem.startswith(f"{name}-")]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_is_here_or_it_is_told_why_not(name: str) -> None:
    told = [bool(scripts_of(name)), name in ELSEWHERE, name in NOT_HERE]
    assert sum(told) == 1, f"{name}: script, elsewhere, not here: {told}"
    for other in ELSEWHERE.get(name, "").split():
        file, _, test = other.partition("::")
        if not test:
            assert other in STEMS
            continue
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_nothing_is_told_of_what_is_not_asked() -> None:
    assert {*ELSEWHERE, *NOT_HERE} <= {*NAMES}
    assert len(NAMES) == len({*NAMES})
    assert sum(name not in NOT_HERE for name in NAMES) >= 150


def test_every_script_is_named_after_its_source() -> None:
    """A script that has no source elsewhere begins with the name of this project."""
    known = {stem for name in NAMES for stem in scripts_of(name)}
    known |= {word for told in ELSEWHERE.values() for word in told.split()}
    own = {stem for stem in STEMS if stem.startswith("pymq-")}
    assert STEMS - known - own <= {"decentralizedthoughts-2020-chain", "mit-persist-torn-append",
                                   "mit-persist-torn-vote"}  # fmt: skip
