"""Folders on small disks, killed processes, and readers of their results."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pymq
from pymq.core.batch.record import Record

CHILDREN = str(Path(__file__).with_name("children.py"))


def run(program: str, *arguments: object, timeout: float = 110) -> str:
    """Run a program of children.py to its end, and return its output."""
    done = subprocess.run(
        [sys.executable, CHILDREN, program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(code: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run *code* in a separate Python process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Nursery:
    """Starts children of children.py, and kills them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, CHILDREN, "nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def life(self, program: str, folder: Path, dice: random.Random, lines: int) -> list[list[str]]:
        """Let a child run until it has printed about a given number of lines; return its output.

        The process is killed at a random moment after that, perhaps before it has opened the
        folder.
        """
        process = self._process
        assert process.stdin
        assert process.stdout
        print(program, folder, dice.randrange(1 << 30), file=process.stdin, flush=True)
        said: list[str] = []
        for _ in range(dice.randrange(lines)):
            said.append(process.stdout.readline())
            if said[-1].startswith("failed"):
                break
        until = time.perf_counter() + dice.choice([0, 0, dice.random() * 0.004])
        while time.perf_counter() < until:
            # a busy loop, so that the kill may hit any instruction; after a sleep it would always
            # hit the same ones
            pass
        print("kill", file=process.stdin, flush=True)
        for line in process.stdout:
            if line.startswith("dead"):
                break
            said.append(line)
        failures = [line for line in said if line.startswith("failed")]
        assert not failures, failures[0].encode().decode("unicode_escape")
        assert line == "dead -9\n", "the nursery has died"
        return [line.split() for line in said]


@contextlib.contextmanager
def mounted(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of *megabytes* at *path*; needs the right to mount."""
    _keep_mounts()
    path.mkdir()
    options = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "pymq-test", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@functools.cache
def _keep_mounts() -> None:
    """Restrict this process's mounts to itself and its children; they end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000):  # CLONE_NEWNS; os.unshare needs Python 3.12
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def remount(path: Path, mode: str) -> None:
    """Make a disk read-only ("ro") or writable again ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{mode}", path], check=True)


def may_mount() -> bool:
    """Return whether this process may mount disks."""
    if os.geteuid() != 0:
        return False
    script = "mount -t tmpfs none /mnt && umount /mnt"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False
    )
    return done.returncode == 0


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte; returns the file to remove to free it again."""
    path = disk / "filler"
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(handle, bytes(4096))
    except OSError:
        os.close(handle)
    return path


def contents(mq: pymq.Client, topic: str) -> dict[str, list[Record]]:
    """Read all records of a topic, by partition, and check that their offsets are dense."""
    found: dict[str, list[Record]] = {}
    with mq.consumer(topic, mode="psb") as consumer:
        for record in consumer.until_end():
            found.setdefault(record.partition, []).append(record)
    for records in found.values():
        start = records[0].offset
        assert [record.offset for record in records] == list(range(start, start + len(records)))
    return found


def values(mq: pymq.Client, topic: str, partition: str = "0") -> list[bytes]:
    """Read the values of one partition."""
    return [record.value for record in contents(mq, topic).get(partition, [])]
