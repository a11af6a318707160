"""Draws clients of Kafka for a plan."""
