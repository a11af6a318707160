"""Kafka's record batches (version 2), stored as body format 2 behind pymq's own header."""
