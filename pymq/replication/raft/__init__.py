"""Replication of one open block by Raft."""
