"""The simulated door of a broker for Kafka's clients, and its byte streams."""
