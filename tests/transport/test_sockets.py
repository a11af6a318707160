"""What is set for the sake of sockets."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BURSTS = """
import resource
from pymq.transport.sockets import make_context

def burst():
    frames = [b"x" * (1 << 20) for _ in range(4)]

context = make_context()
burst()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    burst()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
context.destroy()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has other ways")
def test_memory_of_frames_is_used_again() -> None:
    """Where it is given back, each burst costs a page fault for each of its 1,024 pages."""
    command = [sys.executable, "-c", BURSTS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 2 * 1024
