"""Nodes over ZeroMQ: the contract, and what only sockets can do wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymq.testing import check_transport
from pymq.transport.zeromq import ZmqTransport


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_the_contract(scheme: str, tmp_path: Path) -> None:
    made = 0

    def make(node: str) -> ZmqTransport:
        nonlocal made
        made += 1
        where = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://@pymq-{tmp_path.name}-{made}"
        return ZmqTransport(node, listen=where)

    check_transport(make)
