"""Makes a mirror: from Kafka to a queue, or from a queue to Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pymq.errors import ConfigError
from pymq.mirror.inward import InwardMirror
from pymq.mirror.kafka_client import SCHEME, servers_of
from pymq.mirror.options import checked
from pymq.mirror.outward import OutwardMirror

if TYPE_CHECKING:
    from pymq.client.client import Client

Mirror = InwardMirror | OutwardMirror


def mirror(
    source: Client | str,
    target: Client | str,
    topics: str | Sequence[str],
    *,
    excluded: str | Sequence[str] = (),
    groups: str | Sequence[str] = (),
    name: str = "kafka",
    once: bool = False,
    rate: float | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    records: int = 10_000,
    compression: Literal["lz4", "zstd"] | None = None,
    exactly_once: bool = True,
    properties: Mapping[str, str] | None = None,
) -> Mirror:
    """Return a mirror; its methods are ``run``, ``dry_run`` and ``close``.

    One side is the client of a queue, the other the URL ``kafka://HOST:PORT,HOST:PORT``. Topics are
    created with the same partitions; records keep their partition, key, headers and timestamp.

    Args:
        source: from where.
        target: to where.
        topics: names or shell patterns, as ``orders*``, also separated by commas.
        excluded: patterns of topics that are left out.
        groups: patterns of Kafka's groups whose committed offsets are translated.
        name: of the mirror; two mirrors of one queue need two names.
        once: end with the records that exist when the mirror begins.
        rate: the most records a second.
        on_error: what to do with a record that the target refuses, and if Kafka has removed
            records before they were mirrored.
        records: the most records of a round.
        compression: of the batches that the mirror writes.
        exactly_once: to Kafka: use a transaction for each round.
        properties: more properties of librdkafka, as for TLS and SASL.

    Raises:
        ConfigError: an option is out of its range, or none or both sides are a Kafka.
        MissingExtra: confluent-kafka is not installed.
    """
    if isinstance(source, str) == isinstance(target, str):
        raise ConfigError(f"one of source and target must be {SCHEME}HOST:PORT, the other a queue")
    url = source if isinstance(source, str) else target
    assert isinstance(url, str)
    options = checked(
        servers_of(url),
        topics,
        excluded=excluded,
        groups=groups,
        name=name,
        once=once,
        rate=rate,
        on_error=on_error,
        records=records,
        codec=compression,
        exactly_once=exactly_once,
        properties=properties,
    )
    if isinstance(source, str):
        assert not isinstance(target, str)
        return InwardMirror(target, options)
    return OutwardMirror(source, options)
