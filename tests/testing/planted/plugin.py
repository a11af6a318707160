"""For pytest's ``-p``: run some tests with a bug, ``--plant NAME``."""

from __future__ import annotations

import pytest

from tests.testing.planted import planted


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the bug."""
    parser.addoption("--plant", help="the name of a bug that the tests are to find")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> object:
    """Have the bug while a test runs."""
    with planted(item.config.getoption("--plant")):
        return (yield)
