"""Where the engine of a replica runs: in the caller's loop, in a thread, or in a process of its own.

Lives here: the Worker role, its three kinds by name in WORKERS, and Report, what a worker tells.
Promises: each engine is touched by one thread alone; one that dies says so, or is found dead, and tells no more.
Must not know: routing, who waits for what.
"""

import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jpaged.core.engine import Engine
from jpaged.core.requests.request import Request
from jpaged.core.scheduling.plan import SequenceDelta

MakeEngine = Callable[[int], Engine]

# How long a thread or process is given to end, and how long nothing is heard before a process is looked at.
_END_S, _LOOK_S = 30.0, 0.2


class Report(NamedTuple):
    """What a replica has to tell: deltas; or a request that it refused, and why; or why it has failed."""

    replica: int
    deltas: tuple[SequenceDelta, ...] = ()
    refused: str | None = None
    failure: str | None = None
    reason: str = ""


class Worker(Protocol):
    """Runs the engine of one replica."""

    def add(self, request: Request) -> None:
        """Take a request in; if the engine refuses it, a report will say so."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request; the last deltas come in a report."""
        ...

    def reports(self, wait_s: float) -> list[Report]:
        """What there is to tell, oldest first; with nothing to tell and work to do, wait up to `wait_s` seconds."""
        ...

    def stop(self) -> None:
        """End, whatever is unfinished. A second call does nothing."""
        ...


class InTurn:
    """The engine runs a step whenever it is asked for reports."""

    def __init__(self, make_engine: MakeEngine, replica: int) -> None:
        self.engine = make_engine(replica)
        self._replica = replica
        self._told: deque[Report] = deque()

    def add(self, request: Request) -> None:
        """Take a request in."""
        _add(self.engine, self._replica, request, self._told.append)

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._told.append(Report(self._replica, tuple(self.engine.abort(request_id))))

    def reports(self, wait_s: float) -> list[Report]:
        """What one step gave, after what was to be told before; it never waits."""
        try:
            self._told.append(Report(self._replica, tuple(self.engine.step())))
        except Exception as error:
            self._told.append(Report(self._replica, failure=_text(error)))
        told = [report for report in self._told if report != Report(self._replica)]
        self._told.clear()
        return told

    def stop(self) -> None:
        """End every request."""
        self.engine.abort_all()


class _Apart:
    """What the caller has of an engine that `serve` runs elsewhere: an inbox and an outbox."""

    def __init__(self, inbox: Any, outbox: Any, replica: int) -> None:
        self._inbox, self._outbox, self._replica = inbox, outbox, replica
        self._failed = False

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._inbox.put(("add", request))

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._inbox.put(("abort", request_id))

    def reports(self, wait_s: float, is_alive: Callable[[], bool]) -> list[Report]:
        """What has come; one that is found dead without a word has failed."""
        told: list[Report] = []
        try:
            told.append(self._outbox.get(timeout=wait_s) if wait_s else self._outbox.get_nowait())
            while True:
                told.append(self._outbox.get_nowait())
        except queue.Empty:
            if not told and not self._failed and not is_alive():
                told.append(Report(self._replica, failure="it ended without a word"))
        self._failed = self._failed or any(report.failure is not None for report in told)
        return told

    def ask_to_stop(self) -> None:
        """Say that no more is wanted."""
        self._inbox.put(("stop", None))


class InThread:
    """The engine runs in a thread: steps of several replicas overlap as far as their devices release Python's lock."""

    def __init__(self, make_engine: MakeEngine, replica: int) -> None:
        inbox: Any = queue.SimpleQueue[Any]()
        outbox: Any = queue.SimpleQueue[Any]()
        self._apart = _Apart(inbox, outbox, replica)
        self._thread = threading.Thread(
            target=serve, args=(make_engine, replica, inbox, outbox), name=f"replica-{replica}", daemon=True
        )
        self._thread.start()

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._apart.add(request)

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._apart.abort(request_id)

    def reports(self, wait_s: float) -> list[Report]:
        """What has come."""
        return self._apart.reports(wait_s, self._thread.is_alive)

    def stop(self) -> None:
        """End after the step that runs now."""
        self._apart.ask_to_stop()
        self._thread.join(_END_S)


class InProcess:
    """The engine runs in a process of its own, begun afresh (`make_engine` must be importable there): a device each."""

    def __init__(self, make_engine: MakeEngine, replica: int) -> None:
        context = multiprocessing.get_context("spawn")
        inbox, outbox = context.Queue(), context.Queue()
        self._apart = _Apart(inbox, outbox, replica)
        self._process = context.Process(target=serve, args=(make_engine, replica, inbox, outbox), daemon=True)
        self._process.start()

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._apart.add(request)

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._apart.abort(request_id)

    def reports(self, wait_s: float) -> list[Report]:
        """What has come."""
        return self._apart.reports(min(wait_s, _LOOK_S), self._process.is_alive)

    def stop(self) -> None:
        """End after the step that runs now; after a while, at once."""
        if self._process.is_alive():
            self._apart.ask_to_stop()
            self._process.join(_END_S)
            self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int | None:
        """The process's number."""
        return self._process.pid


WORKERS: dict[str, Callable[[MakeEngine, int], Worker]] = {
    "in_turn": InTurn,
    "threads": InThread,
    "processes": InProcess,
}


def serve(make_engine: MakeEngine, replica: int, inbox: Any, outbox: Any) -> None:
    """Run an engine on what comes in, until told to stop or until it fails."""
    try:
        engine = make_engine(replica)
        while True:
            while not inbox.empty() or not engine.has_unfinished:
                what, value = inbox.get()
                if what == "stop":
                    return
                if what == "add":
                    _add(engine, replica, value, outbox.put)
                else:
                    outbox.put(Report(replica, tuple(engine.abort(value))))
            deltas = engine.step()
            if deltas:
                outbox.put(Report(replica, tuple(deltas)))
    except Exception as error:
        outbox.put(Report(replica, failure=_text(error)))


def _add(engine: Engine, replica: int, request: Request, tell: Callable[[Report], None]) -> None:
    try:
        engine.add(request)
    except ValueError as error:
        tell(Report(replica, refused=request.request_id, reason=str(error)))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
