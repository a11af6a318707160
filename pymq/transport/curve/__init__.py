"""CURVE keys."""
