"""Transports: they carry messages between nodes."""
