"""Folders of keys for tests."""

from __future__ import annotations

from pathlib import Path

from pymq.transport.curve.key_files import Pair, Public, make_pair, write_pair


def make_keys(folder: Path, *names: str, nodes: tuple[str, ...] = ()) -> dict[str, Pair]:
    """Make a key pair for each name, all in one folder."""
    made = {name: make_pair(name) for name in (*nodes, *names)}
    for name, pair in made.items():
        write_pair(folder, pair, Public(name, pair.public, is_node=name in nodes))
    return made
