"""Groups of Kafka's clients: classic ones, and reconciled ones (KIP-848)."""
