"""Formats counts with a noun in the singular or plural."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Write a count: ``1 record``, ``2,000 records``, ``3 batches``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def clause(count: int, noun: str, one: str, more: str) -> str:
    """Write a count with a noun and a verb: ``1 record waits``, ``2 records wait``."""
    return f"{plural(count, noun)} {one if count == 1 else more}"
