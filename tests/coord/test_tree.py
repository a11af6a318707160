"""The pure tree: the meaning of commits, plans without side effects, and speed."""

import pytest

from pymq.coord.tree import MAX_DATA_BYTES, CommitPlan, Tree, TreeWatches, validate
from pymq.core.metadata.coordination import (
    Changed,
    Check,
    Commit,
    Committed,
    Conflicted,
    Create,
    Delete,
    Entry,
    Load,
    Op,
    Put,
)
from pymq.errors import CorruptMetadata, InvalidRequest


def commit(tree: Tree, *ops: Op, session: str = "s") -> tuple[int, ...] | tuple[int, str]:
    """Commit; returns the versions, or the index and reason of the refusal."""
    answer = tree.apply(Commit(1, ops), session)
    if isinstance(answer, Conflicted):
        return (answer.index, answer.reason)
    return answer.versions


def test_ops_see_the_ops_before_them() -> None:
    """A commit may create a node and its children, change them and delete them again."""
    tree = Tree()
    assert commit(
        tree,
        *(Create("/a", b""), Create("/a/b", b"1"), Put("/a/b", b"2", 0), Check("/a/b", 1)),
        *(Create("/a/t", b""), Delete("/a/t", 0)),
    ) == (0, 0, 1, 1, 0, -1)
    assert tree.load("/") == (Entry("/a", b"", 0), Entry("/a/b", b"2", 1))


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (Create("/a", b""), "exists"),
        (Create("/x/y", b""), "no-parent"),
        (Create("/e/x", b""), "no-parent"),
        (Put("/x", b"", 0), "missing"),
        (Put("/a", b"", 1), "version"),
        (Check("/x", 0), "missing"),
        (Check("/a", 1), "version"),
        (Delete("/x", 0), "missing"),
        (Delete("/a", 1), "version"),
        (Delete("/a", 0), "not-empty"),
    ],
)
def test_refused_commit_changes_nothing(op: Op, reason: str) -> None:
    """The index names the refused op; the ops before it are undone."""
    tree = Tree()
    commit(tree, Create("/a", b""), Create("/a/b", b""), Create("/e", b"", ephemeral=True))
    before = tree.load("/")
    assert commit(tree, Create("/n", b""), Put("/a/b", b"1", 0), op) == (2, reason)
    assert tree.load("/") == before


def test_plan_changes_nothing_until_adopted() -> None:
    """A backend may fail between planning and adopting, and has nothing to undo."""
    tree = Tree()
    plan = tree.plan(Commit(1, (Create("/a", b""), Create("/a/b", b"", ephemeral=True))), "s")
    assert isinstance(plan, CommitPlan)
    assert len(tree) == 0
    assert tree.load("/") == ()
    assert tree.plan_expiry("s").changes == {}
    tree.adopt(plan)
    assert len(tree) == 2


@pytest.mark.parametrize(
    "ops",
    [
        (Put("/a", b"", 0), Delete("/a/b", 0), Delete("/a", 1)),
        (Delete("/a/b", 0), Delete("/a", 0), Create("/a", b""), Create("/a/b", b"")),
        (Put("/a", b"", 0), Delete("/a/b", 0), Delete("/a", 1), Create("/a", b"", ephemeral=True)),
        (Create("/c", b""), Create("/c/d", b""), Delete("/c/d", 0), Delete("/c", 0)),
        (Create("/c", b""), Delete("/c", 0), Create("/c", b""), Create("/c/d", b"")),
    ],
)
def test_nodes_that_go_and_come_within_one_commit(ops: tuple[Op, ...]) -> None:
    """A commit leaves the same tree as its ops one by one."""
    whole, steps = Tree(), Tree()
    for tree in (whole, steps):
        commit(tree, Create("/a", b""), Create("/a/b", b""))
    assert len(commit(whole, *ops)) == len(ops)
    for op in ops:
        commit(steps, op)
    assert whole.load("/") == steps.load("/")
    # The index of children is correct too: all nodes can be deleted again.
    for entry in reversed(whole.load("/")):
        assert commit(whole, Delete(entry.path, entry.version)) == (-1,)
    assert len(whole) == 0


def test_expiry_takes_the_ephemeral_nodes_of_one_session() -> None:
    """A Put by another session does not change the owner of a node; deleted nodes have no owner."""
    tree = Tree()
    commit(tree, Create("/a", b"", ephemeral=True), Create("/b", b"", ephemeral=True), session="1")
    commit(tree, Create("/c", b"", ephemeral=True), session="2")
    commit(tree, Put("/a", b"", 0), Delete("/b", 0), Create("/b", b""), session="2")
    assert tree.get("/a") == Entry("/a", b"", 1, "1")
    assert tree.expire("1") == ("/a",)
    assert tree.expire("1") == ()
    assert tree.load("/") == (Entry("/b", b"", 0), Entry("/c", b"", 0, "2"))


def test_load_is_ordered_by_path() -> None:
    """The nodes of a load are ordered as plain text, ``/a-b`` before ``/a/b``.

    A root does not match the names that merely begin with it.
    """
    tree = Tree()
    paths = ["/a", "/a/b", "/a-b", "/ab", "/a/b/c", "/B"]
    commit(tree, *(Create(path, b"") for path in paths))
    assert [entry.path for entry in tree.load("/")] == sorted(paths)
    assert [entry.path for entry in tree.load("/a")] == ["/a", "/a/b", "/a/b/c"]
    assert tree.load("/x") == ()


def test_restore_gives_the_same_tree() -> None:
    """The result of a load can be restored, owners of ephemeral nodes included."""
    tree, copy = Tree(), Tree()
    commit(tree, Create("/a", b"1"), Create("/a/b", b"2"), Create("/e", b"", ephemeral=True))
    copy.restore(tree.load("/"))
    assert copy.load("/") == tree.load("/")
    assert copy.expire("s") == ("/e",)
    for bad in ([Entry("/a/b", b"", 0)], [Entry("/a", b"", 0)] * 2):
        with pytest.raises(CorruptMetadata):
            Tree().restore(bad)


def test_watches_match_roots_and_what_is_below() -> None:
    """Each change is reported once, in order, and only below the roots that the session watches."""
    watches = TreeWatches()
    for root in ("/a", "/a/b", "/none"):
        watches.add("s", root)
    watches.add("all", "/")
    changes = [Changed(path) for path in ("/a/b/c", "/ab", "/a", "/b", "/a/b")]
    assert watches.match("s", changes) == [changes[0], changes[2], changes[4]]
    assert watches.match("all", changes) == changes
    watches.drop("s")
    assert watches.match("s", changes) == ()


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a\n", "/\x7f"])
def test_bad_paths_are_the_callers_bug(path: str) -> None:
    """Invalid paths are refused before any backend gets them."""
    for request in (Load(1, path), Commit(1, (Create(path, b""),)), Commit(1, (Check(path, 0),))):
        with pytest.raises(InvalidRequest):
            validate(request)


def test_limits() -> None:
    """A node may have 512 KiB and not a byte more; the root can only be loaded."""
    validate(Load(1, "/"))
    validate(Commit(1, (Create("/a.b-c_D/..x/ü", bytes(MAX_DATA_BYTES)),)))
    for op in (
        *(Create("/a", bytes(MAX_DATA_BYTES + 1)), Put("/a", bytes(MAX_DATA_BYTES + 1), 0)),
        *(Put("/a", b"", -1), Delete("/a", -1), Check("/a", -1), Create("/", b""), Delete("/", 0)),
    ):
        with pytest.raises(InvalidRequest):
            validate(Commit(1, (op,)))
    with pytest.raises(InvalidRequest):
        validate(Commit(1, (Create("/a", bytearray(1)),)))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest):
        validate("nonsense")  # type: ignore[arg-type]  # wrong on purpose


def test_ten_thousand_partitions_in_one_commit() -> None:
    """40,000 nodes are created in one commit, loaded, and deleted."""
    nodes = [f"/p{i}{tail}" for i in range(10_000) for tail in ("", "/b", "/b/1", "/b/2")]
    request = Commit(1, tuple(Create(path, b"x" * 100) for path in nodes))
    tree = Tree()
    validate(request)
    assert isinstance(tree.apply(request, "s"), Committed)
    entries = tree.load("/")
    tree.apply(Commit(1, tuple(Delete(entry.path, 0) for entry in reversed(entries))), "s")
    assert len(entries) == 40_000
    assert len(tree) == 0
