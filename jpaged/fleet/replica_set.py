"""Replicas of one engine behind a router.

Each request's deltas come once and in order, whichever replica runs it and however often one fails; none is lost
without a word.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from jpaged.config.engine import require_choice
from jpaged.core.errors import REFUSALS, RequestRefused
from jpaged.core.requests.request import Request
from jpaged.core.requests.response import CompletionDelta
from jpaged.fleet.router import Router
from jpaged.fleet.workers import WORKERS, MakeLoop, Report, Worker

_WAIT_S = 0.05


@dataclass(slots=True)
class Answer:
    """The ids and text of each sequence by index, and why it ended. `error`: why nothing came, or not all."""

    token_ids: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    texts: dict[int, str] = field(default_factory=dict[int, str])
    finish_reasons: dict[int, str] = field(default_factory=dict[int, str])
    error: str | None = None


class _Client:
    """What has been handed on of a request, and what its present run has given: a run after a failure begins again."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.given: Counter[int] = Counter()
        self.run: Counter[int] = Counter()
        self.ended: set[int] = set()

    def news(self, delta: CompletionDelta) -> CompletionDelta | None:
        """The delta, or what is new of it; None if all of it was handed on before the failure."""
        index = delta.index
        if index in self.ended:
            return None
        self.run[index] += len(delta.token_ids)
        if self.run[index] > self.given[index]:
            self.given[index] = self.run[index]
        elif delta.token_ids or self.run[index] < self.given[index]:
            delta = delta._replace(text="", token_ids=(), logprobs=None)
        if delta.finish_reason is not None:
            self.ended.add(index)
        return delta if delta.token_ids or delta.finish_reason is not None else None


class ReplicaSet:
    """As many engines as the router has replicas, each in the loop that `make_loop(number)` makes.

    `workers`: "in_turn" runs a step of each in the caller's loop, "threads" and "processes" run them beside it.
    A replica that fails is taken out and its requests are run again elsewhere; what is sampled depends on nothing but
    seed and position, so they come out the same, and what was handed on before is not handed on again. `refused` has
    the engines' errors by request id, `failed` says why a request could not be run to its end. Close it at the end, or
    use it as a context. Raises ValueError.
    """

    def __init__(self, make_loop: MakeLoop, router: Router, *, workers: str = "in_turn") -> None:
        require_choice("workers", workers, tuple(WORKERS))
        self.router = router
        self.refused: dict[str, Exception] = {}
        self.failed: dict[str, str] = {}
        self.failures: dict[int, str] = {}
        self._make_worker = partial(WORKERS[workers], make_loop)
        self._workers: list[Worker | None] = [self._make_worker(i) for i in range(len(router.loads))]
        self._clients: dict[str, _Client] = {}

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work."""
        return bool(self._clients)

    def add(self, request: Request) -> int:
        """Send a request to a replica and return its number. Raises QueueFull if none takes requests."""
        if request.request_id in self._clients:
            raise RequestRefused(f"request_id={request.request_id!r}: a request with this id is still running")
        number = self._send(request)
        self._clients[request.request_id] = _Client(request)
        self.refused.pop(request.request_id, None)
        self.failed.pop(request.request_id, None)
        return number

    def abort(self, request_id: str) -> None:
        """End a request; `poll` gives its last deltas. An unknown or finished id is no error."""
        number = self.router.replica_of(request_id)
        worker = None if number is None else self._workers[number]
        if worker is not None:
            worker.abort(request_id)

    def poll(self, wait_s: float = _WAIT_S) -> list[CompletionDelta]:
        """What is new: of each replica in turn, which may wait up to `wait_s` seconds for it."""
        deltas: list[CompletionDelta] = []
        for number, worker in enumerate(self._workers):
            if worker is not None:
                wait = wait_s if self.router.loads[number].requests else 0.0
                for report in worker.reports(wait):
                    deltas += self._receive(report)
        return deltas

    def run(self, requests: Iterable[Request]) -> dict[str, Answer]:
        """Run requests to their end, all given at once; the answers by request id, in the order of the requests."""
        answers: dict[str, Answer] = {}
        for request in requests:
            self.add(request)
            indices = range(request.width)
            answers[request.request_id] = Answer({i: [] for i in indices}, dict.fromkeys(indices, ""))
        while self.has_unfinished:
            for delta in self.poll():
                answer = answers.get(delta.request_id)
                if answer is None:
                    continue
                answer.token_ids[delta.index] += delta.token_ids
                answer.texts[delta.index] += delta.text
                if delta.finish_reason is not None:
                    answer.finish_reasons[delta.index] = delta.finish_reason
        for name, answer in answers.items():
            error = self.refused.get(name) or self.failed.get(name)
            answer.error = None if error is None else str(error)
        return answers

    def drain(self, replica: int) -> None:
        """Give a replica no more requests; it finishes those that it has."""
        self.router.drain(replica)

    def fail(self, replica: int, reason: str = "taken out") -> None:
        """Take a replica out; what it had is run again elsewhere, or reported in `failed` where nobody is left."""
        worker, self._workers[replica] = self._workers[replica], None
        self.failures[replica] = reason
        lost = self.router.fail(replica)
        for request in lost:
            client = self._clients[request.request_id]
            client.run.clear()
            try:
                self._send(request)
            except REFUSALS as error:
                self.failed[request.request_id] = f"replica {replica} failed ({reason}) and {error}"
                del self._clients[request.request_id]
        if worker is not None:
            worker.stop()

    def restart(self, replica: int) -> None:
        """Make a replica anew, after a failure or a drain, and let it take requests."""
        if self.router.loads[replica].requests:
            raise ValueError(f"replica={replica}: it still runs requests; drain it and wait, or fail it first")
        worker, self._workers[replica] = self._workers[replica], None
        if worker is not None:
            worker.stop()
        self._workers[replica] = self._make_worker(replica)
        self.failures.pop(replica, None)
        self.router.restore(replica)

    def close(self) -> None:
        """Stop every replica, whatever is unfinished."""
        for number, worker in enumerate(self._workers):
            self._workers[number] = None
            if worker is not None:
                worker.stop()

    def __enter__(self) -> "ReplicaSet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, request: Request) -> int:
        number = self.router.route(request)
        worker = self._workers[number]
        assert worker is not None, "a replica that is down takes no requests"
        worker.add(request)
        return number

    def _receive(self, report: Report) -> list[CompletionDelta]:
        if self._workers[report.replica] is None:
            return []  # what it says after it was taken out is of no use
        if report.failure is not None:
            self.fail(report.replica, report.failure)
            return []
        if report.refused is not None:
            name, error = report.refused
            self.refused[name] = error
            self._forget(name)
            return []
        news: list[CompletionDelta] = []
        for delta in report.deltas:
            client = self._clients.get(delta.request_id)
            new = None if client is None else client.news(delta)
            if client is not None and new is not None:
                news.append(new)
                if len(client.ended) == client.request.width:
                    self._forget(delta.request_id)
        return news

    def _forget(self, request_id: str) -> None:
        del self._clients[request_id]
        self.router.finished(request_id)
