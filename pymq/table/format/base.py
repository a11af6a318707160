"""The interface of a table format.

A format appends rows and the positions after them in one atomic step: after a crash at any moment,
the table has both or neither. Therefore a view contains each record exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pymq.core.values import value
from pymq.errors import StoreError

ROW_GROUP = 1 << 17  # rows per Parquet row group


@value
class TableOrigin:
    """The topic of a table, and how its values are kept; fixed when the table is created."""

    topic: str
    topic_id: str
    is_typed: bool  # False: values are bytes
    prefix: str  # prefix of the fixed columns
    has_headers: bool

    def to_json(self) -> str:
        """Encode for the table's metadata."""
        return json.dumps(
            {
                "topic": self.topic,
                "topic_id": self.topic_id,
                "is_typed": self.is_typed,
                "prefix": self.prefix,
                "has_headers": self.has_headers,
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str | bytes, location: str) -> TableOrigin:
        """Decode; *location* is for the error message.

        Raises:
            StoreError: this is not metadata of a table view.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            return cls(
                str(found["topic"]),
                str(found["topic_id"]),
                bool(found["is_typed"]),
                str(found["prefix"]),
                bool(found["has_headers"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{location} has unreadable metadata of a table view") from error


@value
class TableState:
    """The content of a table."""

    origin: TableOrigin
    positions: Mapping[str, int]  # by partition: the offset of the next record to append
    schema: pa.Schema


class TableFormat(Protocol):
    """A table at one location, owned by one process at a time."""

    def load(self, partitions: Sequence[str]) -> TableState | None:
        """Return the state of the table, with the positions of *partitions*; None if it is new.

        Raises:
            StoreError: the location holds something else.
            StoreLocked: another process keeps the table.
        """
        ...

    def create(self, origin: TableOrigin, schema: pa.Schema) -> None:
        """Create the table; called after :meth:`load` has returned None."""
        ...

    def append(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        """Append *rows* and set *positions*, both or neither.

        *rows* may have columns that the table lacks; they are added. *positions* holds all
        partitions of the table.

        Raises:
            StoreLocked: another process has appended since the last call; this call appended
            nothing.
        """
        ...

    def compact(self) -> bool:
        """Replace small files by larger ones, if there are enough; returns whether it did so."""
        ...

    def close(self) -> None:
        """Release the table."""
        ...
