"""Committed data survives; damage, locks and a full disk raise errors."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from pymq.coord.base import Coordinator
from pymq.coord.sqlite import SqliteCoordinator, SqliteTree
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    Create,
    Delete,
    Entry,
    Load,
    Loaded,
    Op,
    Put,
)
from pymq.errors import (
    Closed,
    CorruptMetadata,
    PymqError,
    StoreError,
    StoreFull,
    StoreLocked,
)
from pymq.testing import check_coordinator
from tests.seeds import seeds


def script(body: str, *args: object) -> list[str]:
    """Return a command that runs *body* in a separate process, with its imports."""
    head = """
        import os, signal, sys
        from pymq.coord.sqlite import *
        from pymq.core.metadata.coordination import *
    """
    text = textwrap.dedent(head) + textwrap.dedent(body)
    return [sys.executable, "-c", text, *map(str, args)]


def do(client: Coordinator, *ops: Op) -> None:
    """Commit *ops*, which must succeed."""
    client.submit(Commit(1, ops))
    (answer,) = [event for event in client.poll() if not isinstance(event, Changed)]
    assert isinstance(answer, Committed), answer


def read(path: Path) -> tuple[Entry, ...]:
    """Return the content of the file, as the next session sees it."""
    tree = SqliteTree(path)
    try:
        return tree.entries()
    finally:
        tree.close()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system with the given options.

    Skip the test if mounting is not allowed.
    """
    mounted: list[Path] = []

    def run(options: str) -> Path:
        folder = tmp_path / "mounted"
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            if not mounted:
                pytest.skip("needs to mount a tmpfs")
            raise
        if folder not in mounted:
            mounted.append(folder)
        return folder

    yield run
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


# --- contract and sessions ------------------------------------------------------------------------


def test_contract(tmp_path: Path) -> None:
    """The backend passes all checks, durability included."""
    trees: dict[str, SqliteTree] = {}

    def make(name: str) -> Coordinator:
        if name not in trees:
            trees[name] = SqliteTree(tmp_path / name)
        return SqliteCoordinator(trees[name])

    check_coordinator(make, restart=lambda name: trees.pop(name).close(), commits=500)
    for tree in trees.values():
        tree.close()


def test_open_owns_its_tree(tmp_path: Path) -> None:
    """The convenience constructor closes the file together with the session."""
    one = SqliteCoordinator.open(tmp_path / "db", session="me")
    assert one.session == "me"
    do(one, Create("/a", b"1"))
    one.close()
    one.close()
    with pytest.raises(Closed):
        one.submit(Load(1, "/a"))
    assert read(tmp_path / "db") == (Entry("/a", b"1", 0),)
    assert [path.name for path in tmp_path.iterdir()] == ["db"]  # no journal is left


def test_closed_tree_closes_its_sessions(tmp_path: Path) -> None:
    """Closing a tree notifies its open sessions."""
    tree = SqliteTree(tmp_path / "db")
    one = SqliteCoordinator(tree)
    tree.close()
    tree.close()
    with pytest.raises(Closed):
        one.submit(Load(1, "/"))
    late = SqliteCoordinator(tree)
    with pytest.raises(Closed):
        late.submit(Load(1, "/"))


def test_session_names_are_not_used_again(tmp_path: Path) -> None:
    """No session gets the name of an earlier session, even after a restart."""
    names = set()
    for _ in range(3):
        tree = SqliteTree(tmp_path / "db")
        names |= {SqliteCoordinator(tree).session for _ in range(3)}
        tree.close()
    assert len(names) == 9


def test_ephemeral_nodes_are_never_in_the_file(tmp_path: Path) -> None:
    """After a crash ephemeral nodes do not exist, nor do the values that they replaced."""
    one = SqliteCoordinator.open(tmp_path / "db")
    do(one, Create("/a", b""), Create("/b", b""), Create("/e", b"", ephemeral=True))
    do(one, Put("/e", b"", 0), Put("/a", b"1", 0))
    do(one, Delete("/b", 0), Create("/b", b"", ephemeral=True))
    do(one, Delete("/e", 1), Create("/e", b"kept"))
    copy = tmp_path / "copy"
    crash_copy(tmp_path / "db", copy)
    one.close()
    wanted = (Entry("/a", b"1", 1), Entry("/e", b"kept", 0))
    assert read(copy) == read(tmp_path / "db") == wanted


# --- crashes --------------------------------------------------------------------------------------


def crash_copy(source: Path, target: Path) -> None:
    """Copy file and journal as a crash would leave them.

    This runs in a separate process: closing a file that SQLite has open would release its lock.
    """
    for end in ("", "-wal"):
        subprocess.run(["cp", f"{source}{end}", f"{target}{end}"], check=True)


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_kill_loses_no_answered_commit(tmp_path: Path, seed: int) -> None:
    """After kill -9 at any time every answered commit is there, completely."""
    body = """
        one = SqliteCoordinator.open(sys.argv[1])
        one.submit(Load(0, "/"))
        entries = {e.path: e for e in one.poll()[0].entries}
        version = entries["/a"].version if entries else 0
        if not entries:
            one.submit(Commit(1, (Create("/a", b""), Create("/b", b""))))
            one.poll()
        while True:
            data = b"%d" % (version + 1) * 50
            one.submit(Commit(1, (Put("/a", data, version), Put("/b", data, version))))
            version += 1
            answers = [e for e in one.poll() if isinstance(e, Committed)]
            assert answers == [Committed(1, (version, version))], answers
            print(version, flush=True)
    """
    rng = random.Random(seed)
    answered = 0
    for _ in range(3):
        child = subprocess.Popen(script(body, tmp_path / "db"), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(rng.randrange(1, 300)):
            answered = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split("\n")[:-1]  # a line without its end was not answered yet
        answered = int(rest[-1]) if rest else answered
        child.wait()
        child.stdout.close()
        a, b = read(tmp_path / "db")
        assert a.version in (answered, answered + 1)
        assert (a.version, a.data) == (b.version, b.data)
        assert a.data == b"%d" % a.version * 50
        answered = a.version


@pytest.mark.parametrize("seed", range(3))
def test_torn_journal_leaves_an_earlier_tree(tmp_path: Path, seed: int) -> None:
    """If the journal is cut at any byte, the tree is that after one of the commits."""
    rng = random.Random(seed)
    tree = SqliteTree(tmp_path / "db")
    one = SqliteCoordinator(tree)
    do(one, Create("/a", b""), Create("/b", b""))
    states = [(), tree.entries()]
    for version in range(20):
        data = rng.randbytes(rng.randrange(9_000))
        do(one, Put("/a", data, version), Put("/b", data, version), Create(f"/a/{version}", b""))
        states.append(tree.entries())
    crash_copy(tmp_path / "db", tmp_path / "copy")
    tree.close()
    copy, journal = tmp_path / "copy", tmp_path / "copy-wal"
    found = set()
    for end in sorted((rng.randrange(journal.stat().st_size) for _ in range(30)), reverse=True):
        # Opening and closing empties the journal, so each cut starts from a fresh copy.
        shutil.copy(copy, tmp_path / "cut")
        (tmp_path / "cut-wal").write_bytes(journal.read_bytes()[:end])
        found.add(states.index(read(tmp_path / "cut")))
    assert len(found) > 5


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Make a closed file with a hundred nodes in it."""
    one = SqliteCoordinator.open(tmp_path / "db")
    do(one, Create("/a", b"a"), *(Create(f"/a/{i}", b"%d" % i * 20) for i in range(100)))
    one.close()
    return tmp_path / "db"


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + b"x" * 5000])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is not SQLite's is neither read nor overwritten."""
    path = tmp_path / "db"
    path.write_bytes(content)
    with pytest.raises(CorruptMetadata, match=str(path)):
        SqliteTree(path)
    assert path.read_bytes() == content


def test_empty_file_is_a_new_one(tmp_path: Path) -> None:
    """An empty file, left by a crash during its creation, counts as a new one."""
    (tmp_path / "db").touch()
    assert read(tmp_path / "db") == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE schema SET version = 2", "schema version"),
        ("DELETE FROM schema", "schema version"),
        ("DROP TABLE schema", "not one of pymq"),
        ("DROP TABLE nodes", "no such table"),
        ("ALTER TABLE schema DROP COLUMN opens", "no such column"),
        ("UPDATE nodes SET data = x'00' WHERE path = '/a/7'", "/a/7"),
        ("UPDATE nodes SET data = 'text' WHERE path = '/a/7'", "/a/7"),
        ("UPDATE nodes SET version = 7 WHERE path = '/a/7'", "/a/7"),
        ("UPDATE nodes SET path = '/a/x' WHERE path = '/a/7'", "/a/x"),
        ("UPDATE nodes SET path = CAST(x'ff' AS TEXT) WHERE path = '/a/7'", "damaged"),
        ("DELETE FROM nodes WHERE path = '/a/7'", "100 nodes where 101"),
    ],
)
def test_changed_rows_are_refused(full: Path, change: str, words: str) -> None:
    """The error names each row and the file, and nothing is left locked."""
    db = sqlite3.connect(full)
    db.execute(change)
    db.commit()
    db.close()
    for _ in range(2):
        with pytest.raises(CorruptMetadata, match=words) as caught:
            SqliteTree(full)
        assert str(full) in str(caught.value)


def test_single_bits(full: Path) -> None:
    """A flipped bit is detected or has no effect; it never changes the tree silently."""
    wanted, content = read(full), full.read_bytes()
    rng = random.Random(1)
    noticed = 0
    for _ in range(600):
        flipped = bytearray(content)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        full.write_bytes(flipped)
        try:
            assert read(full) == wanted
        except StoreError:
            noticed += 1
        for end in ("-wal", "-journal"):
            Path(f"{full}{end}").unlink(missing_ok=True)
    assert noticed > 100


def test_truncated_file(full: Path) -> None:
    """Each truncation is detected; to SQLite, up to one byte is a new file."""
    content = full.read_bytes()
    for end in range(2, len(content), 511):
        full.write_bytes(content[:end])
        with pytest.raises(StoreError):
            read(full)
        for tail in ("-wal", "-journal"):
            Path(f"{full}{tail}").unlink(missing_ok=True)


# --- locks ----------------------------------------------------------------------------------------


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second process is refused at once, and admitted after the end of the first."""
    path = tmp_path / "db"
    body = """
        one = SqliteCoordinator.open(sys.argv[1])
        print("open", flush=True)
        sys.stdin.read()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(script(body, path), **pipes) as child:  # type: ignore[call-overload]  # the pipes are of one kind
        assert child.stdout.readline() == b"open\n"
        for _ in range(2):
            with pytest.raises(StoreLocked, match=str(path)):
                SqliteTree(path)
        child.kill()
    tree = SqliteTree(path)
    with pytest.raises(StoreLocked):
        SqliteTree(path)
    do(SqliteCoordinator(tree), Create("/a", b""))
    refused = subprocess.run(script(body, path), capture_output=True, text=True, check=False)
    assert "StoreLocked" in refused.stderr
    tree.close()
    assert len(read(path)) == 1


def test_fork(tmp_path: Path) -> None:
    """A forked child cannot use the tree, and its end does not affect the parent's file."""
    body = """
        import warnings
        warnings.simplefilter("ignore")
        from pymq.errors import ForkedError
        tree = SqliteTree(sys.argv[1])
        one = SqliteCoordinator(tree)
        one.submit(Commit(1, (Create("/before", b""),)))
        if (child := os.fork()) == 0:
            try:
                one.submit(Load(1, "/"))
            except ForkedError:
                tree.close()
                del tree, one
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        one.submit(Commit(1, (Create("/after", b""),)))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(script(body, tmp_path / "db"), check=False)
    assert done.returncode == -signal.SIGKILL
    assert [entry.path for entry in read(tmp_path / "db")] == ["/after", "/before"]


def test_fork_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """A child may inherit a lock whose owner is a thread that the child does not have.

    The process with the closed file can still close everything and exit.
    """
    body = """
        import threading, warnings
        warnings.simplefilter("ignore")
        from pymq.errors import ForkedError
        tree = SqliteTree(sys.argv[1])
        one, writer = SqliteCoordinator(tree), SqliteCoordinator(tree)
        writer.submit(Commit(1, (Create("/a", b""),)))
        is_over = threading.Event()
        def write():
            version = 0
            while not is_over.is_set():
                writer.submit(Commit(1, (Put("/a", bytes(1000), version),)))
                version += 1
        thread = threading.Thread(target=write)
        thread.start()
        ends = []
        for number in range(20):
            if (child := os.fork()) == 0:
                signal.alarm(10)
                one.close()
                tree.close()
                try:
                    SqliteCoordinator(tree)
                except ForkedError:
                    os._exit(7)
                os._exit(1)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        is_over.set()
        thread.join()
        one.submit(Commit(1, (Create("/after", b""),)))
        tree.close()
        sys.exit(set(ends) != {7})
    """
    assert subprocess.run(script(body, tmp_path / "db"), check=False).returncode == 0
    assert [entry.path for entry in read(tmp_path / "db")] == ["/a", "/after"]


# --- disks ----------------------------------------------------------------------------------------


def fill(one: SqliteCoordinator) -> int:
    """Commit until the disk is full; returns how many commits were done."""
    for number in range(10_000):
        try:
            one.submit(Commit(1, (Create(f"/a/{number}", bytes(20_000)), Put("/a", b"", number))))
        except StoreFull:
            return number
    raise AssertionError("the disk never got full")


def test_full_disk(mount: Callable[[str], Path]) -> None:
    """On a full disk a commit is not done, neither in memory nor in the file, and succeeds once
    there is space.
    """
    folder = mount("size=1m")
    tree = SqliteTree(folder / "db")
    one = SqliteCoordinator(tree)
    do(one, Create("/a", b""))
    number = fill(one)
    assert number > 2
    before = tree.entries()
    assert before[0] == Entry("/a", b"", number)
    assert len(before) == number + 1
    crash_copy(folder / "db", folder.parent / "copy")
    assert read(folder.parent / "copy") == before
    with pytest.raises(StoreFull, match=str(folder)):
        one.submit(Commit(1, (Create("/again", bytes(20_000)),)))
    one.poll()
    do(one, Create("/alive", b"", ephemeral=True))  # an ephemeral node needs no space
    subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
    do(one, Create("/b", bytes(20_000)))
    after = tuple(entry for entry in tree.entries() if entry.owner is None)
    assert len(after) == len(before) + 1
    tree.close()
    assert read(folder / "db") == after


def test_full_file(tmp_path: Path) -> None:
    """Where mounting is not allowed, a file with a size limit stands for a full disk."""
    tree = SqliteTree(tmp_path / "db")
    one = SqliteCoordinator(tree)
    do(one, Create("/a", b""))
    assert tree._file._db is not None
    tree._file._db.execute("PRAGMA max_page_count = 50")
    number = fill(one)
    before = tree.entries()
    assert len(before) == number + 1
    one.poll()
    do(one, Put("/a", b"still", number))
    tree.close()
    assert read(tmp_path / "db") == (Entry("/a", b"still", number + 1), *before[1:])


def test_disk_full_from_the_start(mount: Callable[[str], Path]) -> None:
    """Opening fails if there is no space for the file itself."""
    folder = mount("size=8k")
    (folder / "ballast").write_bytes(bytes(8_192))
    with pytest.raises(StoreFull):
        SqliteTree(folder / "db")


def test_read_only_folder(mount: Callable[[str], Path]) -> None:
    """Opening raises at once, whether the file exists or not."""
    folder = mount("size=1m")
    read(folder / "db")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    for name in ("db", "new"):
        with pytest.raises(StoreError, match=str(folder)):
            SqliteTree(folder / name)


def test_impossible_paths(tmp_path: Path) -> None:
    """A missing folder, or a folder in the file's place, raises."""
    for path in (tmp_path / "none" / "db", tmp_path):
        with pytest.raises(StoreError, match=str(path)):
            SqliteTree(path)


def test_special_names_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with a special meaning for SQLite are ordinary files here."""
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory"):
        read(Path(name))
        assert (tmp_path / name).exists()


class Broken:
    """A connection whose disk fails."""

    in_transaction = False

    def execute(self, *_: object) -> NoReturn:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
        raise error


def test_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the state is unknown: every request fails until the file is
    read again.
    """
    tree = SqliteTree(tmp_path / "db")
    one = SqliteCoordinator(tree)
    do(one, Create("/a", b""))
    with monkeypatch.context() as patch:
        patch.setattr(tree._file, "_db", Broken())
        with pytest.raises(StoreError, match="SQLITE_IOERR_FSYNC"):
            one.submit(Commit(1, (Put("/a", b"1", 0),)))
    assert tree.entries() == (Entry("/a", b"", 0),)
    for request in (Commit(1, (Put("/a", b"1", 0),)), Load(1, "/a")):
        with pytest.raises(StoreError, match="opened again"):
            one.submit(request)
    assert one.poll() == []
    tree.close()
    again = SqliteCoordinator.open(tmp_path / "db")
    again.submit(Load(1, "/a"))
    assert again.poll() == [Loaded(1, (Entry("/a", b"", 0),))]
    again.close()


def test_errors_are_pymqs(tmp_path: Path) -> None:
    """``except PymqError`` and ``except OSError`` catch each error."""
    with pytest.raises(PymqError) as caught:
        SqliteTree(tmp_path)
    assert isinstance(caught.value, OSError)


def test_sqlite_is_loaded_only_by_who_needs_it() -> None:
    """Other backends and the checks do not load sqlite3."""
    body = "import sys, pymq.testing, pymq.coord.memory; assert 'sqlite3' not in sys.modules"
    subprocess.run([sys.executable, "-c", body], check=True, env={**os.environ})
