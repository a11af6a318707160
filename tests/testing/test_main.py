"""``python -m pymq.testing`` refuses arguments that make no sense."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pymq.testing.__main__ import main
from pymq.testing.faults.plan import generate
from tests.testing.planted import planted


@pytest.mark.parametrize("seeds", ["5:5", "7:3", "x", "1:x", ""])
def test_no_seed_at_all_is_no_success(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["--seeds", seeds])
    assert status.value.code == 2
    assert "--seeds" in capsys.readouterr().err


def rows(said: str) -> list[tuple[str, ...]]:
    """Seed, digest and events of each run."""
    return re.findall(r"^ +(\d+) ([0-9a-f]{8}) +(\d+)", said, re.MULTILINE)


@pytest.mark.parametrize("how", ["seed", "safety", "plan"])
def test_what_is_printed_for_a_failure_repeats_it(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command repeats the failure, for any arguments of the run.

    A changed plan is no longer the run of its seed.
    """
    sizes = "--brokers 1 --zkservers 2 --profile calm --seconds 3.5".split()
    asked = [*sizes, "--seeds", "3", *(["--safety"] if how == "safety" else [])]
    if how == "plan":
        plan = generate(3, brokers=1, zkservers=2, profile="calm", seconds=3.5)
        file = tmp_path / "a plan.json"
        file.write_text(plan.copy(ops=plan.ops[: len(plan.ops) // 2]).to_json())
        asked = ["--plan", str(file)]
    with planted("answered-at-once"):
        assert main(asked) == 1
        said = capsys.readouterr().out
        command = re.search(r"to see it again: (.*)", said)
        assert command is not None
        words = shlex.split(command[1])
        assert words[:3] == ["python", "-m", "pymq.testing"]
        assert main(words[3:]) == 1
    again = capsys.readouterr().out
    assert rows(again) == rows(said)
    assert len(rows(said)) == 1
