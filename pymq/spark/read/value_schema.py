"""Finds the schema of the values that a query reads."""

from __future__ import annotations

import attrs
from pyspark.sql.types import StructType

from pymq.errors import ConfigError
from pymq.spark.log.cluster_log import open_log
from pymq.spark.options import SourceOptions
from pymq.spark.read.subscription import chosen


def resolve_source(options: SourceOptions, given: StructType | None = None) -> SourceOptions:
    """Return the options with the registered schema of their topics, if they name a format and no
    schema.

    *given* is the schema that the query names. With *given*, JSON needs no registered schema, and
    other formats need one only to decode values.

    Raises:
        ConfigError: the topics have different schemas, or a schema of another format.
    """
    values = options.values
    if values.format in ("binary", "arrow") or values.schema is not None:
        return options
    if given is not None and (values.format == "json" or "value" not in given.names):
        return options
    from pymq.spark.values.registered import check_format, versions

    with open_log(options) as log:
        topics = chosen(log, options, skips_missing=True)
        known = versions(log)
    schemas = {known[topic][-1].schema: topic for topic in topics if topic in known}
    if len(schemas) > 1:
        raise ConfigError(
            f"topics {' and '.join(list(schemas.values())[:2])} have different schemas; name one "
            "in the option 'valueSchema', or read them in queries of their own"
        )
    for schema, topic in schemas.items():
        check_format(values.format, schema, topic)
        return attrs.evolve(options, values=attrs.evolve(values, schema=schema.text))
    return options
