"""Looking at very many partitions, some in each turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pymq.controller.state.image import Image
from pymq.controller.state.transactions import Later
from pymq.core.message import Result
from pymq.core.observe.coverage import mark

T = TypeVar("T")


def gradually(
    names: Callable[[Image], Iterable[T]],
    each: Callable[[Image, T], None],
    result: Callable[[Image], Result | Later],
    most: int,
) -> Callable[[Image], Result | Later]:
    """What to read (:meth:`~pymq.controller.state.transactions.Transactions.read`): *each* of
    *names*, then *result*.

    *names* are those of the first turn; *each* is given *most* of them in a turn, and some may be
    gone by then. It begins anew if *result* says ``Later.MORE``.
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
