"""Who gets what: consistent hashing of brokers, partitions and consumers. Pure functions."""
