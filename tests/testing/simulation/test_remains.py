"""All states in which a crash may leave a disk, each of them once."""

from __future__ import annotations

from random import Random

from pymq.testing import SimDisk
from pymq.testing.simulation.remains import COMBINED_MAX, Remains, remains


def made(disk: SimDisk, *names: str, size: int = 0) -> list[int]:
    """Files in /d, durable, with zeros in them."""
    disk.mkdir("/d")
    handles = [disk.create(f"/d/{name}") for name in names]
    for handle in handles:
        disk.pwritev(handle, [bytes(size)], 0)
        disk.sync(handle)
    disk.sync_dir("/d")
    disk.sync_dir("/")
    return handles


def left(disk: SimDisk, state: int | str) -> dict[str, bytes]:
    """Return what a crash leaves."""
    fork = disk.fork()
    keep: str | Remains = state if isinstance(state, str) else remains(fork)[state]
    fork.crash(Random(0), keep)
    return {path: fork.data(path) for path in fork.paths()}


def all_left(disk: SimDisk) -> list[dict[str, bytes]]:
    return [left(disk, state) for state in range(len(remains(disk)))]


def test_a_disk_that_is_synced_has_one_state() -> None:
    disk = SimDisk()
    made(disk, "a", size=10)
    assert all_left(disk) == [{"/d/a": bytes(10)}]


def test_the_first_two_are_nothing_and_everything() -> None:
    disk = SimDisk()
    (handle,) = made(disk, "a", size=10)
    disk.pwritev(handle, [b"xyz"], 0)
    disk.create("/d/b")
    found = all_left(disk)
    assert found[0] == left(disk, "none") == {"/d/a": bytes(10)}
    assert found[1] == left(disk, "all") == {"/d/a": b"xyz" + bytes(7), "/d/b": b""}


def test_names_and_writes_are_combined() -> None:
    """Two names and two writes: 2 * 2 * 3 combinations, and parts of the writes."""
    disk = SimDisk()
    (handle,) = made(disk, "a", size=10)
    disk.pwritev(handle, [b"1"], 0)
    disk.pwritev(handle, [b"2"], 1)
    disk.create("/d/b")
    disk.create("/d/c")
    found = all_left(disk)
    whole = [b"", b"1", b"12"]
    assert len(found) == COMBINED_MAX
    assert {(f["/d/a"].rstrip(b"\0"), "/d/b" in f, "/d/c" in f) for f in found} == {
        (text, b, c) for text in whole for b in (False, True) for c in (False, True)
    }


def test_where_there_are_too_many_one_at_a_time_differs() -> None:
    disk = SimDisk()
    handles = made(disk, *"abcdef", size=1)
    for handle in handles:
        disk.pwritev(handle, [b"x"], 0)
    found = {b"".join(files[path] for path in sorted(files)) for files in all_left(disk)}
    zero, full = bytearray(6), bytearray(b"xxxxxx")
    expected = {bytes(zero), bytes(full)}
    for at in range(6):
        expected.add(bytes(zero[:at] + b"x" + zero[at + 1 :]))
        expected.add(bytes(full[:at] + b"\0" + full[at + 1 :]))
    assert found == expected


def test_the_last_writes_are_torn() -> None:
    """A write is torn in the middle, at a sector, or has zeros where only the length was
    changed.
    """
    disk = SimDisk(holes=False)
    (handle,) = made(disk, "a", size=100)
    disk.pwritev(handle, [b"x" * 1000], 100)
    found = [files["/d/a"] for files in all_left(disk)]
    assert bytes(100) + b"x" * 412 in found  # the write survives up to the end of the first sector
    assert bytes(100) + b"x" * 500 in found
    assert bytes(100) + b"x" * 500 + bytes(500) in found
    assert bytes(1100) in found
    assert bytes(512) + b"x" * 588 not in found
    disk.holes = True
    assert bytes(512) + b"x" * 588 in [files["/d/a"] for files in all_left(disk)]


def test_zeros_that_are_written_ahead_may_be_there_in_part() -> None:
    disk = SimDisk()
    (handle,) = made(disk, "a", size=10)
    disk.pwritev(handle, [bytes(90)], 10)
    assert sorted(len(files["/d/a"]) for files in all_left(disk)) == [10, 55, 100]


def test_a_cut_is_done_or_not() -> None:
    disk = SimDisk()
    (handle,) = made(disk, "a", size=100)
    disk.truncate(handle, 7)
    assert [len(files["/d/a"]) for files in all_left(disk)] == [100, 7]


def test_after_a_failed_sync_there_is_what_the_disk_had() -> None:
    disk = SimDisk()
    (handle,) = made(disk, "a", size=3)
    disk.pwritev(handle, [b"abc"], 0)
    disk.lose(handle)
    assert [files["/d/a"] for files in all_left(disk)] == [bytes(3)]
