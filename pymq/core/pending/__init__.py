"""Waiting requests: for a write, for new records, for room."""
