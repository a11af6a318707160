"""What simulated applications do."""
