"""Reads over many partitions; each turn handles some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Image
from pymq.core.message import Result
from pymq.core.observe.coverage import mark

T = TypeVar("T")


def gradually(
    names: Callable[[Image], Iterable[T]],
    each: Callable[[Image, T], None],
    result: Callable[[Image], Result | Later],
    most: int,
) -> Callable[[Image], Result | Later]:
    """Return a read for :meth:`~pymq.controller.state.transactions.Transactions.read`.

    In each turn the read calls *each* with up to *most* of the *names*, and at the end it calls
    *result*. The names are determined in the first turn, so a partition may already be deleted when
    *each* gets its name. The read begins again if *result* returns ``Later.MORE``.
    """
    rest: Iterator[T] | None = None

    def look(image: Image) -> Result | Later:
        nonlocal rest
        if rest is None:
            rest = iter(tuple(names(image)))
        some = tuple(islice(rest, most))
        for name in some:
            each(image, name)
        if len(some) == most:
            mark("gradual.more")
            return Later.MORE
        rest = None
        return result(image)

    return look
