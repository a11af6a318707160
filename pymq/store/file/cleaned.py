"""Records which blocks of a partition the last compaction covered, and their size after it.

This note is a small file beside the last of these blocks. ``00000007.clean`` means that in the
blocks up to 7 only the last record of each key is left. The note only decides when the next
compaction is due, so a lost note costs one needless compaction.
"""

from __future__ import annotations

from pymq.core.types import BlockId
from pymq.core.values import value
from pymq.errors import CorruptMetadata, StoreError
from pymq.store.block.block_file import frame, unframe
from pymq.store.file.folder import CLEAN, Folder

CLEAN_MAGIC = b"pymq-cln"


@value
class Cleaned:
    """The note that the blocks up to *block* are clean."""

    block: BlockId
    size: int  # bytes of the batches of all blocks up to this one

    def to_bytes(self) -> bytes:
        """Encode the note as the content of its file."""
        return frame(CLEAN_MAGIC, [*self.block, self.size])

    @classmethod
    def from_bytes(cls, data: bytes) -> Cleaned:
        """Decode the content of a ``.clean`` file.

        Raises:
            CorruptMetadata: the file is damaged; the caller continues without it.
        """
        item, size = unframe(CLEAN_MAGIC, data)
        if size != len(data) or type(item) is not list:
            raise CorruptMetadata("the file has the wrong length")
        if [type(field) for field in item] != [str, int, int, int] or item[3] < 0:
            raise CorruptMetadata("a field has the wrong type")
        return cls(BlockId(*item[:3]), item[3])


def load(folder: Folder, block: BlockId) -> Cleaned | None:
    """Return the last note of the partition of *block*; None if it is missing or cannot be read."""
    for number in reversed(folder.numbers(block, CLEAN)):
        marked = block._replace(number=number)
        try:
            data = folder.load(folder.file(marked, CLEAN))
            cleaned = Cleaned.from_bytes(data or b"")
        except (CorruptMetadata, StoreError):
            continue
        if cleaned.block == marked:
            return cleaned
    return None


def save(folder: Folder, cleaned: Cleaned) -> None:
    """Save the note of a compaction, and remove the previous note."""
    block = cleaned.block
    folder.replace(block, CLEAN, cleaned.to_bytes())
    for number in folder.numbers(block, CLEAN):
        if number != block.number:
            folder.remove(block._replace(number=number), CLEAN)
