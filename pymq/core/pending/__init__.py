"""Requests that wait for a write, for new records, or for memory."""
