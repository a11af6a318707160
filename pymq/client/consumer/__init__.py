"""The consumer, and the state machine of a reader."""
