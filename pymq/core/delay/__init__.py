"""Delayed records, which groups get only from a time on, and expiring ones."""
