"""Simulated applications, and checks of the service that they get."""
