"""Any bytes give an error of the expected kind, or sound data.

``python -m tests.fuzz`` does most of this work, in ``make soak``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.core import cbor
from pymq.core.batch.batch_sequence import restamp
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, InvalidRequest, PymqError
from pymq.transport import wire
from tests.fuzz.damage import RAW, distort, scramble, write
from tests.fuzz.disks import Blocks, Notes
from tests.fuzz.entry import Entry
from tests.fuzz.nodes import Nodes
from tests.fuzz.targets import Batches, Packets, Runs, Streams, as_bytes, mended, sound_batches
from tests.testing.planted import planted

ROOT = Path(__file__).parents[2]


def run(*arguments: str, timeout: float) -> str:
    """Run the command; returns its output if no input did harm."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_malformed_inputs_do_no_harm(record_property: Callable[[str, object], None]) -> None:
    """Runs as many inputs as a few seconds allow, in a separate process whose memory is watched."""
    told = run("--inputs", "5000", timeout=110)
    record_property("fuzz", told.splitlines()[-1])


@pytest.mark.parametrize("make", [Packets, Streams, Batches, Runs, Blocks, Notes, Nodes, Entry])
def test_each_target_takes_some_and_refuses_some(make: type) -> None:
    """Each target accepts some inputs and refuses some, so the damage is neither too small nor too
    large.
    """
    target = make()
    taken = sum(target.attempt(Random(number)) for number in range(60))
    assert taken > 0
    assert taken < 60 or make in (Nodes, Entry)


@pytest.mark.parametrize("bug", ["produced-body-unchecked", "produced-form-unchecked"])
def test_a_broker_that_takes_anything_harms_others(bug: str) -> None:
    """The check in :class:`Entry` detects the damage that one forged batch does to the records of
    others.
    """
    target = Entry()
    with planted(bug), pytest.raises((PymqError, AssertionError)):
        all(target.attempt(Random(number)) or True for number in range(30))


@pytest.mark.parametrize("rows", [b"\x80", b"\xa0"])
def test_what_a_client_sends_takes_little_memory(rows: bytes) -> None:
    """A client's message takes little memory: an empty list is a byte in a header and 64
    in memory.
    """
    size = wire.CLIENT_HEADER_BYTES_MAX // len(rows) - 8
    header = b"\x82\x01\x9a" + size.to_bytes(4, "big") + rows * size
    code = (
        "import resource, sys\n"
        "from pymq.errors import InvalidRequest\n"
        "from pymq.transport import wire\n"
        "usage = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "header = sys.stdin.buffer.read()\n"
        "before = usage()\n"
        "try:\n"
        "    wire.decode(header, [], wire.CLIENT_HEADER_BYTES_MAX)\n"
        "except InvalidRequest:\n"
        "    print(usage() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=header, capture_output=True, check=True, cwd=ROOT
    )
    assert int(done.stdout) <= 40 << 10  # in KiB: 32 MiB, and the allocator's overhead


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_refused(data: bytes) -> None:
    try:
        wire.decode(data, [])
    except InvalidRequest:
        pass


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.sampled_from(sorted(wire.NUMBERS)), st.lists(_PLAIN, max_size=9))
def test_any_fields_are_a_message_or_refused(number: int, fields: list[object]) -> None:
    try:
        found = wire.decode(cbor.dumps([1, [number, "", "", *fields]]), [])
    except InvalidRequest:
        return
    header, *frames = wire.encode(found)
    assert wire.decode(header, frames)


@settings(max_examples=60)
@given(st.integers(0, len(sound_batches()) - 1), st.integers(0, 95), st.binary(max_size=8))
def test_a_header_with_a_sound_checksum_is_read_or_refused(
    number: int, at: int, lie: bytes
) -> None:
    batch = sound_batches()[number]
    head = bytearray(batch.head)
    head[at : at + len(lie)] = lie
    data = mended(bytes(head[: len(batch.head)]).ljust(len(batch.head), b"\0"), bytes(batch.body))
    for read in (lambda: EncodedBatch.parse(data).verify().records(), lambda: restamp(data, 0)):
        try:
            read()
        except CorruptBatch:
            pass


def test_the_tools_do_what_they_say() -> None:
    """Damage changes bytes, and raw bytes stay raw; otherwise the fuzzer would test nothing."""
    rng = Random(1)
    batch = as_bytes(sound_batches()[5])
    assert sum(scramble(rng, batch, [batch]) != batch for _ in range(200)) > 150
    item = [1, ["a", {"b": b"c"}], None]
    assert cbor.loads(write(item)) == item
    assert sum(write(distort(rng, item, ())) != write(item) for _ in range(200)) > 150
    for raw in RAW:
        assert write([item, raw]).endswith(raw)
