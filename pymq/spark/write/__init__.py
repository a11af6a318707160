"""The sink: batch and streaming queries, and producers inside tasks."""
