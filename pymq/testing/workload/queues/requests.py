"""Requests: a client gets the reply to its own request, or none in time, and errors are true.

Processes answer requests of one service, leave it or die, while others ask. A responder reverses
the text of a request, or fails on it, depending on the request's number. The end of a run asks
until a reply comes, then closes all responders, and the next request must fail at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from pymq.client.client import Client
from pymq.client.rpc.mailbox import Request
from pymq.client.rpc.requester import Requester
from pymq.client.rpc.responder import Responder
from pymq.core.values import define
from pymq.errors import (
    NoResponders,
    PymqError,
    RequestFailed,
    RequestTimeout,
)
from pymq.testing.cluster import Cluster
from pymq.testing.faults.kinds import Step
from pymq.testing.simulation import probe
from pymq.testing.simulation.world import SECOND, WALL_MS
from pymq.testing.workload.consuming import number_of, value_of
from pymq.testing.workload.queues.callers import CallingProcess

SERVICE = "reverse"
SESSION_S = 2.0  # of responders
SIZE = 20  # bytes of a request
SLACK_MS = 1  # two clocks of whole milliseconds
ROUND_S = 0.2  # how long a responder waits for requests at a time
LAST_S = 5.0  # how long the last request waits for its reply, again and again
PROMPT_US = 2 * SECOND  # within which a request without a responder fails once faults have ended
Fail = Callable[[str, str], None]


@define
class SentRequest:
    """A request of a run, and what happened to it."""

    number: int
    earliest_ms: int  # bounds of its deadline, by the wall clock
    latest_ms: int
    replies: int = 0  # replies that its client accepted


class SimulatedService:
    """The responders of a run, by the processes that they run in."""

    def __init__(self, cluster: Cluster, fail: Fail) -> None:
        self._cluster = cluster
        self._fail = fail
        self.requests: list[SentRequest] = []
        # Handlers fail on purpose, so do not log that.
        logging.getLogger("pymq").addHandler(logging.NullHandler())

    @property
    def now_ms(self) -> int:
        """The wall clock of clients."""
        return WALL_MS + self._cluster.world.now // 1000

    # --- responders -----------------------------------------------------------------------------

    def serve(self, caller: CallingProcess, until: int, *, is_clean: bool, mq: Client) -> None:
        """Answer requests until a time, then leave the service, or let the process die."""
        world = self._cluster.world
        while world.now < until:
            try:
                responder = Responder(
                    mq, SERVICE, self._answer, 1, {"session_timeout_s": SESSION_S}
                )
                break
            except PymqError:
                mq.driver.pause(ROUND_S)
        else:
            return
        while world.now < until:
            try:
                responder.serve(min(ROUND_S, (until - world.now) / SECOND))
            except PymqError:
                mq.driver.pause(ROUND_S / 4)
        if not is_clean:
            incarnation = caller.incarnation
            world.after(0, lambda a, b: caller.kill(incarnation))
            return
        try:
            responder.close()
        except PymqError:
            pass  # Its session ends later.

    def _answer(self, request: Request) -> bytes:
        number = number_of(request.value)
        if number is None or number >= len(self.requests):
            self._soon("no-invention", f"a responder got {request.value!r}")
            return b""
        sent, deadline = self.requests[number], request.deadline_ms
        if deadline is None or not sent.earliest_ms <= deadline <= sent.latest_ms:
            self._soon("deadline-is-carried", f"{sent} came with the deadline {deadline}")
        elif self.now_ms > deadline + SLACK_MS:
            self._soon("deadline-is-carried", f"{sent} came at {self.now_ms}, too late")
        if _fails(number):
            raise ValueError(str(number))
        return request.value[::-1]

    def _soon(self, rule: str, what: str) -> None:
        """Report a broken rule from a handler, which itself must not raise the violation."""
        self._cluster.world.after(0, lambda a, b: self._fail(rule, what))

    def present(self) -> set[tuple[str, str]]:
        """The members of the service's group that a coordinator has: (broker, member)."""
        return {
            (host.name, member)
            for host in self._cluster.brokers.values()
            if host.broker is not None
            for member in probe.members(host.broker, SERVICE) or ()
            if probe.is_member(host.broker, SERVICE, member, host.clock())
        }

    def is_deserted(self) -> bool:
        """Whether the service's coordinator knows for certain that there is no responder."""
        return bool(self._settled()) and not self.present()

    def _settled(self) -> set[str]:
        """The brokers that have coordinated the service's group so long that all members joined."""
        return {
            host.name
            for host in self._cluster.brokers.values()
            if host.broker is not None and probe.has_settled(host.broker, SERVICE, host.clock())
        }

    # --- requests -------------------------------------------------------------------------------

    def ask(self, count: int, timeout_ms: int, mq: Client) -> None:
        """Send some requests at once, and wait for their replies."""
        requester, open_ = probe.requester(mq), []
        before = self.present()
        for _ in range(count):
            sent = SentRequest(len(self.requests), self.now_ms + timeout_ms - SLACK_MS, 1 << 62)
            self.requests.append(sent)
            value = value_of(sent.number, SIZE)
            try:
                asked = requester.submit(SERVICE, value, None, None, timeout_ms / 1000)
            except PymqError as error:
                self._judge(error, before)
                continue
            sent.latest_ms = self.now_ms + timeout_ms + SLACK_MS
            probe.count_replies(asked[1], partial(self._accepted, sent))
            open_.append((sent, asked))
        for sent, (id, pending, until) in open_:
            self._wait(requester, sent, partial(requester.wait, SERVICE, id, pending, until))

    def _accepted(self, sent: SentRequest, _: object) -> None:
        sent.replies += 1
        if sent.replies > 1:
            self._soon("one-reply-is-accepted", f"{sent}")

    def _wait(self, requester: Requester, sent: SentRequest, wait: Callable[[], object]) -> None:
        before = self.present()
        value = value_of(sent.number, SIZE)
        try:
            reply = wait()
        except RequestFailed as error:
            if not _fails(sent.number) or f"ValueError: {sent.number}" not in str(error):
                self._fail("reply-of-its-request", f"{sent} has failed: {error}")
        except PymqError as error:
            self._judge(error, before)
        else:
            found = getattr(reply, "value", None)
            if _fails(sent.number) or found != value[::-1]:
                self._fail("reply-of-its-request", f"{sent} was answered with {found!r}")

    def _judge(self, error: PymqError, before: set[tuple[str, str]]) -> None:
        """Check NoResponders: no responder may have been a member during the whole request.

        A replaced coordinator that does not know its successor may have other members.
        """
        if not isinstance(error, NoResponders):
            return
        settled = self._settled()
        steady = sorted(each for each in before & self.present() if settled <= {each[0]})
        if steady:
            self._fail("no-responders-is-true", f"{error}, and {steady} were there")

    # --- the end of a run -------------------------------------------------------------------------

    def ask_until_answered(self, is_done: Callable[[], None], mq: Client) -> None:
        """Ask until a reply comes."""
        while True:
            number = len(self.requests)
            self.ask(1, round(LAST_S * 1000), mq)
            if self.requests[number].replies:
                return is_done()
            mq.driver.pause(ROUND_S)

    def ask_nobody(self, is_done: Callable[[], None], mq: Client) -> None:
        """Ask without a responder: that must fail at once."""
        began = self._cluster.world.now
        try:
            mq.request(SERVICE, value_of(len(self.requests), SIZE), timeout=LAST_S)
        except NoResponders:
            if self._cluster.world.now - began > PROMPT_US:
                self._fail("no-responders-at-once", "not within two seconds")
        except RequestTimeout as error:
            self._fail("no-responders-at-once", f"instead: {error}")
        is_done()


def _fails(number: int) -> bool:
    """Whether responders fail on a request."""
    return number % 5 == 4


def serve_of(step: Step, now: int) -> tuple[int, bool]:
    """When a responder of a plan stops, and whether it leaves the service before."""
    _, _, _, lasts_us, end = step
    return now + int(lasts_us), end == "close"
