"""What the fault tests share: a place for reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a report, which is shown when all tests have ended."""

    def told(report: str) -> None:
        request.node.user_properties.append(("faults", f"{request.node.name}: {report}"))

    return told
