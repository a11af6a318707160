"""The command line as a whole: usage, errors, exit codes."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pymq
from pymq.cli import COMMANDS, main
from pymq.cli.commands import verify
from pymq.cli.show import Show


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command.rpartition(".")[2] in out for command in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["verify"], ["demo", "--workers", "many"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "usage: pymq" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "prog", "what"),
    [
        (["topic", "list", "--json", "--nonsense"], "pymq", "--nonsense"),
        (["topic", "--json", "create", "a", "--partitions", "x"], "pymq topic create", "'x'"),
        (["verify", "--json"], "pymq verify", "DIR"),
    ],
)
def test_wrong_usage_for_programs(
    argv: list[str], prog: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.err)["error"]
    assert shown.out == ""
    assert (error["code"], error["retriable"]) == ("CONFIG_ERROR", False)
    assert what in error["message"]
    assert error["hints"][0].startswith(f"usage: {prog} [-h] ")
    assert error["hints"][1] == f"'{prog} --help' explains its arguments"


def test_what_is_no_option_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "create", "--", "--json", "more"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: unrecognized arguments: more (CONFIG_ERROR)\n  hint: usage: ")


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
    assert capsys.readouterr().err == "error: interrupted (INTERRUPTED)\n"
    assert main(["verify", str(tmp_path), "--json"]) == 130
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "INTERRUPTED"


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    pymq.open(tmp_path / "data").close()
    command = [sys.executable, "-m", "pymq", "verify", "--json", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 1


def test_a_reader_that_has_enough_records(tmp_path: Path) -> None:
    """``pymq consume | head -2`` ends with status 0 when head has its records."""
    with pymq.open(tmp_path / "data") as mq, mq.producer() as producer:
        mq.create_topic("t")
        producer.send_many("t", [b"%d" % number for number in range(50_000)]).wait(60)
    consume = [sys.executable, "-m", "pymq", "consume", "t", "--url", str(tmp_path / "data")]
    process = subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"0/0 ")
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("argv", "similar"),
    [
        ("topc list", "topic"),
        ("topic lst", "list"),
        ("topic create t --partitons 3", "--partitions"),
        ("consum t", "consume"),
        ("dlq redrve t", "redrive"),
    ],
)
def test_a_misspelt_word(argv: str, similar: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    error, hint, *_ = capsys.readouterr().err.splitlines()
    assert error.endswith("(CONFIG_ERROR)")
    assert hint == f"  hint: did you mean {similar}?"


def test_a_word_that_is_like_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_common_options_may_stand_before_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "data")
    pymq.open(url).close()
    for argv in (
        ["--url", url, "--json", "topic", "list"],
        ["topic", "--url", url, "--json", "list"],
        ["topic", "list", "--url", url, "--json"],
        ["--url", "elsewhere", "topic", "list", "--url", url, "--json"],
    ):
        assert main(argv) == 0
        assert json.loads(capsys.readouterr().out) == {"topics": []}
    assert main(["--url", url, "verify", url]) == 2
    assert "'pymq verify' uses no queue" in capsys.readouterr().err


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
    with show.progress("work", 10, "record", start=5) as step:
        step.at(10)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "[not markup]",
        "name         count",
        "-----------  -----",
        "a                1",
        "long [name]  1,000",
    ]
    assert lines[5].startswith("work: 10 of 10 records in ")
    assert lines[5].endswith(" records/s")


class Screen(io.StringIO):
    """A terminal that rich draws on."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [30, 80])
def test_a_narrow_terminal_shows_everything(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is wrapped, and where that is not enough, a row becomes a paragraph.

    No text is cut off.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")  # rich does not ask a dumb terminal for its width
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    show = Show(is_json=False)
    columns = ("partition", "replicas", "end", "committed", "size")
    names = "broker-0, broker-1, broker-2"
    show.table(columns, [("0", names, "1,234,567,890", "1", "9")], left=2)
    found = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    for text in (*columns, *names.split(", "), "1,234,567,890"):
        assert text in found
    assert max(map(len, found.splitlines())) <= max(width, 40)
    is_paragraph = any(line.split() == ["committed", "1"] for line in found.splitlines())
    assert is_paragraph == (width == 30)


@pytest.mark.parametrize(
    "argv",
    [
        ["--url", "first", "topic"],
        ["topic", "list", "--ur", "x"],
        ["keys", "make", "keys", "--nod", "broker-0"],
    ],
)
def test_options_stand_where_they_belong_and_in_full(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert "usage: pymq" in capsys.readouterr().err


def test_the_url_is_given_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYMQ_URL", raising=False)
    assert main(["topic", "list"]) == 2
    assert "use --url or set PYMQ_URL" in capsys.readouterr().err
    for name in ("one", "two"):
        assert main(["topic", "create", name, "--url", str(tmp_path / name)]) == 0
    monkeypatch.setenv("PYMQ_URL", str(tmp_path / "one"))
    capsys.readouterr()
    two = str(tmp_path / "two")
    for argv, expected in (
        (["topic", "list", "--names"], "one"),
        (["topic", "list", "--names", "--url", f"file://{two}"], "two"),
        (["topic", "--url", two, "list", "--names"], "two"),
        (["topic", "--url", "nowhere", "list", "--names", "--url", two], "two"),
    ):
        assert main(argv) == 0
        assert capsys.readouterr().out == f"{expected}\n"


def test_errors_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--json", "--url", str(tmp_path / "none")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    error = json.loads(shown.err)["error"]
    assert error.keys() == {"code", "message", "retriable", "hints"}
    assert error["code"] == "STORE_ERROR"


def test_every_command_tells_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in {
        "topic": ["create", "list", "describe", "alter", "delete", "set-state"],
        "group": ["list", "describe", "reset"],
        "cluster": ["status", "reassign", "decommission", "recommission", "balance", "recover"],
    }.items():
        assert main([command, "--help"]) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in words)
        assert main([command]) == 2
        capsys.readouterr()
