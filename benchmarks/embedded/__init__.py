"""pymq in one process and one folder, compared with sqlite3 and the queues built on it."""
