"""Simulated applications, and the checks that they are served."""
