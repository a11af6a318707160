"""Options of a node from a file are checked like those of the command line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pymq.nodes.service import endpoints, parse, secure, web
from pymq.testing.child import environment


def parsed(tmp_path: Path, text: str) -> argparse.Namespace:
    config = tmp_path / "node.toml"
    config.write_text(text)
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--zkserver", type=endpoints)
    parser.add_argument("--session-ms", type=int, default=2_000)
    secure(parser)
    web(parser, has_page=True)
    return parse(parser, ["--config", str(config)])


def test_options_have_the_types_of_the_command_line(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        'name = 7\nzkserver = ["tcp://a:1", "b:2"]\nsession-ms = 900\nhttp-writable = true\n'
        "insecure = false\n",
    )
    assert (found.name, found.session_ms) == ("7", 900)
    assert found.zkserver == ["tcp://a:1", "tcp://b:2"]
    assert (found.insecure, found.http_writable) == (False, True)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('insecure = "false"', "'insecure' is true or false, not 'false'"),
        ("http-writable = 0", "'http_writable' is true or false, not 0"),
        ("http = true", "'http' is a text, a number or a list, not True"),
        ('session-ms = "soon"', "invalid int value: 'soon'"),
        ("[http]\nport = 1", "'http' is a text"),
        ("zkserver = 5", "'5' is no list of endpoints"),
    ],
)
def test_an_option_of_another_kind_is_refused(
    tmp_path: Path, line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text "false" does not count as true, which would let any client in."""
    with pytest.raises(SystemExit) as status:
        parsed(tmp_path, f'name = "b"\n{line}\n')
    assert status.value.code == 2
    assert complaint in capsys.readouterr().err


FAILS = """
import sys
import pymq
from pymq.nodes.service import serve
from pymq.errors import StoreError

class Failing(pymq.ZkServer):
    def run(self):
        self.close()
        raise StoreError("the disk is gone")

sys.exit(serve(Failing()))
"""


def test_a_node_that_fails_says_why_and_ends_with_status_1() -> None:
    """A failed node logs the reason and ends with status 1, so that a service manager
    restarts it.
    """
    command = [sys.executable, "-c", FAILS]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment()
    )
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["event"], line["level"]) == ("failed", "error")
    assert (line["code"], line["why"]) == ("STORE_ERROR", "the disk is gone")
