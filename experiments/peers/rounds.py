"""Engines in turn: each runs the workload while the others stand still.

Every engine is loaded and warm before the first round; a ratio compares runs of the same round.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.peers.environments import Unavailable

READY_SECONDS, RUN_SECONDS = 900, 600
Say = Callable[[str], None]


class Client:
    """An engine in a process of its own, with its own process group, stopped unless it is its turn."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it is read when the process has ended)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.facts = self._reply(READY_SECONDS)
        self._signal(signal.SIGSTOP)

    def ask(self, what: str) -> dict[str, Any]:
        """Let it run `throughput` or `ttft`. Raises Unavailable if it fails."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            return self._reply(RUN_SECONDS)
        except BrokenPipeError as error:
            raise Unavailable(self._last_words()) from error
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it, and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _reply(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("JSON "):
                    return json.loads(line.removeprefix("JSON "))
        finally:
            timer.cancel()
        raise Unavailable(self._last_words())

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return f"ended with {self._process.returncode}: {lines[-1] if lines else 'no word'}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def running(commands: dict[str, list[str]], threads: int, say: Say) -> Iterator[dict[str, Client]]:
    """The clients that start, by name; of the others it is said why not."""
    clients: dict[str, Client] = {}
    try:
        for name, command in commands.items():
            say(f"starting {name}")
            try:
                clients[name] = Client(name, command, threads)
            except Unavailable as error:
                say(f"{name} is left out: {error}")
        yield clients
    finally:
        for client in clients.values():
            client.close()


def measure(clients: dict[str, Client], rounds: int, say: Say) -> list[dict[str, dict[str, Any]]]:
    """Of each round, what each engine did; the first in a round is another each time. Who fails leaves the table."""
    made: list[dict[str, dict[str, Any]]] = []
    for i in range(rounds):
        names = list(clients)
        made.append({})
        for name in names[i % len(names) :] + names[: i % len(names)]:
            try:
                result = clients[name].ask("throughput") | clients[name].ask("ttft")
            except Unavailable as error:
                say(f"{name} is left out: {error}")
                clients.pop(name).close()
                continue
            made[-1][name] = result
            speed, first = result["output_tokens_per_second"], result["ttft_s"]
            say(f"round {i + 1}: {name} {speed:.1f} tokens/s, TTFT {first:.3f} s")
    return made


def ratios(rounds: list[dict[str, dict[str, Any]]], ours: str = "jpaged") -> dict[str, dict[str, Any]]:
    """Of each engine that ran in all rounds: medians, and ours over it in the same round (median, least, most).

    `throughput` above 1 is faster; `ttft` below 1 is sooner.
    """
    table: dict[str, dict[str, Any]] = {}
    for name in rounds[0]:
        own = [taken[name] for taken in rounds if name in taken]
        if len(own) != len(rounds) or any(ours not in taken for taken in rounds):
            continue
        us = [taken[ours] for taken in rounds]
        speed = [a["output_tokens_per_second"] / b["output_tokens_per_second"] for a, b in zip(us, own, strict=True)]
        first = [a["ttft_s"] / b["ttft_s"] for a, b in zip(us, own, strict=True)]
        table[name] = {
            "output_tokens_per_second": statistics.median(run["output_tokens_per_second"] for run in own),
            "ttft_s": statistics.median(run["ttft_s"] for run in own),
            "throughput": (statistics.median(speed), min(speed), max(speed)),
            "ttft": (statistics.median(first), min(first), max(first)),
            "first_ids": own[0]["first_ids"],
            "load_average": max(run["load_average"] for run in own),
        }
    return table


def workload_path() -> Path:
    """The 32 requests of the project's own benchmark."""
    return Path(__file__).parents[1] / "data" / "workload_small.csv"
