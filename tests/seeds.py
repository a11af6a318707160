"""Seeds of parametrized tests: ``make test`` runs the first ones, ``make soak`` the rest."""

from __future__ import annotations

import pytest


def seeds(quick: int, soak: int) -> list[object]:
    """Return the parameters 0 to *soak*; those from *quick* on are marked as slow."""
    return [
        *range(quick),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, soak)),
    ]
