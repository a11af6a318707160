"""How pymq grows: records, their size, partitions, consumers and brokers; curves, not goals."""
