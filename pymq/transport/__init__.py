"""What carries messages between processes."""
