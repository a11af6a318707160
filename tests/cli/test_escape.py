"""Text that other users chose reaches a terminal only escaped."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pymq
from pymq.cli import record_text
from pymq.cli.escape import escaped, escaped_json
from pymq.cli.show import Show

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u200f\u2028\r\nforged line\t\U000e0041"


def is_harmless(text: str) -> bool:
    """Whether a text has no control character, no unusual line end, and nothing that changes the
    order of the text.
    """
    return not any(
        unicodedata.category(c) in ("Cc", "Zl", "Zp")
        or unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI")
        or unicodedata.bidirectional(c) == "PDI"
        or c in "\u200e\u200f\u061c"
        for c in text
    )


@given(st.text())
def test_what_is_escaped_is_harmless(text: str) -> None:
    assert is_harmless(escaped(text))
    assert escaped(escaped(text)) == escaped(text)


def test_words_of_all_languages_are_as_they_were() -> None:
    for text in ("plain", "größer", "日本語", "שלום", "🧑\u200d🚀", "back\\slash"):
        assert escaped(text) == text


@given(st.text())
def test_json_means_the_same(text: str) -> None:
    found = escaped_json(json.dumps({"a": text}, ensure_ascii=False))
    assert is_harmless(found)
    assert json.loads(found) == {"a": text}


RECORD = pymq.Record("t", "0", 1, 2, EVIL.encode(), EVIL.encode(), ((EVIL, EVIL.encode()),))


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_is_harmless(form: str) -> None:
    line = record_text.FORMATS[form](RECORD, True).decode()
    assert line.endswith("\n")
    assert is_harmless(line[:-1])


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_value_alone_is_harmless_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    line = record_text.FORMATS["value"](RECORD, False)
    assert is_harmless(line[:-1].decode()) is is_terminal
    if not is_terminal:
        assert line == EVIL.encode() + b"\n"


def test_what_is_shown_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(is_json=False)
    show.say(EVIL)
    show.fields([(EVIL, EVIL)])
    show.table([EVIL, "b"], [[EVIL, EVIL]])
    show.error(EVIL, EVIL, hints=[EVIL])
    with show.progress(EVIL, 1, "record") as step:
        step.at(1)
    told = capsys.readouterr()
    for line in (told.out + told.err).split("\n"):
        assert is_harmless(line)
    assert "\nforged" not in told.out + told.err


def test_what_programs_get_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(is_json=True)
    show.result({EVIL: EVIL})
    show.error(EVIL, EVIL, hints=[EVIL])
    told = capsys.readouterr()
    for line in (told.out + told.err).split("\n"):
        assert is_harmless(line)
    assert json.loads(told.out) == {EVIL: EVIL}
