"""The modules that `import pymq` loads, and those that it defers without a visible difference.

`import pymq` loads the errors only. `pymq.open` loads whatever the folder and its first record
need, so that no record waits for an import.
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
    pymq.core.batch.kafka.batch pymq.core.group.kafka.classic.coordinator pymq.kafka
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
    opened = set(sys.modules) - old - first
    mq.create_topic("records")
    with mq.producer() as producer:
        producer.send("records", b"value").result()
    sent = set(sys.modules) - old - first - opened
    consumer = mq.consumer("records", group="readers")
    assert [record.value for record in consumer.poll()] == [b"value"]
    print(json.dumps([sorted(first), sorted(opened), sorted(sent)]))
"""


def test_what_is_not_needed_is_not_loaded(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, opened, sent = (set(names) for names in json.loads(run.stdout))
    assert {name for name in first if name.startswith("pymq")} == {"pymq", "pymq.errors"}
    assert first.isdisjoint({"attr", "cbor2", "sqlite3", "threading"})
    assert {
        "pymq.broker.broker",
        "pymq.coord.sqlite",
        "pymq.nodes.embedded",
        "pymq.store.file.file_store",
    } <= opened
    assert (first | opened | sent) & NOT_BY_ANY_RECORD == set()
    assert {name for name in sent if name.startswith("pymq.")} == set()


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
    place = pymq.TopicPartition("records", "0")
    assert pickle.loads(pickle.dumps(place)) == place
    assert "class GroupDescription" in pydoc.plain(pydoc.render_doc(pymq))
