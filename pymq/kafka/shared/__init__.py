"""Parts that all handlers share: the ways to wait, caches, and requests to zkservers."""
