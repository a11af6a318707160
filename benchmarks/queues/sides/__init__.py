"""The compared queues: the client that sends tasks, and the worker that runs them."""
