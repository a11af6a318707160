"""Commands that write, read and explain records."""
