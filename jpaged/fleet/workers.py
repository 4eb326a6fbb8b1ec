"""Where the loop of a replica runs: in the caller's loop, in a thread, or in a process of its own.

Each loop is touched by one thread alone; a replica that dies says so, or is found dead, and reports no more.
"""

import multiprocessing
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from jpaged.core.engine_loop import EngineLoop
from jpaged.core.errors import REFUSALS, EngineFailed
from jpaged.core.requests.request import Request
from jpaged.core.requests.response import CompletionDelta

MakeLoop = Callable[[int], EngineLoop]

# How long a thread or process is given to end, and how long nothing is heard before a process is looked at.
_END_S, _LOOK_S = 30.0, 0.2


class Report(NamedTuple):
    """What a replica reports: deltas; or a request that it refused, and why; or why it has failed."""

    replica: int
    deltas: tuple[CompletionDelta, ...] = ()
    refused: tuple[str, Exception] | None = None
    failure: str | None = None


class Worker(Protocol):
    """Runs the loop of one replica."""

    def add(self, request: Request) -> None:
        """Add a request; if the engine refuses it, a report will say so."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request; the last deltas come in a report."""
        ...

    def reports(self, wait_s: float) -> list[Report]:
        """What is new, oldest first; with nothing new and work to do, wait up to `wait_s` seconds."""
        ...

    def stop(self) -> None:
        """End, whatever is unfinished. A second call does nothing."""
        ...


class InTurn:
    """The loop runs a step whenever it is asked for reports."""

    def __init__(self, make_loop: MakeLoop, replica: int, report: Callable[[Report], None] | None = None) -> None:
        self.loop = make_loop(replica)
        self._replica = replica
        self._reports: list[Report] = []
        self._report = report or self._reports.append

    def add(self, request: Request) -> None:
        """Add a request."""
        try:
            self.loop.add(request)
        except REFUSALS as error:
            self._report(Report(self._replica, refused=(request.request_id, error)))

    def abort(self, request_id: str) -> None:
        """End a request."""
        response = self.loop.abort(request_id)
        if response is not None:
            self._report(Report(self._replica, tuple(response.read())))

    def step(self) -> None:
        """Run a step, and report what it gave."""
        deltas = tuple(delta for response in self.loop.step() for delta in response.read())
        if deltas:
            self._report(Report(self._replica, deltas))

    def reports(self, wait_s: float) -> list[Report]:
        """What one step gave, after what was new before; it never waits."""
        try:
            self.step()
        except Exception as error:
            self._report(_failure(self._replica, error))
        reports = self._reports.copy()
        self._reports.clear()
        return reports

    def stop(self) -> None:
        """End every request."""
        self.loop.engine.abort_all()


class Apart:
    """The loop runs in a process of its own, begun afresh (`make_loop` must be importable there): a device each.

    Or, with process=False, in a thread: steps of several replicas overlap as far as their devices release Python's
    lock.
    """

    def __init__(self, make_loop: MakeLoop, replica: int, *, process: bool) -> None:
        context = multiprocessing.get_context("spawn")
        make_queue: Any = context.Queue if process else queue.SimpleQueue
        make_runner: Any = context.Process if process else threading.Thread
        self._replica, self._failed, self._is_process = replica, False, process
        self._inbox, self._outbox = make_queue(), make_queue()
        self._runner = make_runner(target=serve, args=(make_loop, replica, self._inbox, self._outbox), daemon=True)
        self._runner.start()

    def add(self, request: Request) -> None:
        """Add a request."""
        self._inbox.put(("add", request))

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._inbox.put(("abort", request_id))

    def reports(self, wait_s: float) -> list[Report]:
        """What has come; a replica that is found dead without a word has failed."""
        reports: list[Report] = []
        try:
            reports.append(self._outbox.get(timeout=min(wait_s, _LOOK_S)) if wait_s else self._outbox.get_nowait())
            while True:
                reports.append(self._outbox.get_nowait())
        except queue.Empty:
            if not reports and not self._failed and not self._runner.is_alive():
                reports.append(Report(self._replica, failure="it ended without a word"))
        self._failed = self._failed or any(report.failure is not None for report in reports)
        return reports

    def stop(self) -> None:
        """End after the step that runs now; a process, after a while, at once."""
        if self._runner.is_alive():
            self._inbox.put(("stop", None))
            self._runner.join(_END_S)
        if self._is_process:
            self._runner.terminate()
            self._runner.join()


WORKERS: dict[str, Callable[[MakeLoop, int], Worker]] = {
    "in_turn": InTurn,
    "threads": partial(Apart, process=False),
    "processes": partial(Apart, process=True),
}


def serve(make_loop: MakeLoop, replica: int, inbox: Any, outbox: Any) -> None:
    """Run a loop on what comes in, until told to stop or until it fails. What comes joins the next step."""
    try:
        worker = InTurn(make_loop, replica, outbox.put)
        act = {"add": worker.add, "abort": worker.abort}
        while True:
            while not inbox.empty() or not worker.loop.has_unfinished:
                what, value = inbox.get()
                if what == "stop":
                    return
                act[what](value)
            worker.step()
    except Exception as error:
        outbox.put(_failure(replica, error))


def _failure(replica: int, error: Exception) -> Report:
    cause = error.__cause__ if isinstance(error, EngineFailed) else error
    return Report(replica, failure=f"{type(cause).__name__}: {cause}")
