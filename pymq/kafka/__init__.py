"""Kafka's protocol: unmodified Kafka clients speak to pymq (docs/howto/kafka.md)."""
