"""A real Kafka, from its jars, and pymq's Kafka door beside it."""
