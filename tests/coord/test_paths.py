"""Paths are built from names and parsed back; foreign paths are not recognized."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

from pymq.coord import paths, tree
from pymq.coord.tree import validate
from pymq.core.metadata.coordination import Load
from pymq.errors import InvalidName

EVERY = [
    (paths.ROOT, "/pymq", paths.RootPath()),
    (paths.brokers(), "/pymq/brokers", paths.BrokersPath()),
    (paths.broker("b"), "/pymq/brokers/b", paths.BrokerPath("b")),
    (paths.broker_state("b"), "/pymq/brokers/b/state", paths.BrokerStatePath("b")),
    (paths.controller(), "/pymq/controller", paths.ControllerPath()),
    (paths.controller_epoch(), "/pymq/controller_epoch", paths.ControllerEpochPath()),
    (paths.producers(), "/pymq/producers", paths.ProducersPath()),
    (paths.producer("p"), "/pymq/producers/p", paths.ProducerPath("p")),
    (paths.deleted_topics(), "/pymq/deleted", paths.DeletedTopicsPath()),
    (paths.deleted_topic("ab"), "/pymq/deleted/ab", paths.DeletedTopicPath("ab")),
    (paths.topics(), "/pymq/topics", paths.TopicsPath()),
    (paths.topic("t"), "/pymq/topics/t", paths.TopicPath("t")),
    (paths.partitions("t"), "/pymq/topics/t/partitions", paths.PartitionsPath("t")),
    (paths.partition("t", "p"), "/pymq/topics/t/partitions/p", paths.PartitionPath("t", "p")),
    (
        paths.block("t", "p", 10),
        "/pymq/topics/t/partitions/p/Block_10",
        paths.BlockPath("t", "p", 10),
    ),
    (
        paths.replica("t", "p", 0, "b"),
        "/pymq/topics/t/partitions/p/Block_0/b",
        paths.ReplicaPath("t", "p", 0, "b"),
    ),
    (paths.subscriptions("t"), "/pymq/topics/t/subscriptions", paths.SubscriptionsPath("t")),
    (
        paths.subscription("t", "s"),
        "/pymq/topics/t/subscriptions/s",
        paths.SubscriptionPath("t", "s"),
    ),
]


@pytest.mark.parametrize(("built", "text", "parsed"), EVERY)
def test_parse_undoes_build(built: str, text: str, parsed: paths.MetaPath) -> None:
    """Each path has the documented form, is valid, and parses to its names."""
    assert built == text
    assert paths.parse(built) == parsed
    validate(Load(1, built))


def test_names_that_look_like_folders_are_names() -> None:
    """Nothing is reserved: a topic may be called ``partitions`` and a broker ``state``."""
    assert paths.parse(paths.topic("partitions")) == paths.TopicPath("partitions")
    assert paths.parse(paths.broker("state")) == paths.BrokerPath("state")
    assert paths.parse(paths.partition("topics", "Block_1")) == paths.PartitionPath(
        "topics", "Block_1"
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "a\n", "x" * 250])
def test_bad_names_are_refused(name: str) -> None:
    """No name can refer to another place in the tree."""
    for build in (paths.broker, paths.topic, lambda n: paths.partition("t", n)):
        with pytest.raises(InvalidName):
            build(name)
    with pytest.raises(InvalidName):
        paths.replica("t", "p", 0, name)


def test_negative_block_is_refused() -> None:
    """A negative block number is refused."""
    with pytest.raises(InvalidName):
        paths.block("t", "p", -1)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "pymq", "/pymq/", "/other", "/pymq/new", "/pymq/brokers/b/other"),
        *("/pymq/topics/t/x", "/pymq/topics//partitions", "/pymq/brokers/b/state/x"),
        *("/pymq/topics/t/partitions/p/0", "/pymq/topics/t/partitions/p/Block_01"),
        *("/pymq/topics/t/partitions/p/Block_", "/pymq/topics/t/partitions/p/Block_1/b/c"),
        *("/pymq/topics/t/partitions/p/Block_-1", "/pymq/topics/t/subscriptions/s/x"),
    ],
)
def test_foreign_paths_mean_nothing(path: str) -> None:
    """Unknown paths parse to None, so that a newer version may add kinds of nodes."""
    assert paths.parse(path) is None


@pytest.mark.parametrize("module", [paths, tree])
def test_tree_and_paths_are_pure(module: ModuleType) -> None:
    """Trees and paths import no I/O, since the controller imports them."""
    parsed = ast.parse(Path(module.__file__ or "").read_text())
    found = {
        name.partition(".")[0]
        for node in ast.walk(parsed)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert found <= {"__future__", "collections", "operator", "pymq", "re", "typing"}
