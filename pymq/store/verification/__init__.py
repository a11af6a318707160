"""Verification of a store's folder: checks every file and reports damage."""
