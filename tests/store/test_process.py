"""A store whose process is killed, two processes on one store, and a store of ten thousand
blocks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from pymq.core.batch.batch_sequence import split
from pymq.core.ready import Append, CreateBlock, Recovered
from pymq.core.types import BlockId
from pymq.errors import StoreLocked
from pymq.store.file.file_store import FileStore
from pymq.store.verification.verify import verify
from tests.store.helpers import BLOCK, batch

WRITER = """
import sys
from pymq.core.ready import Append, CreateBlock, Recovered
from pymq.store.file.file_store import FileStore
from tests.store.helpers import BLOCK, batch
store = FileStore(sys.argv[1])
found = store.recover(BLOCK, 0, True)
assert isinstance(found, Recovered), found
end = found.end
store.write([CreateBlock(BLOCK, 0, "t", "p")])
while True:
    assert not store.write([Append(BLOCK, [batch(end, size=3_000)], sync=True)])
    end += 3
    print(end, flush=True)
"""


def start(code: str, path: Path, *more: str) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_kill_9_while_writing(tmp_path: Path) -> None:
    """After each kill -9 during writes to one block, every acknowledged record is there."""
    answered = end = 0
    for delay in (1, 3, 30, 100):
        with start(WRITER, tmp_path) as process:
            assert process.stdout
            for _ in range(delay):
                answered = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split("\n")
        answered = max([answered, *(int(line) for line in lines[:-1])])
        store = FileStore(str(tmp_path))
        found = store.recover(BLOCK, 0, True)
        assert isinstance(found, Recovered)
        assert answered <= found.end <= answered + 3
        batches = list(split(store.read(BLOCK, 0, found.end, 1 << 30)))
        assert [one.verify().values for one in batches] == [
            batch(3 * i, size=3_000).values for i in range(len(batches))
        ]
        assert batches[-1].end_offset == found.end
        end = found.end
        store.close()
    report = verify(str(tmp_path))
    assert report.is_ok
    assert report.records == end


HOLDER = """
import sys
from pymq.store.file.file_store import FileStore
store = FileStore(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    with start(HOLDER, tmp_path) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=str(holder.pid)) as caught:
            FileStore(str(tmp_path))
        assert str(tmp_path) in str(caught.value)
        report = verify(str(tmp_path))
        assert not report.is_locked
        assert str(holder.pid) in str(report)
        assert report.is_ok
        holder.kill()
    FileStore(str(tmp_path)).close()  # a dead process holds no lock


def test_a_second_store_in_the_same_process_is_kept_out(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        FileStore(str(tmp_path))
    store.close()
    FileStore(str(tmp_path)).close()


LEFT_BEHIND = """
import os, signal, sys
from pymq.errors import StoreLocked
from pymq.store.file.file_store import FileStore
from tests.store.helpers import BLOCK
store = FileStore(sys.argv[1])
reading, writing = os.pipe()
if not (child := os.fork()):
    os.close(writing)
    os.read(reading, 1)  # blocks until all writers have closed the pipe
    if len(sys.argv) > 2:
        store.close()
    print("child", flush=True)
    os._exit(0)
os.close(reading)
try:
    FileStore(sys.argv[1])
except StoreLocked:
    print("locked", flush=True)
store.close()
store = FileStore(sys.argv[1])
print("again", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("closes", [(), ("closes",)])
def test_a_forked_child_does_not_keep_the_folder(closes: tuple[str, ...], tmp_path: Path) -> None:
    """Child processes do not prevent this process or its successor from reopening the folder."""
    with start(LEFT_BEHIND, tmp_path, *closes) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        assert process.stdout.readline() == "again\n"
        with pytest.raises(StoreLocked):
            FileStore(str(tmp_path))
        process.kill()
        assert process.stdout.read() == "child\n"
    FileStore(str(tmp_path)).close()


HALF_FORKED = """
import os, sys
reading, writing = os.pipe()
os.register_at_fork(after_in_child=lambda: os.close(writing) or os.read(reading, 1))
# imported only now, so that its fork handlers run after the one above
from pymq.store.file.file_store import FileStore
store = FileStore(sys.argv[1])
if not os.fork():
    os._exit(0)
store.close()
FileStore(sys.argv[1]).close()
print("again", flush=True)
"""


def test_a_child_in_the_midst_of_its_fork_does_not_keep_the_folder(tmp_path: Path) -> None:
    """A child between fork and exec inherits the lock, but does not keep it."""
    with start(HALF_FORKED, tmp_path) as process:
        assert process.stdout
        assert process.stdout.read() == "again\n"


ORPHAN = """
import os, signal, sys
from pymq.store.file.file_store import FileStore
store = FileStore(sys.argv[1])
reading, writing = os.pipe()
if not os.fork():
    os.close(reading)
    os.close(writing)
    sys.stdin.readline()
    os._exit(0)
os.close(writing)
os.read(reading, 1)  # blocks until the child has closed the inherited descriptors
print("open", flush=True)
signal.pause()
"""


def test_a_dead_processes_children_do_not_keep_the_folder(tmp_path: Path) -> None:
    process = start(ORPHAN, tmp_path)
    assert process.stdout
    assert process.stdin
    with process.stdout, process.stdin:
        assert process.stdout.readline() == "open\n"
        process.kill()
        process.wait()
        FileStore(str(tmp_path)).close()  # The child runs as long as its input is open.


FORKER = """
import os, signal, sys
from pathlib import Path
from pymq.store.file.os_files import OsFiles
files = OsFiles()
handles = [files.create(sys.argv[1] + "/%d" % number) for number in range(9)]
assert files.sync_all(handles) == [None] * 9
if not (child := os.fork()):
    signal.alarm(20)
    assert files.sync_all(handles) == [None] * 9
    files.release()
    assert files.sync_all(handles) == [None] * 9
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [type(e) for e in files.sync_all([*handles, 9999])] == [type(None)] * 9 + [OSError]
files.release()
files.release()
print("parent", flush=True)
"""


def test_syncing_side_by_side_survives_a_fork(tmp_path: Path) -> None:
    """Parallel syncs work after a fork, although the child has none of the parent's threads."""
    with start(FORKER, tmp_path) as process:
        assert process.stdout
        assert process.stdout.read() == "child\nparent\n"
    assert process.returncode == 0


def test_threads_that_sync_end_with_the_store(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    blocks = [BlockId("cd" * 16, i, 0) for i in range(4)]
    assert not store.write([CreateBlock(block, 0, "t", "p") for block in blocks])
    assert not store.write([Append(block, [batch(0)], True) for block in blocks])
    assert not syncing(), "they begin on first need"
    assert not store.write([Append(block, [batch(3)], True) for block in blocks])
    assert syncing()
    store.close()
    assert not syncing()


def syncing() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("pymq-sync")]


def test_ten_thousand_idle_blocks(tmp_path: Path) -> None:
    """An idle block needs no open file, and less than 1 KiB of memory."""
    store = FileStore(str(tmp_path))
    blocks = [BlockId("cd" * 16, i, 0) for i in range(10_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    assert not store.write([CreateBlock(block, 0, "topic", "p") for block in blocks])
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < 10_000 * 1_024, f"{used / 10_000} bytes each"
    assert len(store.blocks()) == 10_000
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["FORMAT", "LOCK", "blocks"]
    assert not list((tmp_path / "blocks").iterdir())


def test_few_files_are_held_open(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path), handles_max=5)
    blocks = [BlockId("cd" * 16, i, 0) for i in range(40)]
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        writes = [CreateBlock(block, 0, "t", "p") for block in blocks] if turn == 0 else []
        appends = [Append(block, [batch(3 * turn)], sync=turn == 1) for block in blocks]
        assert not store.write([*writes, *appends])
        for block in blocks:
            assert store.read(block, 0, 3 * turn + 3, 1)
        assert len(os.listdir("/proc/self/fd")) <= before + 5
    store.close()
