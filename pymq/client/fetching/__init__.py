"""The shared parts of all state machines that fetch records."""
