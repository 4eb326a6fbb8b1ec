"""A process that runs what the driver plans, in order, at most two steps at a time.

If the driver is lost, this process ends, and says so.
"""

import atexit
import os
import queue
import sys
import traceback
from collections import abc, deque
from typing import Any, Never, Protocol

import msgspec

from jpaged.config.engine import EngineConfig
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.runtime.multi_process.driver import EXIT_LOST, MOST_STEPS_AHEAD, digest_of, end_process
from jpaged.runtime.multi_process.wire import Channel, Link

_PLAN_SECONDS = 0.05  # without a plan for so long, a step is waited for, though it is the only one


class Runner(Protocol):
    """What a follower runs plans with."""

    def submit(self, plan: SchedulerOutput) -> Any: ...
    def collect(self, step: Any) -> StepResult: ...
    def warm_up(self) -> Any: ...


class Follower:
    """A follower's connection to its driver, and its work."""

    def __init__(self, channel: Channel) -> None:
        self._inbox: queue.Queue[list[Any]] = queue.Queue()
        self._dismissed = False
        self._running: deque[tuple[int, Any]] = deque()
        self._link = Link(channel, self._receive)
        atexit.register(self._leave)

    def agree(self, choose: abc.Callable[[], EngineConfig]) -> EngineConfig:
        """The config that the driver has chosen: what depends on the machine is the same in every process."""
        message = self._inbox.get()
        if message[0] != "config":
            self._link.close()
            raise ValueError("process 0 gave up before the engine was built; see its output")
        return msgspec.convert(message[1], EngineConfig)

    def follow(self, runner: Runner) -> Never:
        """Run what the driver sends until it closes, then end this process, and the job if a step fails here."""
        try:
            self._run(runner)
        except BaseException as error:
            traceback.print_exc()
            self._link.send(["failed", f"{type(error).__name__}: {error}"])
            end_process("a step failed here; the job ends")
        self._link.close()
        sys.exit(0)

    def _run(self, runner: Runner) -> None:
        while True:
            while len(self._running) >= MOST_STEPS_AHEAD:
                self._report(runner)
            try:
                message = self._inbox.get(timeout=_PLAN_SECONDS if self._running else None)
            except queue.Empty:
                self._report(runner)
                continue
            if message[0] == "close":
                return
            if message[0] == "warm_up":
                runner.warm_up()
            elif message[0] == "plan":
                plan = msgspec.convert(message[2], SchedulerOutput)
                self._running.append((message[1], runner.submit(plan)))

    def _report(self, runner: Runner) -> None:
        number, step = self._running.popleft()
        self._link.send(["result", number, digest_of(runner.collect(step).token_ids)])

    def _leave(self) -> None:
        """Called when the process ends. If it ends early it does not wait for the others, which wait for this one."""
        if not self._dismissed:
            self._link.send(["failed", "it ended early; see its output"])
            os._exit(EXIT_LOST)
        self._link.close()

    def _receive(self, message: list[Any] | None) -> None:
        """One message of the driver; called by the thread of the connection."""
        if message is None:
            if not self._dismissed:
                end_process("lost process 0, the driver: this process ends with it; restart all processes")
            return
        if message[0] == "end":
            end_process(f"process 0 failed ({message[1]}); this process ends with it")
        self._dismissed = self._dismissed or message[0] == "close"
        self._inbox.put(message)
