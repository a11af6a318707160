"""The loop that drives machines, and the threads that turn it. Only this package does I/O."""
