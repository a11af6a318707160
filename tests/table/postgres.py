"""A PostgreSQL server for tests, from the system's packages."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",  # The server is not killed in these tests.
    "listen_addresses": "127.0.0.1",
    "max_replication_slots": "4",
    "shared_buffers": "16MB",
}


def find() -> Path:
    """Return the folder of the newest server's programs; skips the test if there is none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    other = shutil.which("initdb")
    if not found and other is None:
        pytest.skip("there is no PostgreSQL server: apt-get install postgresql")
    return (found[-1] if found else Path(str(other))).parent


@contextmanager
def server() -> Iterator[str]:
    """Run a server on a free port; yield its connection string."""
    programs = find()
    # PostgreSQL refuses to run as root, and another user cannot enter pytest's folders.
    owner = None
    if os.geteuid() == 0:
        owner = next((u.pw_name for u in pwd.getpwall() if u.pw_name == "postgres"), "nobody")
    folder = Path(tempfile.mkdtemp(prefix="pymq-postgres-"))
    if owner is not None:
        shutil.chown(folder, owner)

    def run(program: str, *arguments: str) -> None:
        # The output goes to a file, because the started server would keep a pipe open.
        log = folder / f"{program}.out"
        with log.open("wb") as out:
            done = subprocess.run(
                [programs / program, "-D", str(folder / "data"), *arguments],
                cwd=folder,
                user=owner,
                group=None if owner is None else pwd.getpwnam(owner).pw_gid,
                extra_groups=None if owner is None else [],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, log.read_text()

    try:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        run("initdb", "--username=pymq", "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8")
        options = {**SETTINGS, "port": port, "unix_socket_directories": folder}
        text = "".join(f"{name} = '{value}'\n" for name, value in options.items())
        with (folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(text)
        run("pg_ctl", "start", "--wait", f"--log={folder / 'server.log'}")
        try:
            yield f"host=127.0.0.1 port={port} user=pymq dbname=postgres"
        finally:
            run("pg_ctl", "stop", "--wait", "--mode=immediate")
    finally:
        shutil.rmtree(folder)
