"""A block in a store: its file format, its state in memory, and its compaction."""
