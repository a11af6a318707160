"""Producer ids with older zkservers, and with invalid answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.client.producer_ids import ProducerIdentities
from pymq.core.block.idempotence import NAMED, hashed_id
from pymq.core.message import InitProducer, Message
from pymq.core.metadata.nodes import ProducerIds
from pymq.errors import InternalError, InvalidName, RequestTimeout


def identities(answer: object) -> ProducerIdentities:
    """The identities of a client with keys, whose zkserver always gives the same answer."""

    def ask(make: Callable[[int], Message]) -> object:
        assert isinstance(make(1), InitProducer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ProducerIdentities(ask, lambda count: b"\x05" * count, has_keys=True)


@pytest.mark.parametrize("answer", [0, 7, InvalidName("'' may not be a producer id")])
def test_a_zkserver_of_before_gives_out_no_ids_so_one_is_drawn_by_lot(answer: object) -> None:
    mine = identities(answer)
    drawn = mine.anonymous()
    assert 0 <= drawn < NAMED
    assert mine.grant(drawn) == b""


def test_a_zkserver_of_before_knows_a_name_by_its_hash() -> None:
    assert identities(7).named("loader") == (hashed_id("loader"), 7)


@pytest.mark.parametrize("count", [1, 3])
def test_ids_are_drawn_from_a_block_each_once(count: int) -> None:
    mine = identities(ProducerIds(100, count, 0, b"grant"))
    assert [mine.anonymous() for _ in range(count)] == list(range(100, 100 + count))
    assert mine.grant(100) == b"grant"


@pytest.mark.parametrize(
    "answer",
    [None, True, "x", (), -1, ProducerIds(-1, 5, 0), ProducerIds(5, 0, 0), ProducerIds(5, -2, 0)],
)
def test_an_answer_that_makes_no_sense_is_an_error_that_says_so(answer: object) -> None:
    for call in (identities(answer).anonymous, lambda: identities(answer).named("loader")):
        with pytest.raises(InternalError, match="zkserver"):
            call()


def test_other_errors_are_raised_as_they_are() -> None:
    with pytest.raises(RequestTimeout):
        identities(RequestTimeout("nobody answered")).anonymous()
    with pytest.raises(InvalidName):
        identities(InvalidName("'?' may not be a producer id")).named("?")
