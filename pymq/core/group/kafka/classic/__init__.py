"""Groups of Kafka's classic protocol, in which one member assigns partitions to all."""
