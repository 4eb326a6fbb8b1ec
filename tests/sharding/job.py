"""One engine in several processes on this machine, for tests: each process is this module, run as a program.

A process serves as its options say; what it prints and how it ends is what tests look at.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sharding.emulated import ROOT, emulated_env

SMALL = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 64, "num_pages": 20, "page_size": 4}


class Member:
    """A process of a job, and what it has said so far."""

    def __init__(self, work: str, options: dict[str, Any], devices: int) -> None:
        # Files, not pipes: a pipe that nobody reads would stop the process.
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 - closed with the object
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sharding.job", work, json.dumps(options)],
            env=emulated_env(devices), cwd=ROOT, stdout=self._out, stderr=self._err, text=True,
        )  # fmt: skip

    def ends(self, timeout: float) -> int:
        """The exit code, once the process has ended."""
        return self.process.wait(timeout)

    @property
    def out(self) -> str:
        """What it has printed."""
        return _read(self._out)

    @property
    def err(self) -> str:
        """What it has said on the error stream."""
        return _read(self._err)

    def says(self, text: str, timeout: float) -> None:
        """Wait until it has printed `text`."""
        deadline = time.monotonic() + timeout
        while text not in self.out:
            assert self.process.poll() is None and time.monotonic() < deadline, self.out + self.err
            time.sleep(0.1)


@contextlib.contextmanager
def job(work: str, *of_each: dict[str, Any], devices: int = 2, **options: Any) -> Iterator[list[Member]]:
    """A job of as many processes as `of_each` has options, beside those that all have; killed at the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    shared = {"coordinator": address, "num_processes": len(of_each), "tensor_parallel_size": len(of_each) * devices}
    members = [
        Member(work, shared | options | {"process_id": i} | own, devices) for i, own in enumerate(of_each)
    ]  # fmt: skip
    try:
        yield members
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGCONT)
                member.process.kill()
            member.process.wait()


def _read(file: Any) -> str:
    return Path(f"/proc/self/fd/{file.fileno()}").read_text()


def answer(options: dict[str, Any]) -> None:
    """Print what the workload's requests are answered."""
    from tests.sharding.workload import answers

    print(json.dumps(answers(**options)))


def serve(options: dict[str, Any]) -> None:
    """Answer one prompt over and over, and say so."""
    from jpaged import LLM
    from tests.engine.tiny import GREEDY, token_ids

    settings: dict[str, Any] = SMALL | options
    llm = LLM(**settings)
    for i in range(int(os.environ.get("ROUNDS", "1000000"))):
        print(
            json.dumps({"round": i, "ids": token_ids(llm.generate([[5, 6, 7, 8]], GREEDY, use_tqdm=False))}), flush=True
        )


def load(options: dict[str, Any]) -> None:
    """Load a checkpoint that is larger than the memory this process may take."""
    from tests.sharding.loading import load_in_little_memory

    load_in_little_memory(options)


if __name__ == "__main__":
    {"answer": answer, "serve": serve, "load": load}[sys.argv[1]](json.loads(sys.argv[2]))
