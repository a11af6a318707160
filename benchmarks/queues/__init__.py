"""Part Q: task queues; one sender, workers in processes of their own, acknowledged tasks."""
