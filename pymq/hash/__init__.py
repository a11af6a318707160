"""Placement of blocks, keys and consumers by consistent hashing, as pure functions."""
