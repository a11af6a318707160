"""A partition on one broker: produce, fetch, roll, maintenance."""
