"""Processes that make public calls: a redrive, a cancellation, a request.

The other applications of a run use the machines of the client. The procedures here consist of many
requests that wait for each other, so the run has to carry out the public calls themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pymq.client.client import Client
from pymq.testing.cluster import Cluster
from pymq.testing.simulation.world import WALL_MS
from pymq.testing.workload.queues.fibers import Fiber, FiberDriver

Work = Callable[[Client], object]


class CallingProcess:
    """A process that makes public calls, one piece of work after the other; it may be killed."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.name = name
        self.host = cluster.add_client(name)
        self.host.on_turn.append(lambda host: self._turned())
        self._driver: FiberDriver | None = None
        self._client: Client | None = None
        self._work = deque[Work]()

    @property
    def is_busy(self) -> bool:
        """Whether some work is not done."""
        return self._driver is not None and self._driver.fiber is not None

    @property
    def incarnation(self) -> int:
        """The number of the process under this name."""
        return self.host.incarnation

    def do(self, work: Work) -> None:
        """Do *work* after the process's current work; starts the process if it is down."""
        if not self.host.is_up:
            self._start()
        self._work.append(work)
        if not self.is_busy:
            assert self._driver is not None
            fiber = self._driver.fiber = Fiber(self._do_all)
            fiber.resume()

    def kill(self, incarnation: int | None = None) -> None:
        """Kill the process, in the middle of its work; only that *incarnation*, if given."""
        if self._driver is None or incarnation not in (None, self.incarnation):
            return
        fiber = self._driver.fiber
        self.host.die()
        self._work.clear()
        if fiber is not None:
            fiber.resume()
        self._driver = self._client = None

    def kill_later(self, delay_us: int) -> None:
        """Kill this incarnation after a while."""
        incarnation = self.incarnation
        self._world.after(delay_us, lambda a, b: self.kill(incarnation))

    def wall_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return WALL_MS + self._world.now // 1000

    def _start(self) -> None:
        host, rng = self.host, self._world.rng("caller", self.name, self.host.incarnation + 1)
        host.start()
        driver = self._driver = FiberDriver(host, self._cluster.knobs.patience_s)
        # A new address for each process, so that it gets no answers to requests of an earlier one.
        self._client = Client(
            driver,
            f"{self.name}.{host.incarnation}",
            list(self._cluster.zkservers),
            self.wall_ms,
            lambda: None,
            rng.randbytes,
        )

    def _do_all(self) -> None:
        assert self._driver is not None
        assert self._client is not None
        driver, client = self._driver, self._client
        try:
            while self._work:
                self._work.popleft()(client)
        finally:
            driver.fiber = None

    def _turned(self) -> None:
        if self._driver is not None:
            self._driver.notice()
