"""Record batches: the unit of sending, writing, replication and reading."""
