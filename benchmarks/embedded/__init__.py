"""One process, one folder: pymq compared with sqlite3 and the queues built on it."""
