"""Coordinator backends: where a zkserver keeps the metadata tree."""
