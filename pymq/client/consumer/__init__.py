"""The consumer, and the machine behind one that reads alone."""
