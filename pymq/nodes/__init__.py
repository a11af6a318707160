"""pymq over a network: clients of a cluster, and the brokers and zkservers that it is made of."""
