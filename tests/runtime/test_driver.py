"""Threads that run the loop: waiting callers, the background thread, and no thread after close."""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pymq.core.message import ListTopics, Message
from pymq.core.ready import Compact
from pymq.core.types import NEVER
from pymq.errors import Closed, PymqError
from pymq.runtime.driver import Driver
from pymq.runtime.loop import Loop
from tests.controller.machines import CountingStore, Done, Scripted


def clock() -> int:
    return time.monotonic_ns() // 1_000_000


def make() -> tuple[Driver, Loop, Scripted]:
    loop, machine = Loop(clock), Scripted()
    loop.add("machine", machine)
    return Driver(loop), loop, machine


def close(driver: Driver) -> None:
    driver.close(lambda loop: None)


def test_leaving_turns_the_loop() -> None:
    """A caller that leaves ``with`` runs the loop itself, without another thread."""
    driver, _, machine = make()
    before = threading.active_count()
    with driver as loop:
        machine.out.send.append(("machine", ListTopics(1)))
        loop.touch("machine")
        assert machine.heard == []
    assert machine.heard == [("machine", ListTopics(1))]
    assert threading.active_count() == before
    close(driver)


def test_the_background_thread_does_what_is_due() -> None:
    """The background thread runs due work soon, and ends when the driver is closed."""
    driver, _, machine = make()
    ticked = threading.Event()
    machine.on_tick = lambda now: ticked.set()
    due = clock() + 30
    with driver as loop:
        machine.deadline = due
        loop.touch("machine")
    driver.arm(due)
    assert ticked.wait(10)
    assert due <= machine.ticks[0] < due + 1_000
    assert "pymq-loop" in {thread.name for thread in threading.enumerate()}
    close(driver)
    assert "pymq-loop" not in {thread.name for thread in threading.enumerate()}


def test_an_idle_thread_sleeps() -> None:
    """A thread with nothing due does not poll."""
    driver, loop, machine = make()
    turns = [0]
    turn = loop.turn

    def counted() -> bool:
        turns[0] += 1
        return turn()

    loop.turn = counted  # type: ignore[method-assign]  # counted, not replaced
    machine.on_tick = lambda now: None
    machine.deadline = clock() + 1
    driver.arm(machine.deadline)
    until = time.monotonic() + 10
    before = -1
    while turns[0] != before:  # wait until the thread sleeps
        assert time.monotonic() < until
        before = turns[0]
        threading.Event().wait(0.05)
    close(driver)


def test_waiting_turns_the_loop() -> None:
    driver, loop, machine = make()
    done = Done()
    machine.on_step = lambda source, message: done.finish()
    machine.out.send.append(("machine", ListTopics(1)))
    loop.touch("machine")
    assert driver.wait(done, timeout=10)
    assert driver.wait(done, timeout=0)
    close(driver)


def test_waiting_for_something_of_another_thread() -> None:
    driver, _, _ = make()
    done, ended = Done(), threading.Event()

    def wait() -> None:
        if driver.wait(done, None):
            ended.set()

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    with driver:
        done.finish()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert ended.is_set()
    close(driver)


def test_a_timeout() -> None:
    driver, _, _ = make()
    for timeout in (0.02, 0, -1):
        started = time.monotonic()
        assert not driver.wait(Done(), timeout)
        assert max(timeout, 0) <= time.monotonic() - started < 5
    close(driver)


def broken() -> tuple[Driver, Scripted]:
    driver, _, machine = make()

    def fail(source: str, message: Message) -> None:
        raise ZeroDivisionError("a bug")

    machine.on_step = fail
    machine.out.send.append(("machine", ListTopics(1)))
    return driver, machine


def test_an_exception_is_told_to_everybody() -> None:
    """The thread that runs the loop gets an exception with its traceback.

    Later callers get an error that names this exception.
    """
    driver, _ = broken()
    with pytest.raises(ZeroDivisionError) as caught, driver as loop:
        loop.touch("machine")
    assert caught.traceback[-1].name == "fail"
    for _ in range(2):
        with pytest.raises(PymqError, match=r"ZeroDivisionError.*a bug") as later, driver:
            pass
        assert isinstance(later.value.__cause__, ZeroDivisionError)
        with pytest.raises(PymqError, match="a bug"):
            driver.wait(Done(), 10)
    close(driver)
    close(driver)


def test_an_exception_in_the_background_wakes_who_waits() -> None:
    driver, machine = broken()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            driver.wait(Done(), None)
        except (PymqError, ZeroDivisionError) as error:
            # ZeroDivisionError if this thread ran the loop
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    machine.on_tick = lambda now: None
    machine.deadline = clock() + 20
    driver.arm(machine.deadline)  # the background thread ticks it, sends its message, and breaks
    thread.join(10)
    assert not thread.is_alive()
    assert "a bug" in str(errors[0])
    close(driver)
    assert "pymq-loop" not in {thread.name for thread in threading.enumerate()}


def test_long_work_that_breaks_does_not_end_the_thread() -> None:
    """A broken background job does not end its thread, which has other jobs, too."""
    loop, broker, store = Loop(clock), Scripted(), CountingStore()

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    store.on_compact = fail
    told = threading.Event()
    broker.on_stored = told.set
    loop.add_broker("broker", broker, store)
    driver = Driver(loop)
    broker.out.jobs = [Compact("t", "0", (), 0)]
    with driver as turned:
        turned.touch("broker")
    assert told.wait(10)
    close(driver)


def test_the_background_thread_does_not_wait_for_the_lock() -> None:
    """The background thread does not wait for the lock, since it has other jobs."""
    loop, store, broker = Loop(clock), CountingStore(), Scripted()
    compacted = threading.Event()
    store.on_compact = compacted.set
    loop.add_broker("broker", broker, store)
    driver = Driver(loop)
    driver.arm(NEVER)
    with driver as held:
        held.jobs.add("broker", [Compact("t", "0", (), 0)])
        driver.arm(clock())
        assert compacted.wait(10)
    close(driver)


def test_an_errand_that_is_left_in_the_middle_of_a_turn_is_done_soon() -> None:
    """An errand that was not finished in a turn is done soon, although the background thread found
    the lock taken.
    """
    driver, _, machine = make()
    driver.arm(NEVER)
    done = threading.Event()
    machine.on_step = lambda source, message: driver.soon(lambda loop: done.set())
    machine.out.send.append(("machine", ListTopics(1)))
    with driver as loop:
        loop.touch("machine")
    assert done.wait(10)
    close(driver)


def test_closing() -> None:
    """Closing sends the last messages, and no message is sent later; closing twice is allowed."""
    driver, _, machine = make()

    def last(loop: Loop) -> None:
        machine.out.send.append(("machine", ListTopics(9)))
        loop.touch("machine")

    driver.close(last)
    driver.close(last)
    assert machine.heard == [("machine", ListTopics(9))]
    with pytest.raises(Closed, match="closed"), driver:
        pass


def test_closing_wakes_who_waits() -> None:
    """Closing wakes waiting threads, whose results will never come."""
    driver, _, _ = make()
    ended = threading.Event()
    waiting = threading.Event()

    class Slow(Done):
        @property
        def is_done(self) -> bool:
            waiting.set()
            return False

        @is_done.setter
        def is_done(self, value: bool) -> None:
            pass

    def wait() -> None:
        try:
            driver.wait(Slow(), 20)
        except Closed:
            ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    close(driver)
    assert ended.wait(5)
    thread.join(25)


def test_many_threads_at_once() -> None:
    """With many threads turning, each piece of work is done once."""
    driver, _, machine = make()
    each, threads = 300, 6
    mine: dict[int, Done] = {}

    def answer(source: str, message: Message) -> None:
        assert isinstance(message, ListTopics)
        mine.pop(message.id).finish()

    machine.on_step = answer

    def ask(me: int) -> None:
        for number in range(each):
            done = Done()
            with driver as loop:
                mine[me * each + number] = done
                machine.out.send.append(("machine", ListTopics(me * each + number)))
                loop.touch("machine")
            assert driver.wait(done, 10)

    workers = [threading.Thread(target=ask, args=(me,)) for me in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(machine.heard) == threads * each
    assert not mine
    close(driver)


def test_one_busy_thread_does_not_keep_others_out() -> None:
    """A thread that needs the loop gets it, even if another thread turns it all the time."""
    driver, _, _ = make()
    stop = threading.Event()

    def turn() -> None:
        while not stop.is_set():
            driver.turn("machine")

    busy = threading.Thread(target=turn)
    busy.start()
    try:
        started = time.monotonic()
        for _ in range(50):
            with driver:
                pass
        assert time.monotonic() - started < 5
    finally:
        stop.set()
        busy.join()
    close(driver)


# --- Ctrl-C ---------------------------------------------------------------------------------------


class Interrupt:
    """Raises KeyboardInterrupt in the driver's code, at the *after*-th point at which Python could
    raise it.

    An interrupt can come at the start of a Python function, and at the return from a C function (as
    of Python 3.11).
    """

    def __init__(self, after: int) -> None:
        self.left = after
        self.came = False
        self._calls: dict[FrameType, bool] = {}  # whether a C call has just returned, by frame

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call" and frame.f_back in self._calls:
            self._calls[frame.f_back] = False  # the call was a Python call
        if not frame.f_code.co_filename.endswith("pymq/runtime/driver.py"):
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            if frame.f_code.co_name != "__exit__":  # an exception in __exit__ cannot be caught
                self.count()
        elif event == "opcode":
            if self._calls.get(frame):
                self.count()
            op = frame.f_code.co_code[frame.f_lasti]
            self._calls[frame] = dis.opname[op].startswith("CALL")
        return self.trace

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.came = True
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> bool:
        sys.settrace(self._before)
        return self.came


def enter(driver: Driver) -> None:
    with driver:
        pass


def wait(driver: Driver) -> None:
    driver.wait(Done(), 0)


@pytest.mark.parametrize("use", [enter, wait, lambda driver: driver.turn("machine")])
def test_ctrl_c_leaves_nothing_taken(use: Callable[[Driver], None]) -> None:
    """After Ctrl-C at any point other threads continue, or raise because the driver has stopped."""
    is_interrupted, after = True, 0
    while is_interrupted:
        after += 1
        driver, loop, _ = make()
        loop.touch("machine")
        with Interrupt(after) as interrupt:
            use(driver)
        is_interrupted = interrupt.came
        assert not driver._queueing

        def go_on(driver: Driver = driver) -> None:
            with contextlib.suppress(PymqError):
                enter(driver)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"the lock was kept after interrupt {after}"
        close(driver)
    assert after > 5
