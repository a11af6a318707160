"""Which partitions a broker hosts."""
