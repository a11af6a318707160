"""The consumer, and the machine behind a reader."""
