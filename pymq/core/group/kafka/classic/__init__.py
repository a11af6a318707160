"""Groups of Kafka's classic protocol, whose members assign partitions to each other."""
