"""Checks behind ``pymq doctor`` and ``pymq explain``."""
