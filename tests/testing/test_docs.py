"""The examples in the simulator's documentation run, with the shown results."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from pymq.testing import cluster, crashpoints
from pymq.testing.checkers.rules import RULES

TEXT = (Path(__file__).parents[2] / "docs/testing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [cluster, crashpoints])
def test_examples_in_modules(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type] # a module
    assert found.attempted
    assert found.failed == 0


def test_the_example_of_the_documentation() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    test = names["test_mine"]
    assert callable(test)
    test()


def test_every_rule_is_told() -> None:
    assert [rule for rule in RULES if f"`{rule}`" not in TEXT] == []
