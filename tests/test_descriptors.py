"""Some descriptors are reserved for files, so that connections cannot take them."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(program: str) -> str:
    """Run code in a separate process, since limits belong to a process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_limit_is_raised_as_far_as_it_goes_and_some_are_kept_back() -> None:
    said = run("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))
        from pymq import descriptors
        limit = descriptors.keep_back()
        assert limit == (100, 400, 100), limit
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 400)
        assert descriptors.soft_limit() == 300
        assert descriptors.keep_back() == (300, 400, 100)  # again
        descriptors.give_back()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, 400)
        print("done")
    """)
    assert said == "done\n"


def test_a_store_opens_files_when_all_other_descriptors_are_taken() -> None:
    """Several threads can open files at once, and afterwards each thread has the usual limit
    again.
    """
    said = run("""
        import errno, os, resource, tempfile, threading
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        from pymq import descriptors
        from pymq.store.file.os_files import OsFiles
        files, folder = OsFiles(), tempfile.mkdtemp()
        assert descriptors.keep_back().kept == 25
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError as error:
            assert error.errno == errno.EMFILE
        handles = [files.create(f"{folder}/{n}") for n in range(10)]
        assert files.list(folder) == sorted(str(n) for n in range(10))
        files.sync_dir(folder)
        found = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(files.open(f"{folder}/{n}")))
            for n in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 10
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 75
        try:
            os.dup(0)
        except OSError as error:
            assert error.errno == errno.EMFILE  # nobody else has any of them
            print("done")
    """)
    assert said == "done\n"


def test_what_is_wrong_otherwise_is_told() -> None:
    said = run("""
        from pymq import descriptors
        from pymq.store.file.os_files import OsFiles
        descriptors.keep_back()
        try:
            OsFiles().open("/nowhere/at/all")
        except FileNotFoundError:
            print("done")
    """)
    assert said == "done\n"
