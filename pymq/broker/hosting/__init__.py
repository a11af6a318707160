"""The partitions that a broker hosts."""
