"""The loop that drives machines, and the threads that turn it. The only part that acts."""
