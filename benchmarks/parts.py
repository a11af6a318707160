"""The list of all parts; to add one, write a module with ``PARTS`` and a line here."""

from __future__ import annotations

from importlib import import_module

from benchmarks.model import Part

MODULES = (
    "benchmarks.embedded.put",
    "benchmarks.embedded.get",
    "benchmarks.embedded.single",
    "benchmarks.embedded.ack",
    "benchmarks.embedded.reopen",
    "benchmarks.embedded.partitions",
    "benchmarks.embedded.start",
    "benchmarks.embedded.own",
    "benchmarks.replication.idle",
    "benchmarks.network.one",
    "benchmarks.network.three",
    "benchmarks.network.old",
    "benchmarks.kafka.door",
    "benchmarks.growth.records",
    "benchmarks.growth.partitions",
    "benchmarks.growth.consumers",
    "benchmarks.growth.brokers",
    "benchmarks.growth.sizes",
    "benchmarks.queues.tasks",
    "benchmarks.queues.delayed",
    "benchmarks.spark.read",
    "benchmarks.spark.write",
)


def all_parts() -> list[Part]:
    """Return all parts, in the order of the report."""
    return [part for module in MODULES for part in import_module(module).PARTS]


def find(name: str) -> Part:
    """Return the part of that name."""
    return next(part for part in all_parts() if part.name == name)


def chosen(names: list[str]) -> list[Part]:
    """Return the parts whose names are, or begin with, one of *names*; all without names.

    Raises:
        ValueError: no part has such a name.
    """
    parts = all_parts()
    for name in names:
        if not any(_matches(part, name) for part in parts):
            known = ", ".join(part.name for part in parts)
            raise ValueError(f"there is no part {name!r}; there are {known}")
    return [part for part in parts if not names or any(_matches(part, n) for n in names)]


def _matches(part: Part, name: str) -> bool:
    return part.name == name or part.name.startswith(f"{name}-")
