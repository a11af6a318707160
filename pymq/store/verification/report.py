"""The report of a verification: blocks, problems, unknown files."""

from __future__ import annotations

from pymq.core.counts import plural
from pymq.core.types import BlockId
from pymq.core.values import Factory, define, value


@value
class Problem:
    """Damage, or something unusual, at one place of a file."""

    file: str
    position: int | None  # position in bytes
    offset: int | None  # offset of the record at this place
    what: str
    advice: str
    is_note: bool = False  # whether this is unusual, but no data is damaged

    def __str__(self) -> str:
        at = "" if self.position is None else f" at byte {self.position}"
        at += "" if self.offset is None else f", offset {self.offset}"
        return f"{'note: ' if self.is_note else ''}{self.file}{at}: {self.what}; {self.advice}"


@define
class BlockResult:
    """The result of one block file."""

    file: str
    block: BlockId
    topic: str = ""
    partition: str = ""
    start: int = 0
    end: int = 0
    batches: int = 0  # the good batches; *records* and *bytes* count only these
    records: int = 0
    bytes: int = 0
    is_ok: bool = True


@value
class Unknown:
    """Files of a block that is not in the metadata: left by a crash, and never used again."""

    block: BlockId
    files: tuple[str, ...]
    bytes: int


@define
class Report:
    """The result of :func:`verify`; ``print(report)`` prints it for users."""

    path: str
    is_locked: bool = False  # whether the verifier held the store's lock while it read
    blocks: list[BlockResult] = Factory(list)
    problems: list[Problem] = Factory(list)
    unknown: list[Unknown] = Factory(list)  # empty if the metadata was not checked

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
        """Add a problem; the arguments are the fields of :class:`Problem`."""
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
        verdict = "ok" if self.is_ok else plural(damaged, "problem")
        totals = (
            f"{self.path}: {verdict}; {plural(len(self.blocks), 'block')}, "
            f"{plural(self.batches, 'batch')}, {plural(self.records, 'record')}, "
            f"{plural(self.bytes, 'byte')}"
        )
        return "\n".join([totals, *map(str, self.problems)])
