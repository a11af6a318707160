"""Record batches: the unit that is sent, written, replicated and read."""
