"""A process that runs what the driver plans.

Lives here: Seat (a follower's connection to its driver) and follow, its life.
Promises: the driver's plans, in order, at most two at a time; if the driver is lost, this process ends, and says so.
Must not know: scheduling.
"""

import atexit
import os
import queue
import traceback
from collections import deque
from typing import Any, Protocol

from jpaged.core.scheduling.plan import SchedulerOutput, StepResult
from jpaged.runtime.multi_process.driver import EXIT_LOST, MOST_STEPS_AHEAD, digest_of, end_process
from jpaged.runtime.multi_process.plan_message import from_message
from jpaged.runtime.multi_process.wire import Channel, Link

_PATIENCE = 0.05  # seconds without a plan after which a step is waited for, though it is the only one


class Runner(Protocol):
    """What a follower runs plans with."""

    def submit(self, plan: SchedulerOutput) -> Any: ...
    def collect(self, step: Any) -> StepResult: ...
    def warm_up(self) -> Any: ...


class Seat:
    """A follower's connection to its driver. The process ends when the driver goes without a word."""

    def __init__(self, channel: Channel) -> None:
        self._inbox: queue.Queue[list[Any]] = queue.Queue()
        self._dismissed = False
        self._link = Link(channel, self._take)
        atexit.register(self._leave)

    def receive(self, timeout: float | None = None) -> list[Any]:
        """The next message. Raises queue.Empty."""
        return self._inbox.get(timeout=timeout)

    def send(self, *message: Any) -> None:
        """Send a message to the driver."""
        self._link.send(list(message))

    def close(self) -> None:
        """End the connection: the driver counts this process as gone."""
        self._link.close()

    def _leave(self) -> None:
        """Called when the process ends; before its time, the others must not be waited for: they wait for this one."""
        if not self._dismissed:
            self.send("failed", "it ended before its time; see what it said")
            os._exit(EXIT_LOST)
        self.close()

    def _take(self, message: list[Any] | None) -> None:
        if message is None:
            if not self._dismissed:
                end_process("process 0 has gone; this process follows it. Start all processes again")
            return
        if message[0] == "end":
            end_process(f"process 0 has failed ({message[1]}); this process follows it")
        self._dismissed = self._dismissed or message[0] == "bye"
        self._inbox.put(message)


def follow(runner: Runner, seat: Seat) -> None:
    """Run what the driver says until it lets go. Ends the process, and so the job, if a step fails here."""
    running: deque[tuple[int, Any]] = deque()
    try:
        while True:
            while len(running) >= MOST_STEPS_AHEAD:
                _answer(runner, seat, running)
            try:
                message = seat.receive(_PATIENCE if running else None)
            except queue.Empty:
                _answer(runner, seat, running)
                continue
            if message[0] == "bye":
                break
            if message[0] == "warm_up":
                runner.warm_up()
            elif message[0] == "plan":
                running.append((message[1], runner.submit(from_message(message[2]))))
    except BaseException as error:
        traceback.print_exc()
        seat.send("failed", f"{type(error).__name__}: {error}")
        end_process("a step failed here; the job ends")
    seat.close()


def _answer(runner: Runner, seat: Seat, running: deque[tuple[int, Any]]) -> None:
    number, step = running.popleft()
    seat.send("drawn", number, digest_of(runner.collect(step).token_ids))
