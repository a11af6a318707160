"""The limit on the size of a commit."""

from __future__ import annotations

import pytest

from pymq.coord.limits import refusal, size
from pymq.core.metadata.coordination import Check, Commit, Create, Delete, Put

COMMIT = Commit(
    1,
    (
        Check("/pymq/controller", 0),
        Create("/pymq/topics/ä", b"some data"),
        Create("/pymq/brokers/b", b"", ephemeral=True),
        Put("/pymq/topics/t", b"other data", 3),
        Delete("/pymq/topics/u", 7),
    ),
)


def test_the_size_of_a_commit_is_what_zookeeper_would_see() -> None:
    dialect = pytest.importorskip("pymq.coord.zookeeper.dialect")
    exact = dialect.Dialect("", is_owned=False, max_request_bytes=size(COMMIT))
    exact.check_size(COMMIT)
    less = dialect.Dialect("", is_owned=False, max_request_bytes=size(COMMIT) - 1)
    with pytest.raises(Exception, match="ZooKeeper takes"):
        less.check_size(COMMIT)


def test_a_commit_that_is_too_large_is_refused_with_both_sizes() -> None:
    assert refusal(COMMIT, size(COMMIT)) is None
    refused = refusal(COMMIT, size(COMMIT) - 1)
    assert refused is not None
    assert refused.details == {"size": size(COMMIT), "limit": size(COMMIT) - 1}
