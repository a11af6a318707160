"""Rules about what Kafka's clients are told."""
