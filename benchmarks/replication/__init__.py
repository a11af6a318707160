"""Part R: the cost of replication."""
