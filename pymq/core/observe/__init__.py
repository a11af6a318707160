"""What can be seen of machines: metrics, events, coverage marks."""
