"""The requests of a session that ZooKeeper has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.coord.zookeeper.session import Reply, ZookeeperLink, ZookeeperRequest

__all__ = ["OnReply", "PendingRequests"]

OnReply = Callable[[Any, Exception | None], None]  # (result, error); one of them is None


class PendingRequests:
    """Numbers requests, sends them over *link*, and passes each answer to its callback."""

    def __init__(self, link: ZookeeperLink) -> None:
        self.session = ""  # the session in which requests are sent; empty before the first one
        self._link = link
        self._waiting: dict[int, OnReply] = {}  # by request number
        self._numbers = 0

    def send(self, request: ZookeeperRequest, on_reply: OnReply) -> None:
        """Send *request* and call *on_reply* with its answer."""
        self._numbers += 1
        self._waiting[self._numbers] = on_reply
        self._link.send(self._numbers, request, self.session)

    def answered(self, reply: Reply) -> None:
        """Pass an answer to the callback of its request."""
        on_reply = self._waiting.pop(reply.number, None)
        if on_reply is not None:
            on_reply(reply.result, reply.error)
