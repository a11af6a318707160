"""Turns argparse's errors into pymq's errors, also with ``--json``."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

from pymq.errors import ConfigError

SIMILAR = 0.7  # how similar a suggested word must be; 1.0 means equal


class UsageError(ConfigError):
    """A command line that argparse rejects."""


def is_for_programs(argv: Sequence[str]) -> bool:
    """Whether ``--json`` occurs in arguments that could not be parsed."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in options


class Parser(argparse.ArgumentParser):
    """A parser that raises errors; argparse would print them and exit.

    The parsers of its subcommands have the same class.
    """

    def error(self, message: str) -> NoReturn:
        """Raise an error for the command line.

        Raises:
            UsageError: always; its notes are the next steps.
        """
        message, similar = _shorter(message), self._similar(message)
        error = UsageError(message)
        if similar:
            error.add_note(f"did you mean {similar}?")
        error.add_note(" ".join(self.format_usage().split()))
        error.add_note(f"'{self.prog} --help' explains its arguments")
        raise error

    def _similar(self, message: str) -> str | None:
        """Return the word or option that is most similar to the one in the message."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            words = re.findall(r"[\w-]+", found[2])
        elif found := re.search(r"unrecognized arguments: (-[\w-]+)", message):
            words = sorted({word for parser in _parsers(self) for word in _options(parser)})
        else:
            return None
        return next(iter(difflib.get_close_matches(found[1], words, 1, SIMILAR)), None)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


def _shorter(message: str) -> str:
    """Return the message of argparse, without quotes around each of many choices."""
    before, choose, choices = message.partition("(choose from ")
    return before + choose + choices.replace("'", "")
