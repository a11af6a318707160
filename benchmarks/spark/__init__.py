"""Spark reading and writing pymq, beside Spark on files of the same rows."""
