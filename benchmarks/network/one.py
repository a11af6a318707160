"""Part N: one broker, one producer process and one consumer process, ack 1."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.kafka import server
from benchmarks.model import MS, At, Goal, Job, Measures, Needs, Part, Side
from benchmarks.network import (
    kafka_side,
    limit_side,
    nats_side,
    pymq_side,
    rabbit_side,
    redis_side,
    servers,
)
from benchmarks.network.roles import Actor, alone, both, percentiles, play

RATES = {100: 400_000, 1024: 100_000}
PACE_S = 1 / 300
WINDOW = 1000

# The work of one side: a function of its address, the job and the size.
Work = Callable[[Any, Job, int], Measures]


def _both(consume: Any, produce: Any, more: tuple[Any, ...] = ()) -> Work:
    def work(address: Any, job: Job, size: int) -> Measures:
        count = job.count(RATES[size])
        extra = (size,) if consume is limit_side.consume else ()
        reading = (consume, address, count, *extra)
        return both(count, reading, (produce, address, count, size, *more))

    return work


def _redis(work: Work, size: int, job: Job) -> Measures:
    with servers.redis(job.folder) as port:
        return work(port, job, size)


def _nats(work: Work, size: int, job: Job) -> Measures:
    with servers.nats(job.folder) as ports:
        nats_side.make_stream(ports)
        return work(ports, job, size)


def _rabbit(work: Work, size: int, job: Job) -> Measures:
    with servers.rabbit(job.folder) as nodes:
        rabbit_side.make_stream(nodes[0].stream)
        return work(nodes[0].stream, job, size)


def _kafka(work: Work, size: int, job: Job) -> Measures:
    job.warm(4 * job.count(RATES[size]) * size)
    with server.kafka(job.folder) as bootstrap:
        return work(server.ready(job, bootstrap), job, size)


def _mock(work: Work, size: int, job: Job) -> Measures:
    keep, address = kafka_side.mock()
    try:
        return work(address, job, size)
    finally:
        del keep


def _limit(work: Work, size: int, job: Job) -> Measures:
    (port,) = limit_side.ports(1)
    serve = partial(limit_side.broker, is_durable=False)
    with ExitStack() as stack:
        server = stack.enter_context(Actor(serve, str(job.folder), port, ()))
        server.ready()
        server.go()
        stack.callback(limit_side.stop, port)
        return work(port, job, size)


def _pymq(work: Work, size: int, job: Job) -> Measures:
    job.warm(4 * job.count(RATES[size]) * size)
    with pymq_side.cluster(job.folder) as url:
        pymq_side.make_topic(url, acks="leader", replicas=1, fsync="os")
        return work(url, job, size)


HOSTS: dict[str, Callable[[Work, int, Job], Measures]] = {
    "redis": _redis,
    "nats": _nats,
    "rabbitmq": _rabbit,
    "kafka": _kafka,
    "confluent": _mock,
    "limit": _limit,
    "pymq": _pymq,
}
NEEDS: dict[str, Needs] = {
    "redis": Needs(("redis", "hiredis"), ("redis-server",)),
    "nats": Needs(("nats",), ("nats-server",)),
    "rabbitmq": Needs(("rstream",), ("rabbitmq-server", "epmd")),
    "kafka": server.NEEDS,
    "confluent": Needs(("confluent_kafka",)),
    "limit": Needs(("zmq",)),
    "pymq": Needs(("zmq",)),
}


def _curve(work: Work, size: int, job: Job) -> Measures:
    job.warm(4 * job.count(RATES[size]) * size)
    folder = pymq_side.make_keys(job.folder)
    with pymq_side.cluster(job.folder, curve=folder) as url:
        pymq_side.make_topic(url, acks="leader", replicas=1, fsync="os")
        return work(url, job, size)


def _plain(work: Work, size: int, job: Job) -> Measures:
    job.warm(4 * job.count(RATES[size]) * size)
    with pymq_side.cluster(job.folder, plain=True) as url:
        pymq_side.make_topic(url, acks="leader", replicas=1, fsync="os")
        return work(url, job, size)


def _side(name: str, setting: str, work: Work, size: int = 100) -> Side:
    host = name.split(maxsplit=1)[0]
    return Side(name, setting, partial(HOSTS[host], work, size), NEEDS[host])


AOF = "append-only file, fsync each second"
REDIS = f"{AOF}; redis-py, pipelines of 1,000 XADD, XREAD of 1,000"
PACKED = f"{AOF}; hiredis by hand, 2 x 1,000 on their way"
NATS = "file, no fsync; publish_async with 10,000 pending, fetch(1000)"
NATS_FAST = "file, no fsync; publish with one inbox, 10,000 on their way, push consumer"
RABBIT = "stream, no fsync; rstream, send_batch(1000), 20,000 unconfirmed"
RABBIT_SUB = "stream, no fsync; rstream, sub-entries of 1,000"
KAFKA = "no fsync, acks=1; confluent-kafka, linger 5 ms, batches up to 1 MB, consume(1000)"
KAFKA_EACH = f"no fsync, acks=1; linger 0, batch.num.messages=1, max.in.flight={WINDOW}"
MOCK = "librdkafka's mock broker, in memory; acks=-1, linger 5 ms, consume(1000)"
LIMIT = "batches of 1,000, crc32, ZeroMQ and a file, nothing else; 5 on their way"
OURS = 'ack 1, fsync="os"; send_many of 1,000, poll_batches'
OURS_EACH = 'ack 1, fsync="os"; send, poll(1000)'


def _end_to_end(name: str, size: int) -> Part:
    sub = 1000 if size == 100 else 500
    sides = (
        _side("redis", REDIS, _both(redis_side.consume, redis_side.produce), size),
        _side(
            "redis packed",
            PACKED,
            _both(redis_side.consume_packed, redis_side.produce_packed),
            size,
        ),
        _side("nats", NATS, _both(nats_side.consume, nats_side.produce), size),
        _side("nats fast", NATS_FAST, _both(nats_side.consume_fast, nats_side.produce_fast), size),
        _side("rabbitmq", RABBIT, _both(rabbit_side.consume, rabbit_side.produce), size),
        _side(
            "rabbitmq sub-entries",
            RABBIT_SUB,
            _both(rabbit_side.consume, rabbit_side.produce, (sub,)),
            size,
        ),
        _side("kafka", KAFKA, _both(kafka_side.consume, kafka_side.produce), size),
        _side("confluent", MOCK, _both(kafka_side.consume, kafka_side.produce), size),
        _side("limit", LIMIT, _both(limit_side.consume, limit_side.produce), size),
        _side("pymq", OURS, _ours_both(many=True), size),
        Side(
            "pymq tcp",
            f"{OURS}; TCP without ZeroMQ",
            partial(_plain, _ours_both(many=True), size),
            Needs(),
        ),
        _side("pymq each", OURS_EACH, _ours_both(many=False), size),
    )
    ours = At("pymq", "both")
    usual = tuple(At(side, "both") for side in ("redis", "nats", "rabbitmq"))
    goals: tuple[Goal, ...]
    if size == 100:
        goals = (
            Goal(ours, usual, at_least=4, note="usual clients"),
            Goal(ours, (At("redis packed", "both"),), at_least=3),
            Goal(ours, (At("kafka", "both"),), at_least=5),
            Goal(ours, (At("confluent", "both"),), at_least=1.5),
            Goal(ours, (At("limit", "both"),), at_least=0.5),
        )
    else:
        goals = (
            Goal(ours, usual, at_least=2.5, note="usual clients"),
            Goal(ours, (At("limit", "both"),), at_least=0.5),
        )
    return Part(
        name, f"produce and consume {size} B at the same time, one broker, ack 1", sides, goals
    )


def _ours_both(*, many: bool) -> Work:
    def work(url: Any, job: Job, size: int) -> Measures:
        count = job.count(RATES[size])
        reading = (pymq_side.consume, url, count, many)
        return both(count, reading, (pymq_side.produce, url, count, size, many))

    return work


def _put(produce: Any, *more: Any) -> Work:
    def work(address: Any, job: Job, size: int) -> Measures:
        count = job.count(RATES[size])
        return alone("put", count, produce, address, count, size, *more)

    return work


def _get(produce: tuple[Any, ...], consume: tuple[Any, ...]) -> Work:
    """Fill the topic, then measure reading."""

    def work(address: Any, job: Job, size: int) -> Measures:
        count = job.count(RATES[size])
        play((produce[0], address, count, size, *produce[1:]))
        return alone("get", count, consume[0], address, count, *consume[1:])

    return work


def _latency(consume: Any, produce: Any) -> Work:
    def work(address: Any, job: Job, _: int) -> Measures:
        count = job.few(3000)
        consumed, produced = play((consume, address, count), (produce, address, count, PACE_S))
        acked = {f"ack {name}": value for name, value in percentiles(produced.found).items()}
        return percentiles(consumed.found) | acked

    return work


def _each(produce: Any) -> Work:
    def work(address: Any, job: Job, _: int) -> Measures:
        count = job.count(100_000)
        return alone("put", count, produce, address, count, WINDOW)

    return work


PARTS = (
    _end_to_end("N1-end-to-end", 100),
    Part(
        "N2-produce",
        "produce 100 B, one broker, ack 1",
        (
            _side("redis", REDIS, _put(redis_side.produce)),
            _side("nats fast", NATS_FAST, _put(nats_side.produce_fast)),
            _side("rabbitmq", RABBIT, _put(rabbit_side.produce)),
            _side("kafka", KAFKA, _put(kafka_side.produce)),
            _side("confluent", MOCK, _put(kafka_side.produce)),
            _side("limit", LIMIT, _put(limit_side.produce)),
            _side("pymq send_many", OURS, _put(pymq_side.produce, True)),
            _side("pymq send", OURS_EACH, _put(pymq_side.produce, False)),
        ),
        (
            Goal(At("pymq send_many", "put"), (At("kafka", "put"),), at_least=5),
            Goal(At("pymq send", "put"), (At("kafka", "put"),), at_least=2),
            Goal(At("pymq send_many", "put"), (At("confluent", "put"),), at_least=2),
            Goal(At("pymq send", "put"), (At("confluent", "put"),), at_least=1),
        ),
    ),
    Part(
        "N3-consume",
        "consume 100 B, one broker",
        (
            _side("redis", REDIS, _get((redis_side.produce,), (redis_side.consume,))),
            _side(
                "redis packed", PACKED, _get((redis_side.produce,), (redis_side.consume_packed,))
            ),
            _side(
                "nats fast", NATS_FAST, _get((nats_side.produce_fast,), (nats_side.consume_fast,))
            ),
            _side("rabbitmq", RABBIT, _get((rabbit_side.produce,), (rabbit_side.consume,))),
            _side("kafka", KAFKA, _get((kafka_side.produce,), (kafka_side.consume,))),
            _side("confluent", MOCK, _get((kafka_side.produce,), (kafka_side.consume,))),
            _side("limit", LIMIT, _get((limit_side.produce,), (limit_side.consume, 100))),
            _side(
                "pymq poll_batches",
                OURS,
                _get((pymq_side.produce, True), (pymq_side.consume, True)),
            ),
            _side(
                "pymq poll", OURS_EACH, _get((pymq_side.produce, True), (pymq_side.consume, False))
            ),
        ),
        (
            Goal(At("pymq poll_batches", "get"), (At("redis packed", "get"),), at_least=4),
            Goal(At("pymq poll_batches", "get"), (At("kafka", "get"),), at_least=4),
            Goal(At("pymq poll", "get"), (At("redis", "get"),), at_least=2),
        ),
    ),
    _end_to_end("N4-end-to-end-1k", 1024),
    Part(
        "N5-latency",
        "from produce to consume, and the acknowledgement, at 300 records of 100 B a second",
        (
            _side(
                "redis",
                f"{AOF}; XADD, blocking XREAD",
                _latency(redis_side.consume_paced, redis_side.produce_paced),
            ),
            _side(
                "nats",
                "file, no fsync; publish, push consumer",
                _latency(nats_side.consume_paced, nats_side.produce_paced),
            ),
            _side(
                "rabbitmq",
                "stream, no fsync",
                _latency(rabbit_side.consume_paced, rabbit_side.produce_paced),
            ),
            _side(
                "kafka",
                "no fsync, acks=1; confluent-kafka, linger 0, poll",
                _latency(kafka_side.consume_paced, kafka_side.produce_paced),
            ),
            _side(
                "limit",
                "ZeroMQ, crc32 and a file, nothing else",
                _latency(limit_side.consume_paced, limit_side.produce_paced),
            ),
            _side(
                "pymq",
                'ack 1, fsync="os"; send().result(), poll',
                _latency(pymq_side.consume_paced, pymq_side.produce_paced),
            ),
            Side(
                "pymq tcp",
                'ack 1, fsync="os"; TCP without ZeroMQ; send().result(), poll',
                partial(_plain, _latency(pymq_side.consume_paced, pymq_side.produce_paced), 100),
                Needs(),
            ),
        ),
        (
            Goal(At("pymq tcp", "ack p50"), (At("pymq", "ack p50"),), at_most=1),
            Goal(At("pymq", "p50"), (At("nats", "p50"),), at_most=1),
            Goal(At("pymq", "p99"), (At("nats", "p99"),), at_most=1),
            Goal(At("pymq", "p50"), (At("kafka", "p50"),), at_most=1),
            Goal(At("pymq", "p99"), (At("kafka", "p99"),), at_most=1),
        ),
        units={"p50": MS, "p99": MS, "ack p50": MS, "ack p99": MS},
    ),
    Part(
        "N6-requests",
        f"a request for each record of 100 B, {WINDOW:,} on their way",
        (
            _side("kafka", KAFKA_EACH, _each(kafka_side.produce_each)),
            _side(
                "limit", "ZeroMQ, crc32 and a file, nothing else", _each(limit_side.produce_each)
            ),
            _side(
                "pymq",
                f"linger_ms=0, batch_bytes=1, max_in_flight={WINDOW}, idempotent=False",
                _each(pymq_side.produce_each),
            ),
        ),
        (Goal(At("pymq", "put"), (At("limit", "put"),), at_least=0.6),),
    ),
    Part(
        "N7-curve",
        "produce and consume 100 B at the same time, one broker, ack 1, encrypted or not",
        (
            _side("pymq", OURS, _ours_both(many=True)),
            Side(
                "pymq curve",
                f"{OURS}; CURVE, a policy, quotas",
                partial(_curve, _ours_both(many=True), 100),
                NEEDS["pymq"],
            ),
        ),
        (Goal(At("pymq curve", "both"), (At("pymq", "both"),), at_least=0.5),),
    ),
)
