"""Metrics, events and coverage marks of machines."""
