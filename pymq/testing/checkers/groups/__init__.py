"""Rules about consumer groups."""
