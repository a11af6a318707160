"""The producer, and the machine behind it."""
