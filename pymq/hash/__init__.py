"""Placement of blocks, keys and consumers by consistent hashing. Pure functions."""
