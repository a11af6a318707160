"""Part Q: task queues; one sender, workers in separate processes, acknowledged tasks."""
