"""Logs that a source reads: of a cluster, or of a folder."""
