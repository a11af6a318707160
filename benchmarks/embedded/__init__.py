"""One process, one folder: pymq beside sqlite3 and the queues built on it."""
