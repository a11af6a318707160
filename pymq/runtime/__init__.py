"""The loop that drives state machines, and the threads that run it. Only this package does I/O."""
