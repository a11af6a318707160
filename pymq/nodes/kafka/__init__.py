"""Brokers that listen for Kafka's clients."""
