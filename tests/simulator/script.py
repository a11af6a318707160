"""Scripts in text files: commands and their exact results.

All machines use the same format::

    # A comment, up to the first command or between two.
    verb argument argument
    and another line for the same output
    ----
    exactly the output of both, to the next blank line

    verb
    ----

Above ``----`` are commands, one per line; below it is all of their output, up to a blank line. The
words of a command are split as a shell does it. To test a machine, pass :func:`check_script` a
function that carries out one command and returns its output.

The output need not be typed: *rewrite* puts the actual output into the file. The written output is
an assertion like any other: read it before you keep it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from pymq.core.values import define

Run = Callable[[str, list[str]], str]
"""Carries out a command with its arguments, and returns its output."""

RULE = "----"


@define
class ScriptStep:
    """Some commands, and their common output."""

    line: int  # line of the first command
    comments: list[str]  # the lines before the command, unchanged
    commands: list[str]
    expected: list[str]


class ScriptError(AssertionError):
    """The script is invalid, or the output differs from it."""


def parse_script(text: str, name: str = "script") -> list[ScriptStep]:
    """Split a script into its steps.

    Raises:
        ScriptError: a step has no commands, or no line ``----``.
    """
    steps: list[ScriptStep] = []
    step = ScriptStep(0, [], [], [])
    in_output = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if in_output:
            if line.strip():
                step.expected.append(line.rstrip())
            else:
                in_output = False
                steps.append(step)
                step = ScriptStep(0, [], [], [])
        elif line.strip() == RULE:
            if not step.commands:
                raise ScriptError(f"{name}:{number}: there is no command before {RULE}")
            in_output = True
        elif not line.strip() or line.startswith("#"):
            if step.commands:
                raise ScriptError(f"{name}:{number}: {RULE} is missing after the commands")
            step.comments.append(line.rstrip())
        else:
            step.line = step.line or number
            step.commands.append(line.rstrip())
    if step.commands:
        raise ScriptError(f"{name}:{step.line}: {RULE} is missing after the commands")
    if any(step.comments):
        steps.append(step)  # comments at the very end are kept
    return steps


def show_script(steps: list[ScriptStep]) -> str:
    """Put a script together again."""
    lines: list[str] = []
    for step in steps:
        lines += step.comments
        if step.commands:
            lines += [*step.commands, RULE, *step.expected, ""]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines) + "\n"


def run_step(step: ScriptStep, run: Run) -> list[str]:
    """Carry out the commands of a step; returns their output, line by line."""
    lines: list[str] = []
    for command in step.commands:
        verb, *arguments = shlex.split(command)
        lines += [line.rstrip() for line in run(verb, arguments).splitlines() if line.strip()]
    return lines


def check_script(path: Path, run: Run, *, rewrite: bool = False) -> None:
    """Run the script at *path*; with *rewrite*, put the actual output into the file.

    Raises:
        ScriptError: the output differs from the file.
    """
    steps = parse_script(path.read_text(encoding="utf-8"), path.name)
    for step in steps:
        found = run_step(step, run)
        if rewrite:
            step.expected = found
        elif found != step.expected:
            raise ScriptError(
                "\n".join(
                    [
                        f"{path.name}:{step.line}: {' / '.join(step.commands)}",
                        "expected:",
                        *(f"    {line}" for line in step.expected),
                        "but it was:",
                        *(f"    {line}" for line in found),
                    ]
                )
            )
    if rewrite:
        path.write_text(show_script(steps), encoding="utf-8")
