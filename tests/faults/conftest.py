"""A fixture for all fault tests: it collects their reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Collect a report; it is printed when all tests have ended."""

    def told(report: str) -> None:
        request.node.user_properties.append(("faults", f"{request.node.name}: {report}"))

    return told
