"""Finds the schemas of topics in the registry of typed topics, through the log of a source."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from pymq.client.client import Client
from pymq.client.typed.registry import TOPIC, SchemaVersion, decode_version
from pymq.errors import ConfigError, UnknownTopic
from pymq.serde.serializer import Schema, text_of
from pymq.spark.log.cluster_log import ClusterLog, open_log
from pymq.spark.log.topic_log import TopicLog
from pymq.spark.options import SinkOptions, SourceOptions
from pymq.spark.planning import Range
from pymq.spark.process import client, process_cache
from pymq.spark.values.schema_types import is_columns, tree_of

FETCH_BYTES = 1 << 20


def versions(log: TopicLog) -> dict[str, list[SchemaVersion]]:
    """Return all registered schemas by topic, oldest first."""
    try:
        registry = log.topic(TOPIC)
    except UnknownTopic:
        return {}
    found: dict[str, dict[int, SchemaVersion]] = {}
    for partition, (start, end) in log.bounds(TOPIC, registry.partitions, registry.id).items():
        for batch in log.read(Range(TOPIC, partition, start, end, registry.id), FETCH_BYTES):
            if batch.header.is_hidden or not len(batch):
                continue
            for value in batch.values:
                if (version := decode_version(bytes(value))) is not None:
                    found.setdefault(version.topic, {})[version.version] = version
    return {topic: [known[at] for at in sorted(known)] for topic, known in found.items()}


def resolve_sink(options: SinkOptions, mq: Client | None = None) -> SinkOptions:
    """Return the options with the registered schema of the topic, which every row has to fit.

    *mq* is the client to use; None for this process's own client, which stays open.

    Raises:
        ConfigError: the schema of the topic has another format, or is not the schema in the
        options.
    """
    values = options.values
    if values.format in ("binary", "arrow") or options.topic is None:
        return options
    log = ClusterLog(mq or client(options.url), options.timeout_s)
    known = versions(log).get(options.topic)
    if not known:
        return options
    schema = known[-1].schema
    check_format(values.format, schema, options.topic)
    if values.schema is None or is_columns(values.schema):
        return attrs.evolve(options, values=attrs.evolve(values, schema=schema.text))
    own = Schema(values.format, text_of(tree_of(values.schema)))
    if own != schema:
        from pymq.serde.compatibility import unreadable  # on demand: few sinks need this check

        if why := unreadable(reader=schema, writer=own):
            raise ConfigError(
                f"option 'valueSchema' does not fit version {known[-1].version} of the schema of "
                f"topic {options.topic!r}: {'; '.join(why[:3])}"
            )
    return options


def check_format(format: str, schema: Schema, topic: str) -> None:
    """Check that the registered schema of a topic is of the format of the options.

    Raises:
        ConfigError: the schema has another format.
    """
    if schema.format != format:
        raise ConfigError(
            f"option 'valueFormat' is {format!r}, and the schema of topic {topic!r} is of the "
            f"format {schema.format!r}"
        )


def find(options: SourceOptions, fingerprints: Iterable[str]) -> dict[str, Schema]:
    """Return registered schemas by fingerprint; a process reads the registry again for new ones."""
    known: dict[str, Schema] = process_cache("schemas")
    wanted = set(fingerprints)
    if wanted - set(known):
        with open_log(options) as log:
            for several in versions(log).values():
                known.update({each.schema.fingerprint: each.schema for each in several})
    return {name: known[name] for name in wanted if name in known}
