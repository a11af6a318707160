"""Changes of a PostgreSQL table reach a topic and a table, even if the process is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.table.view import table_view
from tests.table.postgres import server
from tests.table.reading import read, rows

psycopg = pytest.importorskip("psycopg")

ROOT = Path(__file__).resolve().parents[2]

TABLE = (
    "CREATE TABLE items (shop text, id int, name text, price float8, note text, sold bool, "
    "PRIMARY KEY (shop, id))"
)
# a trigger of the test records each change here, in the order of the changes
NOTES = """
CREATE TABLE notes (number serial, shop text, id int, item json);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND (OLD.shop, OLD.id) <> (NEW.shop, NEW.id)) THEN
    INSERT INTO notes (shop, id) VALUES (OLD.shop, OLD.id);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO notes (shop, id, item) VALUES (NEW.shop, NEW.id, row_to_json(NEW));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION note();
"""
COLUMNS = "shop string, id int, name string, price double, note string, sold boolean"
NAMES = ("shop", "id", "name", "price", "note", "sold")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with server() as found:
        yield found


def compare(dsn: str, queue: str, location: str) -> int:
    """Compare the topic with all changes, and the table with the rows; returns the changes."""
    with psycopg.connect(dsn) as database:
        notes = database.execute("SELECT shop, id, item FROM notes ORDER BY number").fetchall()
        items = database.execute("SELECT * FROM items ORDER BY shop, id").fetchall()
    wanted: dict[str, list[tuple[bytes, Any]]] = {"0": [], "1": []}
    for shop, id, item in notes:
        key = json.dumps([shop, id]).encode()
        wanted[str(zlib.crc32(key) % 2)].append((key, item))
    found: dict[str, list[tuple[bytes, Any]]] = {"0": [], "1": []}
    with pymq.open(queue) as mq:
        with mq.consumer("items", mode="psb", offset="begin") as consumer:
            for record in consumer.until_end():
                assert record.key is not None
                is_dead = ("pymq.tombstone", b"") in record.headers
                item = None if is_dead else json.loads(record.value)
                found[record.partition].append((record.key, item))
        assert found == wanted
        with table_view("items", location, url=mq, schema=COLUMNS) as view:
            view.sync()
    last = {
        key: (dead, row)
        for key, dead, *row in rows(read(location, "parquet"), "key", "tombstone", *NAMES)
    }
    alive = sorted(tuple(row) for dead, row in last.values() if not dead)
    assert alive == items
    return len(notes)


@pytest.fixture
def items(dsn: str) -> Iterator[str]:
    """Return a database with the table; at the end remove the replication slot."""
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(TABLE)
        database.execute(NOTES)
        yield dsn
        database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        database.execute("DROP PUBLICATION pymq_items")
        database.execute("DROP TABLE items, notes; DROP FUNCTION note")


def kill_at(items: str, tmp_path: Path, steps: range) -> None:
    """Change the table, and capture the changes in processes that each die at a step."""
    queue, location = str(tmp_path / "queue"), str(tmp_path / "table")
    pymq.open(queue).close()
    command = [sys.executable, "-m", "tests.table.capturing", items, queue]

    def run(*more: str) -> int:
        done = subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert run("5", *map(str, steps)) >= len(steps) * 2 // 3
    assert compare(items, queue, location) > 4 * len(steps)
    run("6")  # Changes that were captured do not come again.
    compare(items, queue, location)


@pytest.mark.slow
def test_changes_are_captured_once(items: str, tmp_path: Path) -> None:
    kill_at(items, tmp_path, range(60, 1000, 160))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_killed_at_each_step(items: str, tmp_path: Path) -> None:
    kill_at(items, tmp_path, range(0, 1000, 7))
