"""The source: batch and streaming queries."""
