"""Requests that wait: for a write, for new records, for room."""
