"""Block stores: they keep the record batches of blocks, in files or in memory."""
