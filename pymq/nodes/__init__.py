"""Assembles brokers, zkservers, clients of a cluster, and embedded queues."""
