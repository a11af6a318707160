"""Part R: what replication costs."""
