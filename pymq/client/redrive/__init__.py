"""Sends dead letters back."""
