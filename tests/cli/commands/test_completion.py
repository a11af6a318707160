"""``pymq completion``, tried in a real bash."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pymq.cli import main
from pymq.cli.commands.completion import SHELLS

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_pymq
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = script(shell, capsys)
    for word in ("decommission", "set-state", "key-separator"):
        assert word in found
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "script": found[:-1]}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pymq", "do"], {"doctor"}),
        (["pymq", "topic", "de"], {"describe", "delete"}),
        (["pymq", "group", "reset", "--ex"], {"--execute"}),
        (["pymq", "produce", "--acks", ""], {"raft", "leader", "none"}),
    ],
)
def test_bash_completes(
    words: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script").write_text(script("bash", capsys))
    command = ["bash", "-c", ASK, "bash", str(tmp_path / "script"), *words]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert expected == set(found.stdout.split())


def test_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "cmd.exe"]) == 2
    assert "choose from" in capsys.readouterr().err


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == (
        "error: completion needs shtab: pip install 'pymq-log[cli]', or in a clone "
        "pip install '.[cli]' (MISSING_EXTRA)\n"
    )
