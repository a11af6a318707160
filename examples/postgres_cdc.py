"""Changes of a PostgreSQL table as records of a compacted topic, each exactly once.

python -m examples.postgres_cdc 'host=127.0.0.1 dbname=shop' items --url zmq+tcp://127.0.0.1:7878
pymq table sync zmq+tcp://127.0.0.1:7878 items lake/items --columns 'id long, name string'

Needs psycopg, a server with `wal_level = logical`, and a table with a primary
key. Each changed row becomes a record, with the primary key as its key and the row as its value,
both as JSON; a deleted row becomes a tombstone. Changes of one row keep their order. To capture
rows from before the first start, run `UPDATE items SET id = id`.

You may kill the process at any moment. The process reads changes from a replication slot without
consuming them, and then, for each batch of transactions, takes these steps:

1. send the changes, by a named producer, and wait until they are acknowledged;
2. write the position, and the number of records in each partition up to that position, to
   `items.position`;
3. advance the slot.

At its start, a process reads the last position, and skips the transactions before it. The dead
process may have sent some of the changes after the position. The producer knows the total number of
records that it has written to each partition (`next_sequence`); the process skips that number minus
the number in the position.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

import pymq

# changes that are read at a time; the last transaction is always read as a whole
TRANSACTIONS = 1000
POLL_S = 0.2  # pause between two reads of an idle slot
TOMBSTONE = ("pymq.tombstone", b"")
INTEGERS, FLOATS, BOOLEAN = (20, 21, 23), (700, 701), 16  # type ids of PostgreSQL


def main() -> int:
    """Capture changes until Ctrl-C, or only the existing changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dsn", help="the database, as 'host=127.0.0.1 dbname=shop'")
    parser.add_argument("table", help="NAME, or SCHEMA.NAME")
    parser.add_argument("--url", required=True, help="the queue")
    parser.add_argument("--topic", help="by default the name of the table")
    parser.add_argument("--partitions", type=int, default=2, help="of a new topic (%(default)s)")
    parser.add_argument("--once", action="store_true", help="stop after the changes that exist now")
    args = parser.parse_args()
    topic = args.topic or args.table.rpartition(".")[2]
    with psycopg.connect(args.dsn, autocommit=True) as database, pymq.open(args.url) as mq:
        capture = Capture(database, args.table, mq, topic, args.partitions)
        with capture.producer:
            try:
                while capture.step() or not args.once:
                    pass
            except KeyboardInterrupt:
                return 130
    return 0


class Position(NamedTuple):
    """The progress of the topic."""

    lsn: int  # end of the last transaction whose changes are all in the topic
    sent: dict[str, int]  # by partition: the number of records up to that transaction


class Capture:
    """Moves the changes of one table to one topic."""

    def __init__(
        self, database: psycopg.Connection, table: str, mq: pymq.Client, topic: str, partitions: int
    ) -> None:
        self._database = database
        self._topic = topic
        self._slot = f"pymq_{''.join(c if c.isalnum() else '_' for c in table.lower())}"
        self._decoder = Decoder(prepare(database, table, self._slot))
        mq.create_topic(topic, partitions, cleanup_policy="compact", exist_ok=True)
        mq.create_topic(f"{topic}.position", cleanup_policy="compact", exist_ok=True)
        self._partitions = [each.name for each in mq.describe_topic(topic).partitions]
        # A second process of this name fences the first one, in both topics.
        self.producer = mq.producer(producer_id=f"cdc-{self._slot}")
        self._position = read_position(mq, f"{topic}.position")
        self._skip = Counter(
            {
                name: self.producer.next_sequence(topic, name) - self._position.sent.get(name, 0)
                for name in self._partitions
            }
        )

    def step(self) -> bool:
        """Move some transactions; return whether there were any."""
        end, changes = self._decoder.read(self._peek(), self._position.lsn)
        if end <= self._position.lsn:
            self._advance()  # an earlier process may have died before advancing
            time.sleep(POLL_S)
            return False
        sent = Counter(self._position.sent)
        for change in changes:
            partition = self._partitions[zlib.crc32(change.key) % len(self._partitions)]
            sent[partition] += 1
            if self._skip[partition]:
                self._skip[partition] -= 1
                continue
            headers = [TOMBSTONE] if change.value is None else None
            value = change.value or b""
            self.producer.send(self._topic, value, change.key, headers, partition)
        self.producer.flush()
        if any(self._skip.values()):
            raise RuntimeError(f"{self._topic} has records of changes that the slot has not")
        self._position = Position(end, dict(sent))
        told = json.dumps(self._position._asdict()).encode()
        self.producer.send(f"{self._topic}.position", told, self._slot.encode()).result()
        self._advance()
        return True

    def _peek(self) -> list[bytes]:
        """Return the next messages of the slot, up to the end of a transaction."""
        found = self._database.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, "
            "'proto_version', '1', 'publication_names', %s)",
            (self._slot, TRANSACTIONS, self._slot),
        )
        return [bytes(data) for (data,) in found]

    def _advance(self) -> None:
        """Let the server drop the changes that are in the topic."""
        self._database.execute(
            "SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots "
            "WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn",
            (text := lsn_text(self._position.lsn), self._slot, text),
        )


def prepare(database: psycopg.Connection, table: str, slot: str) -> list[str]:
    """Create publication and slot if they do not exist; return the columns of the primary key."""
    key = database.execute(
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
        "AND attnum = ANY(indkey) WHERE indrelid = %s::regclass AND indisprimary "
        "ORDER BY array_position(indkey, attnum)",
        (table,),
    ).fetchall()
    if not key:
        raise SystemExit(f"error: {table} has no primary key")
    name = sql.Identifier(*table.split("."))
    if not database.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (slot,)).fetchone():
        # Otherwise PostgreSQL omits large values that an update does not change.
        database.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
        query = sql.SQL("CREATE PUBLICATION {} FOR TABLE {}")
        database.execute(query.format(sql.Identifier(slot), name))
    known = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
    if not database.execute(known, (slot,)).fetchone():
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    return [column for (column,) in key]


def read_position(mq: pymq.Client, topic: str) -> Position:
    """Return the last position."""
    found = Position(0, {})
    with mq.consumer(topic, mode="psb", offset="begin") as consumer:
        for record in consumer.until_end():
            found = Position(**json.loads(record.value))
    return found


def lsn_text(lsn: int) -> str:
    """Write a position of the log as PostgreSQL does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


# --- pgoutput, the messages of logical replication, version 1 -----------------------------------


class Change(NamedTuple):
    """A changed row."""

    key: bytes
    value: bytes | None  # None: the row was deleted


class Relation(NamedTuple):
    """A table, by its columns and the ids of their types."""

    columns: list[str]
    types: list[int]


Row = dict[str, Any]
UNCHANGED = object()  # a large value that the update did not touch


class Decoder:
    """Decodes messages to changes."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = key
        self._relations: dict[int, Relation] = {}

    def read(self, messages: Sequence[bytes], after: int) -> tuple[int, list[Change]]:
        """Return the end of the last transaction, and the changes of those that end after *after*.

        A message begins with a letter: B(egin), R(elation), I(nsert), U(pdate), D(elete), C(ommit).
        """
        end, found, open_ones = after, list[Change](), list[Change]()
        for message in messages:
            kind = message[:1]
            if kind == b"B":
                open_ones = []
            elif kind == b"R":
                self._relation(message)
            elif kind in (b"I", b"U", b"D"):
                open_ones += self._changes(message)
            elif kind == b"C":
                (at,) = struct.unpack_from(">Q", message, 10)
                if at > after:
                    found += open_ones
                    end = at
            elif kind == b"T":
                raise RuntimeError("the table was truncated: delete its rows instead")
        return end, found

    def _relation(self, message: bytes) -> None:
        (number,) = struct.unpack_from(">I", message, 1)
        at = message.index(b"\0", message.index(b"\0", 5) + 1) + 2  # after both names and a byte
        (count,) = struct.unpack_from(">H", message, at)
        at += 2
        columns, types = [], []
        for _ in range(count):
            end = message.index(b"\0", at + 1)
            columns.append(message[at + 1 : end].decode())
            types.append(struct.unpack_from(">I", message, end + 1)[0])
            at = end + 9
        self._relations[number] = Relation(columns, types)

    def _changes(self, message: bytes) -> Iterator[Change]:
        (number,) = struct.unpack_from(">I", message, 1)
        relation, at = self._relations[number], 5
        old: Row | None = None
        new: Row | None = None
        while at < len(message):
            kind = message[at : at + 1]
            row, at = _row(message, at + 1, relation)
            if kind == b"N":
                new = row
            else:
                old = row
        if new is not None and old is not None:
            new = {name: old[name] if each is UNCHANGED else each for name, each in new.items()}
        if old is not None and (new is None or self._key_of(old) != self._key_of(new)):
            yield Change(self._key_of(old), None)
        if new is not None:
            yield Change(self._key_of(new), json.dumps(new).encode())

    def _key_of(self, row: Row) -> bytes:
        return json.dumps([row[name] for name in self._key]).encode()


def _row(message: bytes, at: int, relation: Relation) -> tuple[Row, int]:
    (count,) = struct.unpack_from(">H", message, at)
    at += 2
    row: Row = {}
    for name, type in zip(relation.columns[:count], relation.types, strict=False):
        kind = message[at : at + 1]
        at += 1
        if kind == b"t":
            (size,) = struct.unpack_from(">I", message, at)
            row[name] = _value(message[at + 4 : at + 4 + size].decode(), type)
            at += 4 + size
        else:
            row[name] = None if kind == b"n" else UNCHANGED
    return row, at


def _value(text: str, type: int) -> Any:
    if type in INTEGERS:
        return int(text)
    if type in FLOATS:
        return float(text)
    return text == "t" if type == BOOLEAN else text


if __name__ == "__main__":
    sys.exit(main())
