"""The broker: hosts partitions and coordinates groups."""
