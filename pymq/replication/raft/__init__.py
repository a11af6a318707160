"""Raft for one open block."""
