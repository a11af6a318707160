"""Simulated clients of Kafka, which speak real bytes."""
