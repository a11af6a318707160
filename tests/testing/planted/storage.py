"""Bugs of stores: the content of the disk after a crash."""

from __future__ import annotations

import sys
from typing import Any

from pymq.broker import batch_copies
from pymq.core.batch import batch_validation
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.block import log, retention
from pymq.core.block.log import BlockLog
from pymq.core.partition.open_block import OpenBlock
from pymq.runtime.loop import Loop
from pymq.store.block.block_file import Window
from pymq.store.file import recovery
from pymq.store.file.file_store import FileStore
from pymq.store.file.folder import Folder
from pymq.store.file.handles import Handles
from pymq.store.file.states import States
from pymq.testing.simulation.disk import SimDisk
from tests.testing.planted.bug import bug, plant

AREA = "storage"

bug(
    "disk-lies",
    AREA,
    "a sync does nothing",
    "NATS #7564: acknowledged, and synced two minutes later",
    "crash crash-3",
)


@plant("disk-lies", SimDisk, "sync")
def sync_nothing(sync: Any, self: SimDisk, handle: int) -> None:
    return None


bug(
    "answer-before-fsync",
    AREA,
    "an append is not synced, whatever was asked for",
    "etcd #14370; Kafka's default",
    "calm calm-3",
)


@plant("answer-before-fsync", BlockLog, "flush")
def flush_unsynced(flush: Any, self: BlockLog, ready: Any, *, sync: bool) -> None:
    flush(self, ready, sync=False)


bug(
    "body-crc-unchecked",
    AREA,
    "recovery looks at headers only, and keeps batches whose bodies are torn",
    "Kafka LogSegment.recover, PySyncObj's journal",
    test="tests/store/file/test_recovery.py::test_a_torn_tail_is_cut",
)


@plant("body-crc-unchecked", Window, "verify")
def verify_nothing(verify: Any, self: Window, header: Any, position: int) -> None:
    return None


bug(
    "torn-tail-stays",
    AREA,
    "what recovery has left out stays in the file, behind what is written next",
    "LevelDB, Kafka before KAFKA-1036",
    "disk crash",
    is_slow=True,
)


@plant("torn-tail-stays", recovery, "recover")
def recover_uncut(recover: Any, folder: Folder, *arguments: Any) -> Any:
    files = folder.files
    truncate = files.truncate
    files.truncate = lambda handle, size: None  # type: ignore[method-assign] # for this call
    try:
        return recover(folder, *arguments)
    finally:
        files.truncate = truncate  # type: ignore[method-assign] # as it was


bug(
    "folder-not-synced",
    AREA,
    "a new file's name is not synced with it",
    "ALICE (OSDI 2014): 60 such mistakes in 11 systems",
    "crash crash-3",
)


@plant("folder-not-synced", SimDisk, "sync_dir")
def sync_no_folder(sync_dir: Any, self: SimDisk, path: str) -> None:
    return None


bug(
    "votes-not-synced",
    AREA,
    "terms and votes are written and not synced (B1, B2)",
    "PySyncObj #202, raft-java #57",
    "crash-3 swarm-3",
)


@plant("votes-not-synced", States, "_append")
def append_unsynced(append: Any, self: States, group: bytes) -> None:
    self._files.pwritev(self._handle, [group], self._size)
    self._size += len(group)


bug(
    "sync-tried-again",
    AREA,
    "after a failed sync the next one is believed",
    "fsyncgate: PostgreSQL, for twenty years",
    "disk-3 swarm-3",
)


@plant("sync-tried-again", Handles, "_failed")
def forgive(failed: Any, self: Handles, block: Any, error: OSError) -> Any:
    found = failed(self, block, error)
    block.failed = None
    return found


@plant("sync-tried-again", FileStore, "_note")
def note_forgiven(note: Any, self: FileStore, id: Any, error: Exception, failed: Any) -> None:
    note(self, id, error, failed)
    block = self._blocks.get(id)
    if block is not None:
        block.failed = None
    failed.pop(id, None)


bug(
    "checkpoint-first",
    AREA,
    "a checkpoint is written before what it vouches for",
    "PySyncObj #197 (B16)",
    "crash fetch-crash",
)


@plant("checkpoint-first", FileStore, "_other")
def other_unsynced(other: Any, self: FileStore, write: Any, id: Any, block: Any) -> None:
    sync = self._handles.sync
    self._handles.sync = lambda block: None  # type: ignore[method-assign] # for this call
    try:
        other(self, write, id, block)
    finally:
        self._handles.sync = sync  # type: ignore[method-assign] # as it was


bug(
    "synced-tail-cut",
    AREA,
    "recovery drops the last batch, to be on the safe side",
    "Raft 5.2; NuRaft #185 (B5)",
    "crash crash-3",
)


@plant("synced-tail-cut", recovery, "walk")
def walk_short(walk: Any, window: Window, found: Any, *arguments: Any) -> Any:
    walk(window, found, *arguments)
    if found.headers and not found.fault:
        last = found.headers.pop()
        found.position -= last.length
        found.end, found.fault = last.base_offset, "not believed"
        found.last = -1 if not found.headers else found.position - found.headers[-1].length
        found.last_crc = found.headers[-1].header_crc if found.headers else 0
    return found


bug(
    "cut-one-too-many",
    AREA,
    "cutting a log takes the batch before with it",
    "KIP-101 (B20): truncation below what is visible",
    "fetch-network fetch-crash",
)


@plant("cut-one-too-many", BlockLog, "truncate")
def truncate_more(truncate: Any, self: BlockLog, end: int) -> None:
    if end < self.end and self.epochs:
        end = max((start for _, start in self.epochs if start < end), default=end)
    truncate(self, end)


bug(
    "write-error-ignored",
    AREA,
    "a write that has failed counts as done",
    "CORDS (FAST 2017)",
    "disk-3 swarm-3",
)


@plant("write-error-ignored", FileStore, "_note")
def note_nothing(note: Any, self: FileStore, id: Any, error: Exception, failed: Any) -> None:
    return None


bug(
    "produced-body-unchecked",
    AREA,
    "a leader appends what a producer sends without a look at the body",
    "what a stranger with Write did to the records of others",
    "hostile-3",
)


@plant("produced-body-unchecked", batch_validation, "check_crc")
def check_no_crc(check_crc: Any, batch: EncodedBatch) -> None:
    return None


bug(
    "produced-form-unchecked",
    AREA,
    "a leader appends what no reader can decode",
    "Kafka LogValidator",
    "hostile-3",
)


@plant("produced-form-unchecked", batch_validation, "check_form")
def check_no_form(check_form: Any, batch: EncodedBatch) -> None:
    return None


bug(
    "copied-body-unchecked",
    AREA,
    "a broker that copies a batch seals it anew, whatever the body has become",
    "a CRC that is made again vouches for nothing",
    test="tests/broker/test_batch_copies.py::test_a_batch_that_is_damaged_is_not_passed_on_as_a_sound_one",
)


@plant("copied-body-unchecked", batch_copies, "check")
def copy_unchecked(check: Any, batch: EncodedBatch) -> None:
    return None


bug(
    "follower-body-unchecked",
    AREA,
    "a follower keeps what its leader sends, whatever has become of it on the way",
    "Kafka checks the CRC of fetched batches before it appends them",
    test="tests/core/block/test_log.py::test_a_follower_takes_no_damaged_body",
)


@plant("follower-body-unchecked", log, "restamp")
def restamp_unchecked(restamp: Any, data: bytes, durable: int) -> Any:
    return [batch.stamp(batch.base_offset, batch.header.leader_epoch, 0) for batch in split(data)]


bug(
    "future-keeps-forever",
    AREA,
    "the time of a record decides how long a block is kept, whatever it is",
    "Kafka before KIP-937",
    test="tests/core/block/test_retention.py"
    "::test_a_time_that_nobody_could_mean_does_not_keep_a_block_for_ever",
)


@plant("future-keeps-forever", retention, "newest_ms")
def newest_as_said(newest_ms: Any, block: Any, following: Any, config: Any) -> Any:
    return block.max_timestamp


bug(
    "second-write-unwatched",
    AREA,
    "what waits for the second write of a turn leaves although that has failed",
    "a mutation that no test killed",
    test="tests/runtime/test_loop.py::test_nothing_follows_a_second_write_of_the_turn_that_fails",
)


@plant("second-write-unwatched", Loop, "_write")
def write_unwatched(write: Any, self: Loop, writes: Any, now: int) -> bool:
    failed: bool = write(self, writes, now)
    is_second = sys._getframe(2).f_code.co_name == "_finish_all"  # frame 1 is the patch itself
    return failed and not is_second


bug(
    "disk-error-is-the-partitions",
    AREA,
    "a client is told for good what the disk of one replica says",
    "one failed sync refused producers for 71 s while another broker led",
    "disk-3 fetch-disk",
    is_slow=True,
)


@plant("disk-error-is-the-partitions", OpenBlock, "refusal")
def refusal_as_it_is(refusal: Any, self: OpenBlock, problem: Any) -> Any:
    return problem
