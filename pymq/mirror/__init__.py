"""Mirrors topics between a Kafka and a queue: :func:`pymq.mirror.start.mirror`.

From Kafka, each record is written once (docs/decisions/0201). These are the steps of a round:

1. Take records from Kafka's client, which has fetched them in the background.
2. Write to the journal which source offsets come next in each partition, durably.
3. Append these records in batches, with sequences that continue those of the earlier rounds.
4. Note the offsets that the batches got; the journal's next record holds them.

After a crash between these steps, the next sequence of a partition tells how many of the declared
records it has. A second mirror of the same name takes the journal over, and the brokers refuse the
first.
"""
