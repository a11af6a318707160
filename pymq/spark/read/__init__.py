"""Reading, as a table and as a stream."""
