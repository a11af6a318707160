"""What looking through a store's folder has found."""

from __future__ import annotations

from pymq.core.types import BlockId
from pymq.core.values import Factory, define, value


@value
class Problem:
    """Something that is not as it should be."""

    file: str
    position: int | None  # in bytes
    offset: int | None  # in records: the one that should be there
    what: str
    advice: str
    is_note: bool = False  # odd, but no data is damaged

    def __str__(self) -> str:
        at = "" if self.position is None else f" at byte {self.position}"
        at += "" if self.offset is None else f", offset {self.offset}"
        return f"{'note: ' if self.is_note else ''}{self.file}{at}: {self.what}; {self.advice}"


@define
class BlockResult:
    """What was found in one block file."""

    file: str
    block: BlockId
    topic: str = ""
    partition: str = ""
    start: int = 0
    end: int = 0
    batches: int = 0  # good ones, as is all that follows
    records: int = 0
    bytes: int = 0
    is_ok: bool = True


@value
class Unknown:
    """Files of a block that the metadata do not know: left by a crash, and nobody asks for them."""

    block: BlockId
    files: tuple[str, ...]
    bytes: int


@define
class Report:
    """What :func:`verify` found; ``print(report)`` tells it to people."""

    path: str
    is_locked: bool = False  # whether nobody else could have the store open meanwhile
    blocks: list[BlockResult] = Factory(list)
    problems: list[Problem] = Factory(list)
    unknown: list[Unknown] = Factory(list)  # empty when the metadata were not looked at

    def problem(
        self,
        file: str,
        position: int | None,
        offset: int | None,
        what: str,
        advice: str,
        *,
        is_note: bool = False,
    ) -> None:
        """Write down a problem; the fields are those of :class:`Problem`."""
        self.problems.append(Problem(file, position, offset, what, advice, is_note))

    @property
    def is_ok(self) -> bool:
        """Whether nothing is damaged; there may be notes."""
        return all(problem.is_note for problem in self.problems)

    @property
    def batches(self) -> int:
        """Good batches in all blocks."""
        return sum(block.batches for block in self.blocks)

    @property
    def records(self) -> int:
        """Records in the good batches."""
        return sum(block.records for block in self.blocks)

    @property
    def bytes(self) -> int:
        """Bytes of the good batches."""
        return sum(block.bytes for block in self.blocks)

    def __str__(self) -> str:
        damaged = sum(not problem.is_note for problem in self.problems)
        verdict = "ok" if self.is_ok else f"{damaged} problems"
        totals = (
            f"{self.path}: {verdict}; {len(self.blocks)} blocks, {self.batches} batches, "
            f"{self.records} records, {self.bytes} bytes"
        )
        return "\n".join([totals, *map(str, self.problems)])
