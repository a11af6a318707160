"""Saved states of replicas are found again after any crash, and never lost silently."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pymq.core.ready import Append, CreateBlock, Recovered, RemoveBlock, SaveState, Write
from pymq.core.types import BlockId
from pymq.errors import CorruptBlock, StoreError, StoreFull
from pymq.store.file import states as states_module
from pymq.store.file.file_store import FileStore
from pymq.store.file.states import BEGIN, STATES, encode, parse
from pymq.store.verification.verify import verify
from tests.store.helpers import BLOCK, FaultyFiles, batch, raw

OTHER = BlockId(BLOCK.topic_id, 4, 0)
HISTORY: list[dict[BlockId, bytes | None]] = [
    {BLOCK: b"term 1"},
    {OTHER: b"term 1", BLOCK: b"term 2"},
    {BLOCK: b"term 3, and a vote"},
]


def make(path: Path, history: list[dict[BlockId, bytes | None]] = HISTORY) -> Path:
    """Make a store that saved *history*, turn by turn; returns its state file."""
    store = FileStore(str(path))
    for turn in history:
        assert not store.write([SaveState(id, state or b"") for id, state in turn.items()])
    store.close()
    return path / STATES


def found(path: Path) -> dict[BlockId, bytes | None]:
    """Return the states of a newly opened store."""
    store = FileStore(str(path))
    states: dict[BlockId, bytes | None] = {}
    for block in (BLOCK, OTHER):
        answer = store.recover(block, 0, True)
        assert isinstance(answer, Recovered)
        if answer.state is not None:
            states[block] = answer.state
    store.close()
    return states


def merged(turns: int) -> dict[BlockId, bytes | None]:
    """Return the states saved in the first *turns* turns."""
    states: dict[BlockId, bytes | None] = {}
    for turn in HISTORY[:turns]:
        states |= turn
    return states


def refused(path: Path) -> CorruptBlock:
    """Open the store, which must fail without changing the file."""
    before = (path / STATES).read_bytes()
    with pytest.raises(CorruptBlock) as caught:
        FileStore(str(path))
    assert (path / STATES).read_bytes() == before
    assert caught.value.details["file"] == str(path / STATES)
    assert str(path / STATES) in str(caught.value)
    return caught.value


def test_the_format_does_not_change(tmp_path: Path) -> None:
    file = make(tmp_path)
    assert file.read_bytes() == BEGIN + b"".join(map(encode, HISTORY))
    assert encode({BlockId("ab", 1, 2): b"x", BlockId("ab", 1, 3): None}) == bytes.fromhex(
        "504d5153210000009058807de0317fb8828462616201024178846261620103f6ff"
    )


def test_what_was_saved_is_found(tmp_path: Path) -> None:
    make(tmp_path)
    assert found(tmp_path) == merged(3)
    assert verify(str(tmp_path)).is_ok


def test_nothing_saved_makes_no_file(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    assert not store.write([CreateBlock(BLOCK, 0, "t", "p"), RemoveBlock(BLOCK)])
    store.close()
    assert not (tmp_path / STATES).exists()


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    """A torn group was never confirmed, so the next group overwrites it."""
    file = make(tmp_path)
    data = file.read_bytes()
    whole = len(data) - len(encode(HISTORY[2]))
    for size in range(whole, len(data)):
        for zeros in {0, 1, len(data) - size}:
            file.write_bytes(data[:size] + bytes(zeros))
            assert found(tmp_path) == merged(2)
            assert file.stat().st_size == whole
    make(tmp_path, HISTORY[2:])
    assert file.read_bytes() == data
    assert found(tmp_path) == merged(3)


def test_a_missing_sector_tears_the_last_group_only(tmp_path: Path) -> None:
    file = make(tmp_path, [*HISTORY, {BLOCK: b"x" * 2_000}])
    data = file.read_bytes()
    start = len(data) - len(encode({BLOCK: b"x" * 2_000}))
    for at in (start, 512, 1024, 1536, 2048):
        lost = bytearray(data)
        lost[at : at - at % 512 + 512] = bytes(len(lost[at : at - at % 512 + 512]))
        file.write_bytes(lost)
        assert found(tmp_path) == merged(3)
        file.write_bytes(bytes(lost) + encode(HISTORY[0]))
        assert refused(tmp_path).details["position"] == start


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    """A flipped bit is refused, also in the last group: a synced group must not count as torn."""
    file = make(tmp_path)
    data = file.read_bytes()
    starts = [0, len(BEGIN)]
    for turn in HISTORY:
        starts.append(starts[-1] + len(encode(turn)))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBlock) as caught:
            parse(bytes(flipped), "file")
        assert caught.value.details["position"] == max(at for at in starts if at <= bit // 8)
        if bit % 97 == 0:
            file.write_bytes(flipped)
            assert "votes and terms" in str(refused(tmp_path))
            report = verify(str(tmp_path))
            assert not report.is_ok
            assert [problem.file for problem in report.problems] == [str(file)]
    file.write_bytes(data)
    assert found(tmp_path) == merged(3), "the lock was given back each time"


def test_a_file_that_lost_all_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path, HISTORY[:1])
    data = file.read_bytes()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        refused(tmp_path)
        file.write_bytes(data[:size] + bytes(len(data) - size))
        refused(tmp_path)
    file.write_bytes(data[:14] + b"2\n" + data[16:])
    assert "known version" in str(refused(tmp_path))


def test_it_is_written_anew_when_most_of_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_module, "REWRITE_FROM", 1_000)
    store, file = FileStore(str(tmp_path)), tmp_path / STATES
    blocks = [BlockId(BLOCK.topic_id, number, 0) for number in range(100)]
    sizes = []
    for term in range(200):
        assert not store.write([SaveState(blocks[term % 3], b"%d" % term)])
        sizes.append(file.stat().st_size)
    assert max(sizes) <= 1_000
    assert sum(after < before for before, after in pairwise(sizes)) < 30
    assert not store.write([SaveState(block, b"x" * 50) for block in blocks])
    grown = file.stat().st_size
    for block in blocks:
        assert not store.write([SaveState(block, b"y" * 50)])
        assert file.stat().st_size < 3 * grown
    assert not store.write([RemoveBlock(block) for block in blocks[1:]])
    assert not store.write([SaveState(blocks[0], b"last")])
    assert file.stat().st_size < 200
    store.close()
    assert parse(file.read_bytes(), "file")[0] == {blocks[0]: b"last"}


# --- disks that fail ----------------------------------------------------------------------------


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def store(tmp_path: Path, files: FaultyFiles) -> Iterator[FileStore]:
    """Make a store in which BLOCK has a batch and a state."""
    store = FileStore(str(tmp_path), files=files)
    first: list[Write] = [CreateBlock(BLOCK, 0, "t", "p"), Append(BLOCK, [batch(0)], True)]
    assert not store.write([*first, SaveState(BLOCK, b"first")])
    yield store
    files.faults.clear()
    files.room = None
    store.close()


def state(store: FileStore, block: BlockId = BLOCK) -> bytes | None:
    answer = store.recover(block, 0, True)
    assert isinstance(answer, Recovered)
    return answer.state


@pytest.mark.parametrize("operation", ["pwritev", "sync"])
def test_nothing_else_is_done_when_a_state_cannot_be_saved(
    store: FileStore, files: FaultyFiles, operation: str
) -> None:
    files.faults[operation] = [errno.EIO]
    writes: list[Write] = [Append(BLOCK, [batch(3)], True), SaveState(BLOCK, b"second")]
    others: list[Write] = [CreateBlock(OTHER, 0, "t", "p"), Append(OTHER, [batch(0)], True)]
    (failed,) = store.write([*writes, *others])
    assert (failed.block, failed.fatal) == (BLOCK, operation == "sync")
    assert STATES in str(failed.error)
    assert store.read(OTHER, 0, 3, 1) == raw([batch(0)]), "others go on"
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert (found.end, found.state) == (3, b"first" if operation == "pwritev" else found.state)
    assert not store.write(writes)
    assert state(store) == b"second"


def test_a_full_disk(store: FileStore, files: FaultyFiles) -> None:
    for room in range(60):
        files.room = room
        (failed,) = store.write([SaveState(BLOCK, b"second")])
        assert isinstance(failed.error, StoreFull)
        assert not failed.fatal
    files.room = None
    assert state(store) == b"first"
    assert not store.write([SaveState(BLOCK, b"second")])
    assert state(store) == b"second"


def test_a_full_disk_when_the_file_is_written_anew(
    store: FileStore, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_module, "REWRITE_FROM", 0)
    assert not store.write([SaveState(BLOCK, b"x" * 100)])
    files.room = 20
    (failed,) = store.write([SaveState(BLOCK, b"second")])
    assert isinstance(failed.error, StoreFull)
    assert not failed.fatal
    files.room = None
    assert state(store) == b"x" * 100
    assert not store.write([SaveState(BLOCK, b"second")])
    assert state(store) == b"second"


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("operation", ["sync", "sync_dir"])
def test_after_a_failed_sync_nothing_is_saved_until_it_is_recovered(
    store: FileStore,
    files: FaultyFiles,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    anew: bool,
) -> None:
    if not anew and operation == "sync_dir":
        return  # an append changes no name
    assert not store.write([SaveState(OTHER, b"other"), CreateBlock(OTHER, 0, "t", "p")])
    monkeypatch.setattr(states_module, "REWRITE_FROM", 0 if anew else 10_000)
    assert not store.write([SaveState(BLOCK, b"x" * 200)])
    files.faults[operation] = [errno.EIO]
    (failed,) = store.write([SaveState(BLOCK, b"second")])
    assert failed.fatal
    third: list[Write] = [SaveState(BLOCK, b"third"), Append(BLOCK, [batch(3)], True)]
    for write in third:
        (again,) = store.write([write])
        assert again.fatal
    (elsewhere,) = store.write([SaveState(OTHER, b"more")])
    assert elsewhere.fatal, "it is the same file"
    with pytest.raises(StoreError):
        store.read(BLOCK, 0, 3, 100)
    files.calls.clear()
    assert state(store, OTHER) == b"other"
    assert files.calls.index("sync") < files.calls.index("forget")
    assert not store.write([SaveState(OTHER, b"more")])
    (still,) = store.write([SaveState(BLOCK, b"third")])
    assert still.fatal, "each block has to be recovered"
    assert state(store) in (b"x" * 200, b"second")
    assert not store.write(third)
    assert state(store) == b"third"
    assert state(store, OTHER) == b"more"


def test_a_block_whose_state_cannot_be_removed_is_told(
    store: FileStore, files: FaultyFiles, tmp_path: Path
) -> None:
    files.faults["pwritev"] = [errno.EIO]
    (failed,) = store.write([RemoveBlock(BLOCK)])
    assert (failed.block, failed.fatal) == (BLOCK, False)
    assert not store.write([RemoveBlock(BLOCK)])
    store.close()
    assert found(tmp_path) == {}
