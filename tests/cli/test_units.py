"""Sizes, durations and times as people write them."""

from __future__ import annotations

import pytest

from pymq.cli.units import (
    duration_ms,
    duration_text,
    option_value,
    options,
    parse_time_ms,
    size_bytes,
    size_text,
    time_text,
)
from pymq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        (" 2W ", 2 * 604_800_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("4_096", 4096),
        ("64k", 65_536),
        ("1.5MiB", 3 << 19),
        ("1 GiB", 1 << 30),
        ("7b", 7),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1", "1y", "-1s", "1s2"])
def test_what_is_no_duration(text: str) -> None:
    assert duration_ms(text) is None


@pytest.mark.parametrize("text", ["", "k", "1 parsec", "-1", "1kb2"])
def test_what_is_no_size(text: str) -> None:
    assert size_bytes(text) is None


def test_options_of_a_topic() -> None:
    assert options(["retention_ms=7d", "block_bytes=1g", "unclean_election=true"]) == {
        "retention_ms": 604_800_000,
        "block_bytes": 1 << 30,
        "unclean_election": True,
    }
    assert option_value("retention_ms", "none") is None
    assert option_value("min_in_sync", "2") == 2
    assert option_value("fsync", "always") == "always"
    # the option has an unknown name, so the topic refuses it later
    assert option_value("retention_mss", "soon") == "soon"
    for name, text, known in (("retention_ms", "7parsecs", "7d"), ("block_bytes", "much", "64MiB")):
        with pytest.raises(ConfigError, match=f"{name}='{text}' .*{known}"):
            option_value(name, text)
    for pair in ("x", "=1"):
        with pytest.raises(ConfigError):
            options([pair])


def test_what_people_read() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        *("0 B", "1,023 B", "1.5 KiB", "5.0 MiB", "3.0 TiB")
    ]
    assert [duration_text(n) for n in (5, 1_500, 60_000, 5_400_000, 604_800_000)] == [
        *("5 ms", "1.5 s", "1 min", "1.5 h", "7 d")
    ]
    assert time_text(1_357_016_400_123) == "2013-01-01T05:00:00.123Z"
    assert time_text(1 << 60) == f"{1 << 60} ms"
    assert parse_time_ms("2013-01-01T05:00:00.123") == 1_357_016_400_123
    assert parse_time_ms("yesterday") is None
