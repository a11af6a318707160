"""The bytes of a block and what a store remembers of it."""
