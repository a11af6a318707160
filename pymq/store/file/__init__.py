"""Blocks as files."""
