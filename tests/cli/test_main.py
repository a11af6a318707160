"""The command line as a whole: usage, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pymq
from pymq.cli import COMMANDS, main, verify
from pymq.cli.show import Show


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["verify"], ["demo", "--workers", "many"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "usage: pymq" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--workers", "0"], ["--workers", "9"], ["--quick", "0"]])
def test_options_out_of_their_range(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *argv]) == 2
    assert capsys.readouterr().err.endswith("(CONFIG_ERROR)\n")


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    with pytest.raises(pymq.errors.StoreError):
        main(["verify", "--debug", str(tmp_path)])


def test_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "run", interrupted)
    assert main(["verify", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    pymq.open(tmp_path / "data").close()
    command = [sys.executable, "-m", "pymq", "verify", "--json", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 1


def test_version() -> None:
    command = [sys.executable, "-m", "pymq", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == f"pymq {pymq.__version__}\n"


@pytest.mark.parametrize("is_rich", [True, False])
def test_it_looks_alike_without_rich(
    is_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_rich:
        for name in ("rich", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
    show = Show(is_json=False)
    show.say("[not markup]", style="bold")
    show.table(("name", "count"), [("a", "1"), ("long [name]", "1,000")])
    with show.progress("work", 10, start=5) as step:
        step.at(10)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "[not markup]",
        "name         count",
        "-----------  -----",
        "a                1",
        "long [name]  1,000",
    ]
    assert lines[5].startswith("work: 10 of 10 in ")
