"""Who a Kafka client is, and what it may do: TLS, SASL, and the policy of the broker."""
