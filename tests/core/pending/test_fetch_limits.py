"""Limits of reads for clients that request many records and read few."""

from __future__ import annotations

from random import Random

import pytest

from pymq.core.message import Fetch
from pymq.core.pending.fetch_limits import (
    BATCH_BYTES,
    LEAST_BYTES,
    LOOKS,
    WAIT_MAX_MS,
    Fetches,
    FetchLimits,
    Loads,
)
from pymq.core.types import NEVER
from pymq.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
LIMITS = FetchLimits()


class Outbox:
    """Connections ``account.number``, and the bytes that each has not taken yet."""

    def __init__(self) -> None:
        self.unsent: dict[str, int] = {}
        self.gone: set[str] = set()
        self.quota: dict[str, int] = {}
        self.looks = 0  # number of looked-up connections

    def loads(self) -> Loads:
        found = Loads()
        for connection, size in self.unsent.items():
            if size:
                found.add(self.owner(connection)[0], connection, size)
        return found

    def owner(self, source: str) -> tuple[str, str]:
        return source.partition(".")[0], source

    def is_there(self, connection: str) -> bool:
        self.looks += 1
        return connection not in self.gone

    def wait_ms(self, account: str) -> int:
        return self.quota.get(account, 0)

    def write_wait_ms(self, account: str) -> int:
        return self.quota.get(account, 0)

    def wrote(self, account: str, size: int) -> None:
        pass


class Bench:
    """A broker's fetches and their answers."""

    def __init__(self, limits: FetchLimits = LIMITS) -> None:
        self.now = 0
        self.outbox = Outbox()
        self.fetches = Fetches(limits, self.outbox)
        self.served: list[tuple[str, int, int]] = []  # served fetches as (connection, id, bytes)

    def ask(self, connection: str, number: int = 0, size: int = 1 << 30) -> int | None:
        most = self.fetches.admit(connection, Fetch(number, "t", "0", 0, size, 0), self.now)
        if most:
            self._serve(connection, number, most)
        return most

    def turn(self, ms: int = 1) -> list[str]:
        """Let time pass; returns the connections whose fetches were served."""
        self.now += ms
        before = len(self.served)
        self.fetches.sent()
        if self.fetches.deadline <= self.now:
            while (found := self.fetches.next(self.now)) is not None:
                self._serve(found[0], found[1].id, found[2])
        return [connection for connection, _, _ in self.served[before:]]

    def _serve(self, connection: str, number: int, size: int) -> None:
        self.served.append((connection, number, size))
        self.outbox.unsent[connection] = self.outbox.unsent.get(connection, 0) + size

    @property
    def unsent(self) -> int:
        return self.outbox.loads().node


def test_an_answer_is_never_larger_than_the_broker_lets_it_be() -> None:
    """A request for more bytes than the limit is not refused, but gets as many as the limit
    allows.
    """
    bench = Bench()
    assert bench.ask("a.1", size=1 << 40) == LIMITS.answer_bytes
    assert bench.ask("b.1", size=1_000) == 1_000
    assert bench.fetches.waiting == 0


def test_who_takes_nothing_holds_his_share_and_no_more() -> None:
    bench = Bench()
    for number in range(4_000):
        bench.ask("a.1", number)
    for _ in range(100):
        bench.turn(5)
    assert bench.unsent <= LIMITS.node_bytes // 4
    assert bench.fetches.waiting == 4_000 - len(bench.served)
    for connection in range(2, 50):
        bench.ask(f"a.{connection}")
    for _ in range(100):
        bench.turn(5)
    assert bench.unsent <= LIMITS.node_bytes // 2, "all connections of one principal"


def test_newcomers_find_room_beside_those_who_take_nothing() -> None:
    """New connections always get a share: each further connection may use half of the free room."""
    bench = Bench()
    for account in range(6):
        for connection in range(20):
            for number in range(10):
                bench.ask(f"{account}.{connection}", number)
    for _ in range(200):
        bench.turn(5)
    assert bench.unsent < LIMITS.node_bytes
    assert (bench.ask("newcomer.1", size=MIB) or 0) >= LEAST_BYTES


def test_what_waits_is_served_as_soon_as_there_is_room() -> None:
    bench = Bench()
    for number in range(10):
        bench.ask("a.1", number)
    waited = bench.fetches.waiting
    assert waited
    while bench.fetches.waiting:
        before = bench.fetches.waiting
        bench.outbox.unsent["a.1"] = 0  # the client took it
        assert set(bench.turn(5)) == {"a.1"}
        assert bench.fetches.waiting < before
    assert [number for _, number, _ in bench.served] == list(range(10)), "in their order"
    bench.turn()
    assert bench.fetches.deadline == NEVER


def test_connections_take_turns() -> None:
    """A client with many fetches does not delay the fetches of other clients."""
    bench = Bench(FetchLimits(node_bytes=64 * MIB, turn_bytes=LEAST_BYTES))
    bench.ask("x.1", size=LEAST_BYTES)  # This request uses up the millisecond's budget.
    for number in range(50):
        bench.ask("a.1", number, LEAST_BYTES)
    for connection in ("a.2", "b.1", "b.2"):
        for number in range(2):
            bench.ask(connection, number, LEAST_BYTES)
    served: list[str] = []
    for _ in range(12):
        served += bench.turn()
        bench.outbox.unsent.clear()
    assert served == ["a.1", "b.1", "a.2", "b.2", "a.1", "b.1", "a.2", "b.2", *["a.1"] * 4]


def test_a_millisecond_has_room_for_others() -> None:
    """The broker serves other requests between reads, within each millisecond."""
    bench = Bench()
    for number in range(100):
        bench.ask("a.1", number, MIB)
        bench.outbox.unsent.clear()
        bench.fetches.sent()
    assert sum(size for _, _, size in bench.served) == LIMITS.turn_bytes
    for _ in range(20):
        before = len(bench.served)
        bench.outbox.unsent.clear()
        bench.turn()
        assert sum(size for _, _, size in bench.served[before:]) <= LIMITS.turn_bytes
    assert bench.fetches.waiting == 0


def test_readers_that_come_back_at_once_leave_room_for_who_waits() -> None:
    """If fast readers send their next requests at once, the waiting fetches are still served in
    each millisecond.
    """
    bench = Bench()
    readers = [f"{number}.1" for number in range(9)]
    asking, got = list(readers), dict.fromkeys(readers, 0)
    for _ in range(90):
        before = len(bench.served)
        for reader in asking:
            bench.ask(reader, size=MIB)
        bench.turn(0)
        asking = [connection for connection, _, _ in bench.served[before:]]
        for reader in asking:
            got[reader] += 1
        bench.outbox.unsent.clear()
        bench.fetches.sent()
        bench.now += 1
    assert min(got.values()) > 60, got


def test_many_that_wait_are_not_looked_at_when_nothing_is_read_any_more() -> None:
    bench = Bench()
    for number in range(1_000):
        bench.ask(f"{number}.1", size=MIB)
    bench.turn()
    bench.outbox.looks = 0
    bench.outbox.unsent.clear()
    assert len(bench.turn()) == 8
    assert bench.outbox.looks < 20


def test_small_fetches_are_counted_by_the_batch_that_each_brings() -> None:
    """A small fetch counts as the batch that it reads: otherwise thousands of fetches for one byte
    would read gigabytes.
    """
    bench = Bench()
    for number in range(4_000):
        bench.ask("a.1", number, 1)
        bench.ask("b.1", number, 1)
    assert len(bench.served) * BATCH_BYTES <= LIMITS.turn_bytes
    for _ in range(3):
        before = len(bench.served)
        bench.outbox.unsent.clear()
        bench.turn()
        assert 0 < (len(bench.served) - before) * BATCH_BYTES <= LIMITS.turn_bytes


def test_nothing_is_read_for_who_is_over_his_quota() -> None:
    bench = Bench()
    bench.outbox.quota["a"] = 700
    assert bench.ask("a.1", size=1_000) == 0
    assert bench.ask("b.1", size=1_000) == 1_000
    assert bench.turn(5) == []
    bench.outbox.quota.clear()
    assert bench.turn(5) == ["a.1"]


def test_what_was_asked_by_who_has_gone_is_not_read() -> None:
    bench = Bench()
    for number in range(10):
        bench.ask("a.1", number)
    bench.outbox.gone.add("a.1")
    bench.outbox.unsent.clear()
    assert bench.turn(5) == []
    assert (bench.fetches.waiting, bench.fetches.deadline) == (0, NEVER)


def test_no_fetch_waits_for_room_for_ever() -> None:
    """A fetch that waits too long for room is answered without records, and the client fetches
    again.
    """
    bench = Bench()
    for number in range(3):
        bench.ask("a.1", number)
    left = bench.fetches.waiting
    assert left
    bench.turn(WAIT_MAX_MS)
    assert [size for _, _, size in bench.served[-left:]] == [0] * left
    assert bench.fetches.waiting == 0


def test_so_many_fetches_wait_and_no_more() -> None:
    bench = Bench(FetchLimits(waiting=5))
    asked = [bench.ask("a.1", number) for number in range(20)]
    assert asked.count(None) == 20 - 5 - len(bench.served)
    assert bench.fetches.waiting == 5
    bench.turn()
    assert bench.ask("b.1"), "another one's"


def test_an_account_has_as_many_waiting_as_it_leaves_for_others() -> None:
    """The limit holds for all connections of an account together.

    Fetches of other accounts are served meanwhile.
    """
    bench = Bench(FetchLimits(waiting=100, waiting_all=1_000))
    asked = [bench.ask(f"greedy.{n % 50}", n) for n in range(2_000)]
    assert bench.fetches.waiting == 500
    assert asked[-1] is None
    bench.ask("x.1", 0, 4 * MIB)
    good = [bench.ask("good.1", n, MIB) for n in range(40)]
    assert 0 in good, "some had to wait"
    assert None not in good
    for _ in range(60):
        bench.outbox.unsent["good.1"] = 0
        bench.turn(5)
    assert sum(connection == "good.1" for connection, _, _ in bench.served) == 40


def test_what_waits_is_bounded_by_node_where_each_connection_is_an_account() -> None:
    bench = Bench(FetchLimits(waiting_all=1_000))
    for number in range(4_000):
        bench.ask(f"{number % 400}.1", number)
    assert 900 < bench.fetches.waiting <= 1_000
    for number in range(400):
        bench.outbox.gone.add(f"{number}.1")
    for _ in range(20):
        bench.turn(5)
    assert (bench.fetches.waiting, bench.fetches._held) == (0, {})


@pytest.mark.parametrize("count", [100, 1_000, 10_000])
def test_a_turn_looks_at_what_it_serves_and_a_few_however_many_wait(count: int) -> None:
    """A turn visits the fetches that it serves and few others, even if no client reads answers."""
    bench = Bench()
    for number in range(count):
        bench.ask(f"{number}.1", size=MIB)
    for _ in range(20):
        bench.turn()
    bench.outbox.looks = 0
    served = sum(len(bench.turn(5)) for _ in range(40))
    assert bench.outbox.looks <= served + 40 * LOOKS
    bench.outbox.unsent.clear()
    assert bench.turn(5), "there is room again"


def test_one_that_can_be_served_is_found_behind_many_that_cannot() -> None:
    bench = Bench()
    for number in range(500):
        bench.outbox.quota[f"{number}"] = 60_000
        bench.ask(f"{number}.1")
    bench.ask("x.1", size=8 * MIB)
    bench.ask("x.1", size=8 * MIB)
    bench.ask("good.1", size=MIB)
    waited = 0
    while "good.1" not in [connection for connection, _, _ in bench.served]:
        bench.turn()
        waited += 1
    assert waited <= 500 // LOOKS + 2
    assert bench.fetches.waiting >= 500


def test_all_that_wait_for_too_long_are_told_although_few_are_looked_at_in_a_turn() -> None:
    bench = Bench()
    for number in range(2_000):
        bench.outbox.quota[f"{number % 40}"] = 60_000
        bench.ask(f"{number % 40}.{number}")
    for _ in range(WAIT_MAX_MS // 1_000):
        bench.turn(1_000)
    for _ in range(100):
        bench.turn(5)
    assert len(bench.served) == 2_000
    assert bench.fetches.deadline == NEVER


@pytest.mark.parametrize("seed", range(30))
def test_whatever_clients_do_memory_is_bounded_and_who_takes_is_served(seed: int) -> None:
    rng = Random(seed)
    limits = FetchLimits(
        answer_bytes=rng.choice((256 * KIB, MIB, 4 * MIB)),
        node_bytes=rng.choice((8 * MIB, 32 * MIB)),
        turn_bytes=rng.choice((MIB, 8 * MIB)),
    )
    bench = Bench(limits)
    stuck = [f"s{n % rng.randint(1, 4)}.{n}" for n in range(rng.randint(1, 8))]
    good = [f"g{n}.{n}" for n in range(3)]
    asked = 0
    for _ in range(2_000):
        who = rng.choice(stuck if rng.random() < 0.8 else good)
        if rng.random() < 0.3:
            asked += 1
            bench.ask(who, asked, rng.choice((1, 100 * KIB, MIB, 1 << 30)))
        for connection in good:
            bench.outbox.unsent[connection] = 0
        bench.turn(rng.choice((0, 1, 5)))
        assert bench.unsent <= limits.node_bytes
        for connection in stuck:
            assert bench.outbox.unsent.get(connection, 0) <= limits.node_bytes // 4
    for _ in range(500):
        for connection in good:
            bench.outbox.unsent[connection] = 0
        bench.turn(5)
    last = {connection: number for connection, number, _ in bench.served if connection in good}
    for connection in stuck:
        bench.outbox.gone.add(connection)
    bench.turn(5)
    assert bench.fetches.waiting == 0, "one who takes what he has asked for was left waiting"
    assert last


def test_limits_that_serve_nobody_are_refused() -> None:
    chosen = FetchLimits.of(1 << 16, 1 << 20)
    assert (chosen.answer_bytes, chosen.node_bytes) == (1 << 16, 1 << 20)
    assert FetchLimits.of(None, None).node_bytes == LIMITS.node_bytes
    for answer, node in ((1, None), (None, 1_000)):
        with pytest.raises(ConfigError):
            FetchLimits.of(answer, node)
