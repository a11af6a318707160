"""Kafka's record batches (version 2), which rest as body format 2 behind pymq's own header."""
