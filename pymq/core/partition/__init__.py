"""The part of one broker in a partition: produce, fetch, roll, maintenance."""
