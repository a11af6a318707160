"""The producer, and its state machine."""
