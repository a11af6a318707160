"""The format of scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.script import ScriptError, check_script, parse_script, show_script

SCRIPT = """\
# What this is about.

say hello "and goodbye"
say again
----
hello / and goodbye
again

# Between two.
nothing
----

say last
----
last
"""


def run(verb: str, words: list[str]) -> str:
    return " / ".join(words) if verb == "say" else ""


def test_a_script_that_holds(tmp_path: Path) -> None:
    path = tmp_path / "script.txt"
    path.write_text(SCRIPT, encoding="utf-8")
    check_script(path, run)


def test_something_else_came(tmp_path: Path) -> None:
    path = tmp_path / "script.txt"
    path.write_text(SCRIPT.replace("again\n\n", "never\n\n"), encoding="utf-8")
    with pytest.raises(ScriptError, match=r"script.txt:3: say hello") as found:
        check_script(path, run)
    assert "    never\nbut it was:\n" in str(found.value)


@pytest.mark.parametrize("lines", [["hello"], []])
def test_lines_that_are_missing_or_too_many(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "script.txt"
    path.write_text("\n".join(["say hello", "say again", "----", *lines]), encoding="utf-8")
    with pytest.raises(ScriptError):
        check_script(path, run)


def test_rewriting_keeps_all_but_the_outputs(tmp_path: Path) -> None:
    path = tmp_path / "script.txt"
    path.write_text(SCRIPT.replace("----\nlast", "----\nfirst\nsecond"), encoding="utf-8")
    check_script(path, run, rewrite=True)
    assert path.read_text(encoding="utf-8") == SCRIPT


def test_what_is_read_can_be_shown() -> None:
    assert show_script(parse_script(SCRIPT)) == SCRIPT


@pytest.mark.parametrize("text", ["----\n", "say hello\n", "say hello\n\n----\n"])
def test_what_is_no_script(text: str) -> None:
    with pytest.raises(ScriptError):
        parse_script(text)
