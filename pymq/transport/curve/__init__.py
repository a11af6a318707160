"""Keys for CURVE, ZeroMQ's encryption and authentication."""
