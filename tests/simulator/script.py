"""Scripts: what is done, and exactly what comes of it, in a text file.

One format for all machines::

    # A comment, up to the first command or between two.
    verb argument argument
    and another line for the same output
    ----
    exactly what comes of it,
    to the next blank line

    verb
    ----

What stands before ``----`` are commands, one a line; what follows it is all that they put out, and
a blank line ends it. The words of a command are split as a shell does it. A machine is tested by
giving :func:`check_script` something that carries out one command and returns what it says.

The output need not be typed: *rewrite* puts what really came into the file. What it has put there
is a claim like any other: read it before it is kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from pymq.core.values import define

Run = Callable[[str, list[str]], str]
"""Carries out a verb with its arguments, and returns what it puts out."""

RULE = "----"


@define
class ScriptStep:
    """Some commands, and what they put out together."""

    line: int  # of the first command
    comments: list[str]  # the lines before it, as they are
    commands: list[str]
    expected: list[str]


class ScriptError(AssertionError):
    """The script cannot be read, or something else came than it says."""


def parse_script(text: str, name: str = "script") -> list[ScriptStep]:
    """Split a script into its steps.

    Raises:
        ScriptError: a step has no commands or no rule.
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
        steps.append(step)  # what is said at the very end is kept
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
    """Carry out the commands of a step; what they put out, line by line."""
    lines: list[str] = []
    for command in step.commands:
        verb, *arguments = shlex.split(command)
        lines += [line.rstrip() for line in run(verb, arguments).splitlines() if line.strip()]
    return lines


def check_script(path: Path, run: Run, *, rewrite: bool = False) -> None:
    """Run the script at *path*; with *rewrite*, put what comes into the file.

    Raises:
        ScriptError: something else came than the file says.
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
