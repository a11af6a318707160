"""ReadIndex, snapshots and learners: features of Raft that no broker uses.

These features are for a future quorum of zkservers that replicates its metadata by Raft. A block
needs none of them: its readers get only committed records, its beginning holds all that it needs
from earlier blocks, and its members do not change.

==============================  ====================================================================
:mod:`~.messages`               The messages that only these features send. They have no number in
                                :mod:`pymq.transport.wire`, so no broker accepts them from the
                                network; a quorum has to bring its own wire format.
:mod:`~.read_index`             Reads that a replaced leader must not answer (thesis 6.4). The
                                caller uses ``Raft.read_index`` and ``Raft.reads``.
:mod:`~.snapshots`              Snapshots for followers that lack compacted entries. They work
                                only if the log is a :class:`~.snapshots.SnapshotLog`.
``Raft(learners=...)``          Members that neither vote nor count: ``RaftGroup.voters`` leaves
                                them out, and the rest of Raft uses only voters.
==============================  ====================================================================
"""
