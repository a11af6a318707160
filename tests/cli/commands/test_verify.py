"""``pymq verify`` shows the damage, its place, and the next step."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

import pymq
from pymq.cli import main
from pymq.cli.commands import verify
from pymq.cli.units import size_text
from pymq.coord.known_blocks import known_blocks
from pymq.coord.sqlite import read_entries
from pymq.nodes.embedded import METADATA
from pymq.store.verification.verify import Unknown


class Screen(io.StringIO):
    """A terminal that rich draws on."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with pymq.open(path) as mq:
        mq.create_topic("orders", partitions=["xian", "beijing"])
        with mq.producer() as producer:
            for name in ("xian", "beijing"):
                for start in (0, 50):
                    values = [b"order %d" % n for n in range(start, start + 50)]
                    producer.send_many("orders", values, partition=name).result()
    return path


def damage(folder: Path) -> Path:
    """Flip a bit in the middle of the first block with orders."""
    block = next(
        p for p in sorted(folder.glob("blocks/*/*/*.block")) if b"orders" in p.read_bytes()
    )
    data = bytearray(block.read_bytes())
    data[data.index(b"order 25")] ^= 1
    block.write_bytes(data)
    return block


def test_one_of_each_is_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pymq.open(tmp_path) as mq:
        mq.create_topic("orders")
        with mq.producer() as producer:
            producer.send("orders", b"two teapots")
    assert main(["verify", str(tmp_path)]) == 0
    assert f"{tmp_path}: clean; 1 block, 1 batch, 1 record, " in capsys.readouterr().out


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_terminal_shows_how_far_it_is(
    is_damaged: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress bar ends at the size of all block files, also if one of them is damaged."""
    pytest.importorskip("rich")
    if is_damaged:
        block = damage(folder)
        block.write_bytes(b"x" * block.stat().st_size)
    size = size_text(sum(path.stat().st_size for path in folder.rglob("*.block")))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["verify", str(folder)]) == is_damaged
    found = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(rf"read +\S+ {size} of {size}, [\d.,]+ [KMG]iB/s", found), found


def test_a_clean_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert [line for line in lines if line[:1] == ["orders"]] == [
        ["orders", name, "1", "0", "100", "2", "100", size, "ok"]
        for name, size in (("beijing", lines[2][7]), ("xian", lines[3][7]))
    ]
    assert f"{folder}: clean; 2 blocks, 4 batches, 200 records, " in out
    assert "note" not in out


def test_a_damaged_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = damage(folder)
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "1 damaged" in out
    assert f"damaged: {block}, byte " in out
    assert "offset 0" in out
    assert "next: restore" in out
    assert f"{folder}: 1 problem; still good: " in out
    assert "150 records" in out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--json", str(folder)]) == 0
    clean = json.loads(capsys.readouterr().out)
    assert (clean["ok"], clean["records"], clean["problems"]) == (True, 200, [])
    assert {p["partition"]: p["end_offset"] for p in clean["partitions"]} == {
        "xian": 100,
        "beijing": 100,
    }
    block = damage(folder)
    assert main(["verify", "--json", str(folder)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["records"]) == (False, 150)
    (problem,) = found["problems"]
    assert (problem["file"], problem["offset"], problem["is_note"]) == (str(block), 0, False)
    assert problem["position"] > 0
    assert sorted(p["ok"] for p in found["partitions"]) == [False, True]


def test_a_folder_in_use_is_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pymq.open(folder):
        assert main(["verify", str(folder)]) == 0
    assert "note: " in capsys.readouterr().out


def test_a_foreign_file_is_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = folder / "blocks" / "notes.txt"
    foreign.write_text("mine")
    assert main(["verify", str(folder)]) == 0
    assert f"note: {foreign}" in capsys.readouterr().out


def test_what_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        assert main(["verify", str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.endswith(" (STORE_ERROR)\n")
        assert err.count("\n") == 1


# --- what a crash has left ------------------------------------------------------------------------


def blocks(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in (folder / "blocks").rglob("*") if p.is_file()}


@pytest.fixture
def left(folder: Path) -> list[Path]:
    """Files of a deleted topic, as a restored backup of the blocks alone would contain them."""
    before = blocks(folder)
    with pymq.open(folder) as mq:
        mq.create_topic("gone", partitions=2)
        with mq.producer() as producer:
            producer.send("gone", b"x", partition=0).result()
    lost = {path: data for path, data in blocks(folder).items() if path not in before}
    with pymq.open(folder) as mq:
        mq.delete_topic("gone")
    assert blocks(folder).keys() == before.keys()
    for path, data in lost.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with pymq.open(folder) as mq:  # opening removes only what was requested
        assert mq.topics() == ["orders"]
    return sorted(set(blocks(folder)) - set(before))


def test_files_of_a_deleted_topic_are_a_note(
    folder: Path, left: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = blocks(folder)
    assert [path.suffix for path in left if path.suffix == ".block"] == [".block"]
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.count("note: ") == len({path.parent for path in left})
    assert f"note: {left[0]}: " in out
    assert "--remove-unknown" in out
    assert main(["verify", "--remove-unknown", str(folder)]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("to be removed: ")] == [
        f"to be removed: {path}" for path in left
    ]
    assert "add --yes" in out
    assert blocks(folder) == before


def test_files_of_a_deleted_topic_are_removed(
    folder: Path, left: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command removes only those files, only with --yes, and only while no process has the
    folder open.
    """
    before = blocks(folder)
    with pymq.open(folder):
        assert main(["verify", "--remove-unknown", "--yes", str(folder)]) == 0
    assert "nothing was removed" in capsys.readouterr().out
    before = blocks(folder)
    assert main(["verify", "--json", "--remove-unknown", "--yes", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(name) for name in found["removed"]] == left
    assert found["unknown"] == found["removed"]
    assert blocks(folder) == {p: data for p, data in before.items() if p not in left}
    assert not any(path.parent.parent.exists() for path in left)
    assert main(["verify", "--remove-unknown", str(folder)]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    with pymq.open(folder) as mq, mq.consumer("orders", mode="psb") as consumer:
        assert sum(consumer.end_offsets().values()) == 200


def test_a_block_beyond_its_retention(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A block of an existing topic that its metadata no longer contains."""
    (first, *_) = sorted(p for p in blocks(folder) if p.suffix == ".block")
    stray = first.with_name("00000007.ckpt")
    stray.write_bytes(b"whatever it holds")
    assert main(["verify", "--json", str(folder)]) == 1  # the folder is also damaged
    assert json.loads(capsys.readouterr().out)["unknown"] == [str(stray)]


def test_nothing_is_removed_from_a_damaged_folder(
    folder: Path, left: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    before = blocks(folder)
    assert main(["verify", "--remove-unknown", "--yes", str(folder)]) == 1
    assert "nothing was removed: the folder is in use or damaged" in capsys.readouterr().out
    assert blocks(folder) == before


def test_metadata_that_cannot_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unreadable metadata count as damage.

    Without metadata the unknown blocks cannot be determined.
    """
    metadata = folder / "metadata.db"
    data = bytearray(metadata.read_bytes())
    data[100:4000] = bytes(3900)
    metadata.write_bytes(data)
    assert main(["verify", str(folder)]) == 1
    assert f"damaged: {metadata}" in capsys.readouterr().out
    assert metadata.read_bytes() == data
    metadata.unlink()
    assert main(["verify", str(folder)]) == 0
    assert main(["verify", "--remove-unknown", "--yes", str(folder)]) == 1
    assert "metadata.db is missing" in capsys.readouterr().err


def test_a_removal_that_was_cut_short_is_no_damage(
    folder: Path, left: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The block's file is removed, but other files of the block remain; these are not reported."""
    for path in left:
        if path.suffix == ".block":
            path.unlink()
    assert any(path.suffix == ".ckpt" for path in left if path.exists())
    assert main(["verify", str(folder)]) == 0
    assert "is missing" not in capsys.readouterr().out
    assert main(["verify", "--remove-unknown", "--yes", str(folder)]) == 0
    assert not any(path.exists() for path in left)


def test_what_the_metadata_have_come_to_know_is_not_removed(folder: Path) -> None:
    """Between the check and the removal, another process may have created a topic."""
    found = known_blocks(read_entries(str(folder / METADATA)))
    files = sorted(folder.glob("blocks/*/*/*"))
    unknown = [Unknown(block, (), 0) for block in sorted(found)]
    assert len(unknown) == 2
    assert verify._remove(str(folder), str(folder / "metadata.db"), unknown) == []
    assert sorted(folder.glob("blocks/*/*/*")) == files


def test_a_folder_of_several_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each broker has its own report.

    If one broker is damaged, the whole folder counts as damaged.
    """
    with pymq.open(tmp_path, brokers=2) as mq:
        mq.create_topic("t", replicas=2, acks="raft")
        with mq.producer() as producer:
            producer.send("t", b"value")
    assert main(["verify", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(broker["path"]).name for broker in found["brokers"]] == ["broker-0", "broker-1"]
    assert [broker["records"] for broker in found["brokers"]] == [1, 1]
    (file,) = tmp_path.glob("broker-1/blocks/*/0/*.block")
    file.write_bytes(b"?" + file.read_bytes()[1:])
    assert main(["verify", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "broker-0: clean" in said
    assert "broker-1: 1 problem" in said
