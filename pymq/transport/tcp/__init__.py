"""The transport over TCP and TLS, without ZeroMQ."""
