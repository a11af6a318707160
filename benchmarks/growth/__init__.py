"""How pymq scales: records, their size, partitions, consumers and brokers; curves, not goals."""
