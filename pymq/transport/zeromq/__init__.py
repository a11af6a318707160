"""The transport over ZeroMQ."""
