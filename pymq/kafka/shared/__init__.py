"""What handlers share: the ways to wait, caches, and the zkservers."""
