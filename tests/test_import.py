"""The modules that `import pymq` loads, and those that it defers without a visible difference.

All modules that a folder and the first record need are loaded at once, so that neither waits for an
import.
"""

from __future__ import annotations

import json
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path

import pymq

# Each of these modules takes milliseconds to import, and imports others.
NOT_BY_ANY_RECORD = set(
    """asyncio concurrent.futures email hashlib http logging pathlib shutil socket subprocess
    tempfile urllib.parse
    pymq.aio pymq.cli pymq.nodes.assembly pymq.nodes.remote pymq.nodes.service pymq.testing
    pymq.core.batch.kafka.batch pymq.core.group.classic.coordinator pymq.kafka
    pymq.transport pymq.web pymq.client.consumer.consumer pymq.client.consumer.options
    pymq.client.admin.groups pymq.client.consumer.reader pymq.client.group.acknowledgements
    pymq.client.consumer.status pymq.client.group.group_member pymq.coord.address
    pymq.coord.zookeeper.coordinator pymq.core.batch.view pymq.hash.assign pymq.hash.ring
    pymq.replication.raft.raft pymq.store.block.compaction pymq.store.memory
    pymq.store.verification.verify""".split()
)

SCRIPT = """
import json, sys
old = set(sys.modules)
import pymq
first = set(sys.modules) - old
with pymq.open(sys.argv[1]) as mq:
    mq.create_topic("records")
    with mq.producer() as producer:
        producer.send("records", b"value").result()
    second = set(sys.modules) - old - first
    consumer = mq.consumer("records", group="readers")
    assert [record.value for record in consumer.poll()] == [b"value"]
    print(json.dumps([sorted(first), sorted(second)]))
"""


def test_what_is_not_needed_is_not_loaded(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, second = (set(names) for names in json.loads(run.stdout))
    assert {
        "pymq",
        "pymq.nodes.embedded",
        "pymq.store.file.file_store",
        "pymq.broker.broker",
    } <= first
    assert (first | second) & NOT_BY_ANY_RECORD == set()
    # Opening a folder and sending the first record import nothing more than SQLite.
    assert {name for name in second if name.startswith("pymq.")} == {"pymq.coord.sqlite"}
    assert "sqlite3" not in first


def test_all_names_are_there_before_they_are_loaded() -> None:
    script = "import pymq; print(*dir(pymq)); from pymq import *; print(RecordBatch, Consumer, aio)"
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    names, found = run.stdout.splitlines()
    assert set(pymq.__all__) <= set(names.split())
    assert "pymq.core.batch.view.RecordBatch" in found
    assert "pymq.client.consumer.consumer.Consumer" in found


def test_what_is_loaded_later_is_the_same_for_everybody() -> None:
    for name in pymq.__all__:
        assert getattr(pymq, name) is getattr(pymq, name)
    assert pickle.loads(pickle.dumps(pymq.Consumer)) is pymq.Consumer
    assert "class GroupDescription" in pydoc.plain(pydoc.render_doc(pymq))
