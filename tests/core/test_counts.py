"""Counts with a noun in the singular or the plural."""

from __future__ import annotations

import pytest

from pymq.core.counts import clause, plural


@pytest.mark.parametrize(
    ("count", "noun", "written"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2_000, "record", "2,000 records"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
    ],
)
def test_counts(count: int, noun: str, written: str) -> None:
    assert plural(count, noun) == written


def test_the_verb_follows_the_count() -> None:
    assert [clause(n, "record", "waits", "wait") for n in (0, 1, 2)] == [
        *("0 records wait", "1 record waits", "2 records wait")
    ]
