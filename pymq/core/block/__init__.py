"""The parts of one block: its log, idempotence, recovery, sealing, and the contract of a
replicator.
"""
