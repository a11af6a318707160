"""Transports carry messages between nodes."""
