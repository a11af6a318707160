"""One broker's part in a partition: produce, fetch, roll, maintenance."""
