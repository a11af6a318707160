"""``pymq completion``: prints a completion script for a shell."""

from __future__ import annotations

import argparse

from pymq.cli.show import OK, Show
from pymq.errors import MissingExtra

HELP = "print the completion script of bash, zsh or fish"
SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    parser.epilog = (
        'bash: eval "$(pymq completion bash)" in ~/.bashrc; zsh: pymq completion zsh > a file '
        "_pymq in a folder of $fpath; fish: pymq completion fish > "
        "~/.config/fish/completions/pymq.fish"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace, show: Show) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError:
        raise MissingExtra.of("completion needs shtab", "cli") from None
    from pymq.cli import parser

    script: str = shtab.complete(parser(), args.shell)
    if show.is_json:
        show.result({"shell": args.shell, "script": script})
    else:
        print(script)
    return OK
