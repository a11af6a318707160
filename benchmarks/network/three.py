"""Part R: three replicas, ack -1; three servers and their clients on this one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    servers,
    syncobj_side,
)
from benchmarks.network.roles import Actor, alone, both, percentiles, play

COUNT = 200_000
SLOW = 40_000  # records for the slow sides
PACE_S = 1 / 500

Work = Callable[[Any, Job], Measures]


@contextmanager
def _nats(job: Job) -> Iterator[Any]:
    with servers.nats(job.folder, 3) as ports:
        nats_side.make_stream(ports, 3)
        yield ports


@contextmanager
def _rabbit(job: Job) -> Iterator[Any]:
    with servers.rabbit(job.folder, 3) as nodes:
        rabbit_side.make_queue(nodes[0].port)
        yield nodes[0].port


@contextmanager
def _kafka(job: Job) -> Iterator[Any]:
    job.warm(12 * job.count(COUNT) * 100)
    with server.kafka(job.folder, nodes=3) as bootstrap:
        yield server.ready(job, bootstrap, replicas=3, acks=-1)


@contextmanager
def _limit(job: Job, *, is_durable: bool) -> Iterator[Any]:
    ports = limit_side.ports(3)
    follow = partial(limit_side.follower, is_durable=is_durable)
    serve = partial(limit_side.broker, is_durable=is_durable)
    with ExitStack() as stack:
        folder = str(job.folder)
        actors = [stack.enter_context(Actor(follow, folder, port)) for port in ports[1:]]
        actors.append(stack.enter_context(Actor(serve, folder, ports[0], ports[1:])))
        for actor in actors:
            actor.ready()
            actor.go()
        for port in ports:
            stack.callback(limit_side.stop, port)
        yield ports[0]


@contextmanager
def _pymq(job: Job) -> Iterator[Any]:
    job.warm(12 * job.count(COUNT) * 100)
    with pymq_side.cluster(job.folder, 3) as url:
        pymq_side.make_topic(url, acks="raft", replicas=3)
        yield url


def _run(host: Callable[[Job], Any], work: Work, job: Job) -> Measures:
    with host(job) as address:
        return work(address, job)


def _put(usual: int, produce: Any, *more: Any) -> Work:
    def work(address: Any, job: Job) -> Measures:
        count = job.count(usual)
        return alone("put", count, produce, address, count, 100, *more)

    return work


def _read(usual: int, produce: tuple[Any, ...], consume: tuple[Any, ...]) -> Work:
    def work(address: Any, job: Job) -> Measures:
        count = job.count(usual)
        play((produce[0], address, count, 100, *produce[1:]))
        return alone("get", count, consume[0], address, count, *consume[1:])

    return work


def _both(usual: int, produce: tuple[Any, ...], consume: tuple[Any, ...]) -> Work:
    def work(address: Any, job: Job) -> Measures:
        count = job.count(usual)
        reading = (consume[0], address, count, *consume[1:])
        return both(count, reading, (produce[0], address, count, 100, *produce[1:]))

    return work


def _latency(produce: Any) -> Work:
    def work(address: Any, job: Job) -> Measures:
        (done,) = play((produce, address, job.few(3000), PACE_S))
        return percentiles(done.found)

    return work


def _in_one_process(name: str, role: Any, job: Job) -> Measures:
    count = job.count(COUNT)
    job.warm(12 * count * 100)
    return alone(name, count, role, str(job.folder), count, 100)


def _paced_in_one_process(job: Job) -> Measures:
    produce = pymq_side.in_one_process_paced
    (done,) = play((produce, str(job.folder), job.few(3000), PACE_S))
    return percentiles(done.found)


def _syncobj(job: Job) -> Measures:
    mine, *others = [f"127.0.0.1:{port}" for port in servers.free_ports(3)]
    count = job.count(SLOW)
    with ExitStack() as stack:
        for other in others:
            rest = [mine, *(each for each in others if each != other)]
            stack.enter_context(Actor(syncobj_side.follow, other, rest)).abandon()
        (done,) = play((syncobj_side.produce, mine, others, count, 100))
    return {"put": count / done.seconds}


NATS_R3 = "3 nodes, file, no fsync; publish with one inbox, push consumer"
KAFKA_R3 = "3 nodes, no fsync, acks=all; confluent-kafka, linger 5 ms, batches up to 1 MB"
QUORUM = "3 nodes, Raft log, fdatasync; pika, 5,000 confirms on their way"
LIMIT = "batches of 1,000 to a leader and two followers, fdatasync on a majority, nothing else"
OURS_TOGETHER = (
    "3 brokers in the client's process: pymq.open(folder, brokers=3); the same otherwise"
)
OURS_TOGETHER_PACED = (
    "3 brokers in the client's process: pymq.open(folder, brokers=3); fdatasync on a majority"
)
OURS = "3 brokers, acks=raft, fdatasync on a majority; send_many of 1,000"
NEEDS: dict[str, Needs] = {
    "nats": Needs(("nats",), ("nats-server",)),
    "rabbitmq": Needs(("pika",), ("rabbitmq-server", "epmd")),
    "kafka": server.NEEDS,
    "pysyncobj": Needs(("pysyncobj",)),
    "limit": Needs(("zmq",)),
    "pymq": Needs(("zmq",)),
}
HOSTS: dict[str, Callable[[Job], Any]] = {
    "nats": _nats,
    "rabbitmq": _rabbit,
    "kafka": _kafka,
    "limit": partial(_limit, is_durable=True),
    "pymq": _pymq,
}


def _side(name: str, setting: str, work: Work) -> Side:
    host = name.split(maxsplit=1)[0]
    return Side(name, setting, partial(_run, HOSTS[host], work), NEEDS[host])


def _together(what: str, measure: str, role: Any) -> Side:
    run = partial(_in_one_process, measure, role)
    return Side(f"pymq in one process{what}", OURS_TOGETHER, run)


KAFKA = (kafka_side.produce,), (kafka_side.consume,)
NATS_PRODUCE, NATS_CONSUME = nats_side.produce_fast, nats_side.consume_fast
PYMQ_PRODUCE, PYMQ_CONSUME = (pymq_side.produce, True), (pymq_side.consume, True)

PARTS = (
    Part(
        "R1-put-durable",
        "acknowledged records of 100 B, three replicas, one client",
        (
            _side("nats", NATS_R3, _put(SLOW, NATS_PRODUCE)),
            _side("rabbitmq", QUORUM, _put(SLOW, rabbit_side.produce_quorum)),
            _side("kafka", KAFKA_R3, _put(COUNT, kafka_side.produce)),
            Side(
                "pysyncobj",
                "3 nodes, in memory; 100 records a command",
                _syncobj,
                NEEDS["pysyncobj"],
            ),
            _side("limit", LIMIT, _put(COUNT, limit_side.produce)),
            _side("pymq", OURS, _put(COUNT, pymq_side.produce, True)),
            _together("", "put", pymq_side.in_one_process),
        ),
        tuple(
            Goal(At(ours, "put"), (At(peer, "put"),), at_least=ratio)
            for ours in ("pymq", "pymq in one process")
            for peer, ratio in (
                ("rabbitmq", 20),
                ("nats", 8),
                ("kafka", 5),
                ("pysyncobj", 4),
                ("limit", 0.45),
            )
        ),
    ),
    Part(
        "R3-consume",
        "consume 100 B, alone and while it is produced, three replicas",
        (
            _side("nats", NATS_R3, _read(SLOW, (NATS_PRODUCE,), (NATS_CONSUME,))),
            _side("nats both", NATS_R3, _both(SLOW, (NATS_PRODUCE,), (NATS_CONSUME,))),
            _side(
                "rabbitmq",
                QUORUM,
                _read(SLOW, (rabbit_side.produce_quorum,), (rabbit_side.consume_quorum,)),
            ),
            _side("kafka", KAFKA_R3, _read(COUNT, *KAFKA)),
            _side("kafka both", KAFKA_R3, _both(COUNT, *KAFKA)),
            _side("pymq", OURS, _read(COUNT, PYMQ_PRODUCE, PYMQ_CONSUME)),
            _side("pymq both", OURS, _both(COUNT, PYMQ_PRODUCE, PYMQ_CONSUME)),
            _together("", "get", pymq_side.consume_in_one_process),
            _together(" both", "both", pymq_side.both_in_one_process),
        ),
        tuple(
            goal
            for ours in ("pymq", "pymq in one process")
            for goal in (
                Goal(At(ours, "get"), (At("nats", "get"),), at_least=15),
                Goal(At(f"{ours} both", "both"), (At("nats both", "both"),), at_least=10),
            )
        ),
    ),
    Part(
        "R4-latency",
        "acknowledgement at 500 records of 100 B a second, three replicas",
        (
            _side("nats", "3 nodes, file, no fsync; publish", _latency(nats_side.produce_paced)),
            _side(
                "rabbitmq",
                "3 nodes, fdatasync; confirms",
                _latency(rabbit_side.produce_quorum_paced),
            ),
            _side(
                "kafka",
                "3 nodes, no fsync, acks=all; linger 0",
                _latency(kafka_side.produce_paced),
            ),
            _side(
                "limit",
                "a leader and two followers, fdatasync on a majority, nothing else",
                _latency(limit_side.produce_paced),
            ),
            _side(
                "pymq",
                "3 brokers, acks=raft, fdatasync on a majority",
                _latency(pymq_side.produce_paced),
            ),
            Side("pymq in one process", OURS_TOGETHER_PACED, _paced_in_one_process),
        ),
        tuple(
            Goal(At(ours, "p50"), (At(peer, "p50"),), at_most=1)
            for ours in ("pymq", "pymq in one process")
            for peer in ("rabbitmq", "kafka")
        ),
        units={"p50": MS, "p99": MS},
    ),
)
