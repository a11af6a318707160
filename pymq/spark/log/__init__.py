"""What a source reads from."""
