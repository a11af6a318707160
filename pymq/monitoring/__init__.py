"""Metrics of the nodes of a process."""
