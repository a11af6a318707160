"""A command line that is not understood is an error like any other, also for programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from pymq.errors import ConfigError


class UsageError(ConfigError):
    """A command line that argparse does not understand."""


def is_for_programs(argv: Sequence[str]) -> bool:
    """Whether ``--json`` was asked for, as far as one can tell of what is not understood."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in options


class Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong, where argparse prints it and leaves.

    The parsers of its subcommands are of its class, too.
    """

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong.

        Raises:
            Misused: always; its notes are what to do next.
        """
        error = UsageError(message)
        error.add_note(" ".join(self.format_usage().split()))
        error.add_note(f"'{self.prog} --help' tells what its arguments mean")
        raise error
