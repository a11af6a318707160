"""Public calls inside a simulated event: the world goes on while they wait."""

from __future__ import annotations

import pytest

import pymq
from pymq.testing import Cluster
from pymq.testing.workload.queues.callers import CallingProcess
from pymq.testing.workload.queues.fibers import Fiber


def test_calls_of_two_processes_wait_at_the_same_time() -> None:
    """Neither call runs the world, so the second one may end first."""
    order = list[str]()

    def pause(name: str, seconds: float, mq: pymq.Client) -> None:
        mq.driver.pause(seconds)
        mq.topics()
        order.append(f"{name} at {cluster.now - began:.1f}")

    with Cluster(brokers=1, seed=3) as cluster:
        began = cluster.now
        slow, fast = CallingProcess(cluster, "slow"), CallingProcess(cluster, "fast")
        slow.do(lambda mq: pause("slow", 2.0, mq))
        fast.do(lambda mq: pause("fast", 1.0, mq))
        assert slow.is_busy
        assert fast.is_busy
        cluster.run(3)
    assert order == ["fast at 1.0", "slow at 2.0"]
    assert not slow.is_busy


def test_a_death_ends_a_call_in_the_middle() -> None:
    """No code after the call runs, clean-up has no effect, and another process may follow."""
    done = list[str]()

    def produce(mq: pymq.Client) -> None:
        with mq.producer(linger_ms=0) as producer:
            done.append("begins")
            producer.send("t", b"x").result()
            done.append("ends")

    with Cluster(brokers=1, seed=3) as cluster:
        cluster.client().create_topic("t")
        caller = CallingProcess(cluster, "caller")
        cluster.cut("caller")
        caller.do(produce)
        cluster.run(1)
        caller.kill()
        assert not caller.is_busy
        cluster.heal()
        cluster.run(1)
        caller.do(produce)
        cluster.run(2)
        assert caller.incarnation == 2
        with cluster.client().consumer("t", mode="reader") as reader:
            assert [record.value for record in reader.until_end()] == [b"x"]
    assert done == ["begins", "begins", "ends"]


def test_the_error_of_a_fiber_reaches_its_event() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    fiber = Fiber(fails)
    with pytest.raises(ZeroDivisionError):
        fiber.resume()
    assert fiber.is_done
    fiber.resume()  # It has ended, and does nothing.


def test_a_run_with_calls_is_the_same_every_time() -> None:
    """The threads of fibers decide nothing."""
    digests = set[str]()
    for _ in range(3):
        with Cluster(brokers=3, seed=9) as cluster:
            cluster.client().create_topic("t")
            callers = [CallingProcess(cluster, f"caller-{n}") for n in range(4)]
            for caller in callers:
                caller.do(lambda mq: mq.producer().send("t", b"x").result(5.0))
            cluster.run(3)
            digests.add(cluster.digest)
    assert len(digests) == 1
