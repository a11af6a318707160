"""The simulated disk loses only data that a real disk may lose, and the same data in each run."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from pymq.errors import StoreLocked
from pymq.store.file.file_store import FileStore
from pymq.store.file.os_files import Files, OsFiles
from pymq.testing import check_store
from pymq.testing.simulation.disk import PowerCut, SimDisk

FILE = "/f"


def made(disk: SimDisk, data: bytes = b"", path: str = FILE) -> int:
    """A file whose content and name are durable."""
    handle = disk.create(path)
    disk.pwritev(handle, [data], 0)
    disk.sync(handle)
    disk.sync_dir(path.rpartition("/")[0] or "/")
    return handle


def crashes(disk: SimDisk, count: int = 300) -> set[bytes | None]:
    """Return the possible contents of FILE after a crash; None if the file does not exist."""
    found: set[bytes | None] = set()
    for seed in range(count):
        fork = disk.fork()
        fork.crash(random.Random(seed))
        found.add(fork.data(FILE) if FILE in fork.paths() else None)
    return found


def test_what_was_synced_is_there() -> None:
    disk = SimDisk()
    made(disk, b"x" * 2_000)
    assert crashes(disk) == {b"x" * 2_000}


def test_any_sector_may_be_missing_that_was_not_synced() -> None:
    disk = SimDisk()
    handle = made(disk, b"a" * 600)
    disk.pwritev(handle, [b"b" * 1_500, b"b" * 500], 600)
    found = crashes(disk)
    assert {b"a" * 600, b"a" * 600 + b"b" * 2_000, b"a" * 600 + bytes(2_000)} <= found
    assert any(one and b"\0b" in one for one in found), "later sectors without earlier ones"
    for one in found:
        assert one is not None
        assert one.startswith(b"a" * 600)
        assert 600 <= len(one) <= 2_600
        # each sector is either as before or as after the write
        for at in range(512, len(one), 512):
            assert len(set(one[max(at, 600) : at + 512])) < 2
    disk = SimDisk(holes=False)
    handle = made(disk, b"a" * 600)
    disk.pwritev(handle, [b"b" * 2_000], 600)
    assert not any(one and b"\0b" in one for one in crashes(disk)), "first come first"


def test_overwriting_keeps_old_or_new_sectors() -> None:
    disk = SimDisk()
    handle = made(disk, b"a" * 1_024)
    disk.pwritev(handle, [b"b" * 1_024], 0)
    a, b = b"a" * 512, b"b" * 512
    assert crashes(disk) == {a + a, a + b, b + a, b + b}


def test_a_cut_is_done_or_not_done() -> None:
    disk = SimDisk()
    handle = made(disk, b"abcdef")
    disk.truncate(handle, 2)
    assert disk.pread(handle, 9, 0) == b"ab"
    assert crashes(disk) == {b"abcdef", b"ab"}
    disk.pwritev(handle, [b"XY"], 2)
    assert {b"abcdef", b"abXY"} <= crashes(disk)
    disk.sync(handle)
    assert crashes(disk) == {b"abXY"}


def test_a_name_is_not_durable_before_its_folder_is_synced() -> None:
    """A name is not durable before its folder is synced, even if the file is synced."""
    disk = SimDisk()
    handle = disk.create(FILE)
    disk.pwritev(handle, [b"x"], 0)
    disk.sync(handle)
    assert crashes(disk) == {None, b"x"}
    disk.sync_dir("/")
    assert crashes(disk) == {b"x"}
    made(disk, b"y", "/g")
    disk.rename("/g", FILE)
    assert crashes(disk) == {b"x", b"y"}
    disk.sync_dir("/")
    disk.unlink(FILE)
    assert crashes(disk) == {None, b"y"}


def test_folders_come_and_go() -> None:
    disk = SimDisk()
    disk.mkdir("/a")
    disk.mkdir("/a/b")
    made(disk, b"x", "/a/b/c")
    assert disk.list("/") == ["a"]
    fork = disk.fork()
    disk.sync_dir("/a")
    disk.sync_dir("/")
    disk.crash(random.Random(0))
    assert disk.data("/a/b/c") == b"x"
    outcomes = set()
    for seed in range(50):
        other = fork.fork()
        other.crash(random.Random(seed))
        outcomes.add(tuple(other.paths()))
        assert ("a" in other.list("/")) or other.paths() == []
    assert outcomes == {(), ("/a/b/c",)}
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir("/a/b")
    disk.unlink("/a/b/c")
    disk.sync_dir("/a/b")
    disk.rmdir("/a/b")
    for seed in range(20):
        other = disk.fork()
        other.crash(random.Random(seed))
        assert other.list("/a") in ([], ["b"])
        assert "b" not in other.list("/a") or other.list("/a/b") == []


def test_a_killed_process_leaves_everything_but_it_is_not_durable() -> None:
    disk = SimDisk()
    handle = made(disk, b"a")
    disk.pwritev(handle, [b"b"], 1)
    disk.lock("/LOCK")
    with pytest.raises(StoreLocked):
        disk.lock("/LOCK")
    disk.kill()
    assert disk.data(FILE) == b"ab"
    assert crashes(disk) == {b"a", b"ab", b"a\0"}
    disk.close(disk.lock("/LOCK"))
    disk.lock("/LOCK")


def test_the_power_fails_at_any_operation() -> None:
    """Operations are counted in the same way with and without a power cut.

    After the cut the disk does not work until the crash.
    """

    def work(disk: SimDisk) -> None:
        handle = made(disk, b"1")
        disk.pwritev(handle, [b"2"], 1)
        disk.truncate(handle, 1)
        disk.sync(handle)
        disk.rename(FILE, "/g")
        disk.sync_dir("/")

    whole = SimDisk()
    work(whole)
    for at in range(whole.operations):
        disk = SimDisk()
        disk.cut_in = at
        with pytest.raises(PowerCut):
            work(disk)
        assert disk.operations == at
        with pytest.raises(PowerCut):
            disk.mkdir("/more")
        disk.crash(random.Random(at))
        assert disk.cut_in == -1
        assert disk.paths() in ([], [FILE], ["/g"], [FILE, "/g"])


def test_a_failed_sync_lies_about_what_is_there() -> None:
    """The pages count as clean: programs see them until they are evicted, and no sync writes them
    again.
    """
    disk = SimDisk()
    handle = made(disk, b"old")
    disk.pwritev(handle, [b"NEW, and more"], 0)
    disk.fail("sync", path=FILE)
    with pytest.raises(OSError, match="Input/output") as caught:
        disk.sync(handle)
    assert caught.value.errno == errno.EIO
    assert disk.pread(handle, 99, 0) == b"NEW, and more"
    assert b"old" in crashes(disk)
    disk.sync(handle)
    lost = b"old" + bytes(10)
    assert crashes(disk) == {lost}, "the length is no page: it is saved"
    disk.forget(handle, 0)
    assert disk.pread(handle, 99, 0) == lost

    outcomes = set()
    for seed in range(50):
        other = SimDisk()
        handle = made(other, b"old")
        other.pwritev(handle, [b"new"], 0)
        other.fail("sync", rng=random.Random(seed))
        assert other.sync_all([handle])[0] is not None
        other.crash(random.Random(0))
        outcomes.add(other.data(FILE))
    assert outcomes == {b"old", b"new"}


def test_writing_on_after_a_failed_sync_saves_only_those_pages() -> None:
    disk = SimDisk()
    handle = made(disk, b"a" * 10_000)
    disk.pwritev(handle, [b"b" * 10_000], 0)
    disk.fail("sync")
    assert disk.sync_all([handle])[0] is not None
    disk.pwritev(handle, [b"c"], 5_000)
    disk.sync(handle)
    page = b"b" * 904 + b"c" + b"b" * (4_096 - 905)
    assert crashes(disk) == {b"a" * 4_096 + page + b"a" * (10_000 - 8_192)}
    disk.truncate(handle, 100)
    disk.sync(handle)
    assert crashes(disk) == {b"a" * 100}


def test_a_full_disk() -> None:
    disk = SimDisk(room=5)
    handle = disk.create(FILE)
    with pytest.raises(OSError, match="No space") as caught:
        disk.pwritev(handle, [b"1234", b"5678"], 0)
    assert caught.value.errno == errno.ENOSPC
    assert disk.data(FILE) == b"12345", "as much as fits"
    assert disk.pwritev(handle, [b"xxxxx"], 0) == 5, "overwriting takes no room"
    disk.truncate(handle, 2)
    assert disk.pwritev(handle, [b"345"], 2) == 3
    disk.unlink(FILE)
    assert disk.room == 5


def test_one_bit_rots() -> None:
    disk = SimDisk()
    made(disk, b"abc")
    made(disk, b"defg", "/g")
    fork = disk.fork()
    flipped = disk.flip(random.Random(3))
    assert flipped is not None
    path, position = flipped
    before, after = fork.data(path), disk.data(path)
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    assert changed == [position]
    assert (before[position] ^ after[position]).bit_count() == 1
    again = disk.flip(random.Random(3), FILE)
    assert again is not None
    assert again[0] == FILE
    disk.crash(random.Random(0))
    assert disk.flip(random.Random(3), "/none") is None
    disk.wipe()
    assert disk.paths() == []


def test_operations_fail_when_told_to() -> None:
    disk = SimDisk()
    handle = made(disk, b"abc")
    disk.fail("pread", path="/f", times=2)
    disk.fail("pwritev", errno.ENOSPC, path="other")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            disk.pread(handle, 1, 0)
    assert disk.pread(handle, 1, 0) == b"a"
    assert disk.pwritev(handle, [b"x"], 3) == 1
    disk.put(FILE, b"other")
    disk.put("/new", b"made")
    assert crashes(disk) == {b"other"}


def test_forks_go_their_own_ways() -> None:
    disk = SimDisk()
    handle = made(disk, b"a")
    disk.pwritev(handle, [b"b"], 1)
    forks = [disk.fork() for _ in range(3)]
    disk.pwritev(handle, [b"c"], 2)
    for number, fork in enumerate(forks):
        fork.pwritev(fork.open(FILE), [b"%d" % number], 2)
    assert [fork.data(FILE) for fork in forks] == [b"ab0", b"ab1", b"ab2"]
    assert disk.data(FILE) == b"abc"
    assert b"a" in crashes(forks[0], 100), "what was not durable is not durable there"
    disk.sync(handle)
    assert crashes(disk) == {b"abc"}


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_give_what_the_real_file_system_gives(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sim, real = SimDisk(), OsFiles()
    sim.mkdir("/d")
    (tmp_path / "d").mkdir()
    sides: list[tuple[Files, str]] = [(sim, "/d"), (real, f"{tmp_path}/d")]
    names = ["a", "b", "c"]

    def both(name: str, *args: object, handle: str = "") -> object:
        """Do one action on both disks; the results, or the kinds of errors, must be equal."""
        found: list[object] = []
        for side, folder in sides:
            own = [os.path.normpath(f"{folder}/{a}") if isinstance(a, str) else a for a in args]
            try:
                if handle:
                    own.insert(0, side.open(f"{folder}/{handle}"))
                result = getattr(side, name)(*own)
                if handle:
                    side.close(own[0])  # type: ignore[arg-type] # it is the handle
                found.append(None if name in ("create", "open") else result)
                if name in ("create", "open"):
                    side.close(result)
            except OSError as error:
                found.append(error.errno)
        assert found[0] == found[1], (name, args, handle)
        return found[0]

    for _ in range(300):
        one, other = dice.choice(names), dice.choice(names)
        at = dice.randrange(3_000)
        match dice.randrange(9):
            case 0:
                both("create", one)
            case 1:
                both("rename", one, other)
            case 2:
                both("unlink", one)
            case 3 | 4 | 5:
                both("pwritev", [dice.randbytes(at // 3), b"more"], at, handle=one)
            case 6:
                both("truncate", at, handle=one)
            case 7:
                both("sync", handle=one)
            case _:
                both("list", ".")
        both("pread", 10_000, dice.randrange(3_000), handle=one)
        both("size", handle=one)


def test_the_same_dice_leave_the_same_disk() -> None:
    def run(seed: int) -> dict[str, bytes]:
        dice, disk = random.Random(seed), SimDisk()
        for _ in range(6):
            for name in ("a", "b", "c"):
                path = f"/{name}{dice.randrange(9)}"
                handle = disk.open(path) if path in disk.paths() else disk.create(path)
                disk.pwritev(handle, [dice.randbytes(3_000)], dice.randrange(100))
                if dice.random() < 0.5:
                    disk.sync(handle)
            if dice.random() < 0.5:
                disk.sync_dir("/")
            disk.crash(dice)
            disk.flip(dice)
        return {path: disk.data(path) for path in disk.paths()}

    assert run(7) == run(7) != run(8)


def test_a_store_on_it_keeps_the_contract() -> None:
    disk = SimDisk()
    check_store(lambda: FileStore("/data", files=disk), steps=300)
