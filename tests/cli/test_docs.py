"""docs/cli.md describes each command and each option, and mentions no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from pymq.cli import main, parser

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
# README, docs/guide.md and docs/security.md describe these commands.
ELSEWHERE = {"demo", "keys", "verify", "completion"}


def commands(
    parent: argparse.ArgumentParser, name: str = "pymq"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Return all parsers, by their command line."""
    for action in parent._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield f"{name} {word}", sub
                yield from commands(sub, f"{name} {word}")


def options(found: argparse.ArgumentParser) -> set[str]:
    return {text for action in found._actions for text in action.option_strings} - {"-h", "--help"}


def test_every_command_and_option_is_told() -> None:
    for name, found in commands(parser()):
        assert " ".join(name.split()[:2]) in PAGE
        if name.split()[1] not in ELSEWHERE:
            assert name in PAGE
            missing = [option for option in options(found) if option not in PAGE]
            assert not missing, name


def test_every_option_that_is_told_is_there() -> None:
    known = {option for _, found in commands(parser()) for option in options(found)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_what_is_typed_is_understood() -> None:
    """Each line after a prompt can be parsed; other tests check what the commands do."""
    typed = re.findall(r"^\$ .*?pymq (.*)$", PAGE, re.MULTILINE)
    assert len(typed) >= 14
    for line in typed:
        words = [word.strip("'") for word in line.split()]
        parser().parse_args(words)
    assert main(["--help"]) == 0
