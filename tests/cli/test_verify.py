"""``pymq verify`` tells what is wrong, where, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pymq
from pymq.cli import main


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


def test_a_clean_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert [line for line in lines if line[:1] == ["orders"]] == [
        ["orders", name, "1", "0", "100", "2", "100", size, "ok"]
        for name, size in (("beijing", lines[2][7]), ("xian", lines[3][7]))
    ]
    assert f"{folder}: clean; " in out
    assert "200 records" in out
    assert "note" not in out


def test_a_damaged_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = damage(folder)
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "1 damaged" in out
    assert f"damaged: {block}, byte " in out
    assert "offset 0" in out
    assert "what to do: restore" in out
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
