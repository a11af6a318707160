"""How values are written: ``@value`` for what travels or is compared, ``@define`` for what lives.

A frozen attrs class costs four times as much to create as one that is only slotted, and values are
created for every request. So ``value`` is frozen for the type checker, which rejects every
assignment, and merely slotted and hashable when the program runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from attrs import Factory, define, field

__all__ = ["Factory", "define", "field", "value"]

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    value = partial(attrs.define, unsafe_hash=True)
