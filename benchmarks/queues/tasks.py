"""Sends, runs and acknowledges tasks, and measures how many run a second, how soon they start, and
how evenly the workers share them.

A worker runs one task at a time, and then acknowledges the task. Tasks and acknowledgements are on
the disk before they are answered, if a queue can do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.model import MS, At, Goal, Job, Measures, Needs, Part, Side, Stopwatch, Unit
from benchmarks.network import pymq_side as cluster_side
from benchmarks.network import servers
from benchmarks.network.roles import percentiles
from benchmarks.queues.board import checked
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.pymq_side import embedded
from benchmarks.queues.sides.senders import Sender
from benchmarks.queues.workers import SIDES, Crew, processes

CREWS = {"1 worker": 1, "4 workers": 4, "16 workers": 16}
FEW = 4  # workers of Q3 and Q4
SHORT_S, LONG_S = 0.001, 0.02  # lengths of tasks
LONG_TASKS = 200
SPEED_TASKS = 2000  # number of tasks that measure the highest rate of 4 workers
PACED_S = 3.0  # seconds of tasks at half of that rate


class Queue(NamedTuple):
    """A product, with its settings here."""

    name: str
    setting: str
    needs: Needs
    module: str  # its module in ``sides``; empty if it needs no other process
    host: Callable[[Path], AbstractContextManager[str]] | None  # yields the URL of its server
    rate: int  # how many no-ops a worker runs in a second, about
    prefetch: tuple[int, int, int] = (0, 0, 0)  # for no-ops, for 1 ms, for 20 ms
    variant: str = ""


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    with servers.redis(folder, "always") as port:
        yield f"redis://{servers.HOST}:{port}/0"


@contextmanager
def _nats(folder: Path) -> Iterator[str]:
    with servers.nats(folder, is_synced=True) as (port,):
        yield f"nats://{servers.HOST}:{port}"


@contextmanager
def _pymq(folder: Path) -> Iterator[str]:
    import pymq

    with cluster_side.cluster(folder) as url:
        with pymq.open(url) as mq:
            cluster_side.wait_for_brokers(mq, 1)
        yield url


@contextmanager
def _play(queue: Queue, folder: Path, plan: Plan, tasks: int) -> Iterator[tuple[Sender, Crew]]:
    """Start a server, a client and workers, which wait at the gate."""
    folder.mkdir()
    with ExitStack() as stack:
        if queue.host is None:
            yield stack.enter_context(embedded(folder, plan, tasks))
            return
        module = import_module(f"{SIDES}.{queue.module}_side")
        url = stack.enter_context(queue.host(folder))
        sender = stack.enter_context(module.sender(url))
        yield sender, stack.enter_context(processes(queue.module, url, folder, plan, tasks))


def _rates(queue: Queue, work_s: float, job: Job) -> Measures:
    """Send the tasks, then let each number of workers run them; report how many ran a second."""
    found: Measures = {}
    for name, workers in CREWS.items():
        each_s = work_s + 1 / queue.rate
        seconds = job.pick(tiny=1, default=10, long=40) / 10
        count = max(50, int(seconds * min(workers, FEW) / each_s))
        plan = Plan(workers, work_s, queue.prefetch[1 if work_s else 0], queue.variant)
        with _play(queue, job.folder / name.replace(" ", "-"), plan, count) as (sender, crew):
            crew.gather()
            with Stopwatch() as watch:
                sender.burst(range(count))
            found["send"] = watch.rate(count)
            crew.board.open_gate()
            crew.finish(range(count))
            found[name] = crew.board.rate(range(count))
    return found


def _start(queue: Queue, job: Job) -> Measures:
    """Measure the highest rate of 4 workers, then send tasks at half of that rate."""
    speed = job.pick(tiny=100, default=min(SPEED_TASKS, 2 * queue.rate))
    paced_s = job.pick(tiny=1, default=round(PACED_S), long=10)
    most = speed + int(paced_s * FEW / SHORT_S / 2) + 1
    plan = Plan(FEW, SHORT_S, queue.prefetch[1], queue.variant)
    with _play(queue, job.folder / "queue", plan, most) as (sender, crew):
        crew.gather()
        crew.board.open_gate()
        half = speed / crew.seconds(sender, range(speed)) / 2
        tasks = range(speed, min(most, speed + max(50, int(half * paced_s))))
        sender.paced(crew.board, tasks, 1 / half)
        crew.finish(tasks)
        waits = percentiles(crew.board.waits_ns(tasks))
    return {"load": half} | checked({f"start {name}": value for name, value in waits.items()})


def _fairness(queue: Queue, job: Job) -> Measures:
    """Send 200 tasks to 4 waiting workers."""
    warm = range(10 * FEW)
    tasks = range(warm.stop, warm.stop + job.pick(tiny=40, default=LONG_TASKS))
    plan = Plan(FEW, LONG_S, queue.prefetch[2], queue.variant)
    with _play(queue, job.folder / "queue", plan, tasks.stop) as (sender, crew):
        crew.gather()
        crew.board.open_gate()
        crew.seconds(sender, warm)
        ideal_s = len(tasks) * LONG_S / FEW
        seconds = crew.seconds(sender, tasks)
    return {"total": seconds * 1000, "time": seconds / ideal_s}


REDIS = "Redis, append-only file synced always"
HAS_REDIS = ("redis-server",)
QUEUES = (
    Queue(
        "celery",
        f"{REDIS}; acks_late, pool prefork",
        Needs(("celery", "redis"), HAS_REDIS),
        "celery",
        _redis,
        300,
        (32, 4, 1),
        "prefork",
    ),
    Queue(
        "celery solo",
        f"{REDIS}; acks_late, a process of pool solo for each worker",
        Needs(("celery", "redis"), HAS_REDIS),
        "celery",
        _redis,
        300,
        (32, 4, 1),
        "solo",
    ),
    Queue(
        "dramatiq",
        f"{REDIS}; no middleware, a process of one thread for each worker",
        Needs(("dramatiq", "redis"), HAS_REDIS),
        "dramatiq",
        _redis,
        800,
        (32, 4, 1),
    ),
    Queue(
        "rq",
        f"{REDIS}; SimpleWorker, enqueue_many of 1,000",
        Needs(("rq", "redis"), HAS_REDIS),
        "rq",
        _redis,
        100,
    ),
    Queue(
        "taskiq redis",
        f"{REDIS}; RedisStreamBroker; 100 no-ops at a time in a worker",
        Needs(("taskiq_redis",), HAS_REDIS),
        "taskiq",
        _redis,
        600,
        (100, 4, 1),
    ),
    Queue(
        "nats",
        "work queue, file, sync_interval always; fetch, ack_sync of all that was fetched at once",
        Needs(("nats",), ("nats-server",)),
        "nats",
        _nats,
        2000,
        (100, 4, 1),
    ),
    Queue(
        "pymq",
        'one broker, fsync="always"; poll, ack and commit of all that was polled at once',
        Needs(("zmq",)),
        "pymq",
        _pymq,
        30_000,
        variant="commit",
    ),
    Queue(
        "pymq ack",
        'one broker, fsync="always"; poll and ack, which is synced within a second',
        Needs(("zmq",)),
        "pymq",
        _pymq,
        30_000,
    ),
    Queue(
        "pymq taskiq",
        "one broker, synced; PymqBroker, acknowledgements synced within a second; 100 no-ops at "
        "a time in a worker",
        Needs(("zmq", "taskiq")),
        "taskiq",
        _pymq,
        1000,
        (100, 4, 1),
    ),
    Queue(
        "pymq embedded",
        'a folder, fsync="always", a thread for each worker; as pymq',
        Needs(),
        "",
        None,
        30_000,
        variant="commit",
    ),
)


EACH = Queue(
    "pymq each",
    'one broker, fsync="always"; poll, then ack and commit of each task by itself',
    Needs(("zmq",)),
    "pymq",
    _pymq,
    1000,
    variant="commit each",
)


def _sides(run: Callable[[Queue, Job], Measures], *more: Queue) -> tuple[Side, ...]:
    return tuple(
        Side(queue.name, queue.setting, partial(run, queue), queue.needs)
        for queue in (*QUEUES, *more)
    )


def _rate_goals(ours: str, peers: tuple[str, ...], at_least: float) -> tuple[Goal, ...]:
    return tuple(
        Goal(At(ours, crew), tuple(At(peer, crew) for peer in peers), at_least=at_least)
        for crew in CREWS
    )


CELERY = ("celery", "celery solo")
TASKS = Unit("tasks/s")
PARTS = (
    Part(
        "Q1-noop",
        "tasks that do nothing, sent first, then run by 1, 4 and 16 workers",
        _sides(lambda queue, job: _rates(queue, 0.0, job), EACH),
        _rate_goals("pymq", CELERY, 5),
        units=dict.fromkeys(("send", *CREWS), TASKS),
        runs_max=2,
    ),
    Part(
        "Q2-millisecond",
        "tasks that wait for 1 ms, sent first, then run by 1, 4 and 16 workers",
        _sides(lambda queue, job: _rates(queue, SHORT_S, job)),
        units=dict.fromkeys(("send", *CREWS), TASKS),
        runs_max=2,
    ),
    Part(
        "Q3-start",
        f"from send to start of tasks of 1 ms with {FEW} workers, at half of what they can do",
        _sides(_start),
        (Goal(At("pymq", "start p99"), at_most=10),),
        units={"load": TASKS, "start p50": MS, "start p99": MS},
    ),
    Part(
        "Q4-fairness",
        f"{LONG_TASKS} tasks of 20 ms for {FEW} workers that wait; ideal is 1,000 ms",
        _sides(_fairness),
        (
            Goal(At("pymq", "time"), at_most=1.1),
            Goal(At("pymq ack", "time"), at_most=1.1, note="without a commit for each task"),
        ),
        units={"total": MS, "time": Unit("x ideal", more_is_better=False)},
    ),
)
