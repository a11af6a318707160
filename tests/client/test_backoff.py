"""The waiting times of a backoff, and the errors with which a consumer may return a record."""

from __future__ import annotations

from typing import Any

import pytest

import pymq
from pymq.client.backoff import delays, error_text
from pymq.core.message import ERROR_MAX
from pymq.errors import ConfigError


def record(offset: int, delivery_count: int) -> pymq.Record:
    return pymq.Record("t", "0", offset, 0, None, b"", (), delivery_count)


def test_each_wait_is_longer_up_to_the_longest() -> None:
    backoff = pymq.Backoff(first_s=1, factor=2, max_s=60, jitter=0)
    waits = [backoff.delay_ms(count) for count in range(1, 9)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert backoff.delay_ms(1 << 40) == 60_000  # the delay is also computed quickly


def test_a_constant_wait() -> None:
    backoff = pymq.Backoff(first_s=5, factor=1, jitter=0)
    assert [backoff.delay_ms(count) for count in (1, 2, 1 << 40)] == [5_000] * 3


def test_jitter_spreads_records_and_can_be_repeated() -> None:
    backoff = pymq.Backoff(first_s=10, jitter=0.1)
    waits = [backoff.delay_ms(1, b"%d" % number) for number in range(1_000)]
    assert waits == [backoff.delay_ms(1, b"%d" % number) for number in range(1_000)]
    assert 9_000 <= min(waits) < 9_100
    assert 10_900 < max(waits) <= 11_000
    assert 9_900 < sum(waits) / 1_000 < 10_100


def test_records_wait_by_their_own_count_and_in_ranges() -> None:
    backoff = pymq.Backoff(first_s=1, jitter=0)
    records = [record(0, 1), record(1, 1), record(2, 3), record(3, 1)]
    assert delays(records, backoff, None) == [
        (("0", (0, 2)), 1_000),
        (("0", (3, 4)), 1_000),
        (("0", (2, 3)), 4_000),
    ]
    assert delays(records, backoff, 0.5) == [(("0", (0, 4)), 500)]
    assert delays(records, None, None) == [(("0", (0, 4)), 0)]
    assert delays(record(2, 3), backoff, None) == [(("0", (2, 3)), 4_000)]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"first_s": -1}, "first_s"),
        ({"first_s": "1"}, "first_s"),
        ({"factor": 0.5}, "factor"),
        ({"factor": True}, "factor"),
        ({"max_s": 0.5}, "max_s"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
    ],
)
def test_numbers_that_make_no_backoff(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        pymq.Backoff(**wrong)


def test_an_error_is_cut_between_two_characters() -> None:
    assert error_text(None) == ""
    assert error_text(ValueError("no price")) == "ValueError: no price"
    assert error_text(KeyError()) == "KeyError"
    assert error_text("\N{EURO SIGN}" * ERROR_MAX) == "\N{EURO SIGN}" * (ERROR_MAX // 3)
    assert error_text("\udc80") == "?"
    with pytest.raises(ConfigError, match="error=7"):
        error_text(7)  # type: ignore[arg-type] # on purpose
