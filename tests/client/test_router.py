"""What a client asks zkservers and brokers, and when it asks again."""

from __future__ import annotations

import pytest

from pymq.client.router import REFRESH_MS, Call, Router
from pymq.core.message import Answer, DeleteTopic, Message
from pymq.errors import QuotaExceeded, RequestTimeout


class Bench:
    """A router of one zkserver, and what it sends."""

    def __init__(self) -> None:
        self.router = Router("client", ["zk"], lambda: None)

    def call(self, peer: str | None = None, timeout_ms: int = 5_000) -> Call:
        return self.router.call(lambda r: DeleteTopic(r, "t"), 0, timeout_ms, peer)

    def sent(self, now: int) -> list[tuple[str, Message]]:
        self.router.tick(now)
        ready = self.router.ready(now)
        return list(ready.send) if ready is not None else []

    def refuse(self, source: str, wait_ms: int, now: int) -> None:
        self.router.step(source, Answer(1, error=QuotaExceeded("no", retry_ms=wait_ms)), now)


@pytest.mark.parametrize("peer", [None, "broker-0"])
def test_who_is_over_a_quota_asks_again_when_he_was_told(peer: str | None) -> None:
    bench = Bench()
    call = bench.call(peer)
    ((asked, _),) = bench.sent(0)
    bench.refuse(asked, 700, 10)
    assert bench.sent(709) == []
    assert bench.router.deadline == 710
    ((again, _),) = bench.sent(710)
    assert again == asked
    bench.refuse(asked, 0, 720)
    assert bench.sent(720 + REFRESH_MS - 1) == []
    assert len(bench.sent(720 + REFRESH_MS)) == 1
    bench.router.step(asked, Answer(1, True), 800)
    assert (call.is_done, call.error) == (True, None)
    assert not call.is_repeated  # Nobody has carried out what was refused.


def test_who_would_have_to_wait_for_too_long_is_told() -> None:
    bench = Bench()
    call = bench.call()
    bench.sent(0)
    bench.refuse("zk", 6_000, 10)
    assert call.is_done
    assert isinstance(call.error, QuotaExceeded)


def test_who_waits_is_given_up_in_time() -> None:
    bench = Bench()
    call = bench.call(timeout_ms=1_000)
    bench.sent(0)
    bench.refuse("zk", 900, 10)
    bench.sent(910)
    bench.sent(1_000)
    assert isinstance(call.error, RequestTimeout)
