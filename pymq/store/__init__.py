"""Block stores, which keep the record batches of blocks in files or in memory."""
