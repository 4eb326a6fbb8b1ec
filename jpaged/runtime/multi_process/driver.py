"""The process that plans: what it sends to the others, and how it notices that one is lost.

At most two steps are under way. A follower that has exited, is silent or stuck or has sampled other ids ends this
process with a message that names it: a collective that waits for a lost process never returns.
"""

import atexit
import os
import sys
import threading
import time
import zlib
from collections import abc
from typing import Any, Never

from jpaged.config.engine import EngineConfig
from jpaged.core.plan import SchedulerOutput
from jpaged.runtime.multi_process.wire import Channel, Link

MOST_STEPS_AHEAD = 2
SILENT_SECONDS = 20.0
STEP_SECONDS = 600.0
EXIT_LOST = 70


def digest_of(token_ids: abc.Sequence[int]) -> int:
    """A number that stands for the ids that a step has sampled."""
    return zlib.crc32(",".join(map(str, token_ids)).encode())


def end_process(message: str) -> Never:
    """Say why, and end this process at once: its main thread may wait in a collective that never returns."""
    sys.stderr.write(f"jpaged: {message}\n")
    sys.stderr.flush()
    os._exit(EXIT_LOST)


class _Follower:
    """What is known of one follower; `last_step` is the newest whose ids it has reported."""

    def __init__(self, process_id: int, channel: Channel, on_message: abc.Callable[..., None]) -> None:
        self.name = f"process {process_id} ({channel.peer})"
        self.last_step = 0
        self.left = threading.Event()
        self.link = Link(channel, lambda message: on_message(self, message))


class Driver:
    """Sends followers what to run. `step_seconds`: how long a step may take, compilation included."""

    def __init__(self, channels: list[Channel], step_seconds: float = STEP_SECONDS) -> None:
        self._step_seconds = step_seconds
        self._number = 0
        self._sent_at: dict[int, float] = {}
        self._digests: dict[int, int] = {}
        self._digests_of_followers: dict[int, dict[str, int]] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._closing = threading.Event()
        self._followers = [_Follower(i, channel, self._receive) for i, channel in enumerate(channels, 1)]
        self._watching = threading.Thread(target=self._watch, daemon=True, name="jpaged watch")
        self._watching.start()
        atexit.register(self.close)

    def agree(self, choose: abc.Callable[[], EngineConfig]) -> EngineConfig:
        """The config that `choose` gives, sent to every follower."""
        config = choose()
        self.send("config", config)
        return config

    def send(self, kind: str, *values: Any) -> None:
        """Send a message to all followers."""
        for follower in self._followers:
            follower.link.send([kind, *values])

    def send_plan(self, plan: SchedulerOutput) -> int:
        """Have the followers run a plan; returns its number. Waits while they are two steps behind."""
        with self._changed:
            if self._failure is not None:
                raise RuntimeError(f"a step of this engine has failed ({self._failure}); restart all of its processes")
            self._changed.wait_for(lambda: self._number - self._slowest < MOST_STEPS_AHEAD)
            self._number += 1
            self._sent_at[self._number] = time.monotonic()
        self.send("plan", self._number, plan)
        return self._number

    def record_result(self, number: int, token_ids: abc.Sequence[int]) -> None:
        """Note the ids that a step has sampled here; ends the process if a follower has sampled others."""
        with self._changed:
            self._digests[number] = digest_of(token_ids)
            self._compare(number)

    def fail(self, reason: str) -> None:
        """A step has failed here, so the processes are out of step: followers end, and no more plans are accepted."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = reason
        self._closing.set()
        self.send("end", reason)
        # At its end JAX waits for all processes, and the followers have ended.
        atexit.register(end_process, f"a step failed ({reason}), and the other processes have ended")

    def close(self) -> None:
        """Tell the followers to end, and wait until they have."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._watching.join()
        self.send("close")
        for follower in self._followers:
            follower.left.wait(SILENT_SECONDS)
            follower.link.close()

    @property
    def _slowest(self) -> int:
        return min(follower.last_step for follower in self._followers)

    def _receive(self, follower: _Follower, message: list[Any] | None) -> None:
        """One message of a follower; called by its thread."""
        if message is None:
            follower.left.set()
            if not self._closing.is_set():
                end_process(f"lost {follower.name}: this engine cannot go on without it; restart all processes")
            return
        if message[0] == "failed":
            end_process(f"{follower.name} failed: {message[1]}")
        if message[0] == "result":
            number, digest = message[1:]
            with self._changed:
                follower.last_step = max(follower.last_step, number)
                self._digests_of_followers.setdefault(number, {})[follower.name] = digest
                self._compare(number)
                for old in [n for n in self._sent_at if n <= self._slowest]:
                    del self._sent_at[old]
                self._changed.notify_all()

    def _compare(self, number: int) -> None:
        own, theirs = self._digests.get(number), self._digests_of_followers.get(number, {})
        if own is None:
            return
        for name, digest in theirs.items():
            if digest != own:
                end_process(f"{name} sampled other tokens than process 0 in step {number}: they are out of step")
        if len(theirs) == len(self._followers):
            # Steps whose ids nobody fetched, after an abort, go with them.
            self._digests = {n: found for n, found in self._digests.items() if n > number}
            self._digests_of_followers = {n: found for n, found in self._digests_of_followers.items() if n > number}

    def _watch(self) -> None:
        while not self._closing.wait(0.5):
            now = time.monotonic()
            for follower in self._followers:
                if now - follower.link.heard > SILENT_SECONDS:
                    end_process(f"{follower.name} has been silent for {SILENT_SECONDS:.0f} s; restart all processes")
            with self._changed:
                oldest = min(self._sent_at.items(), default=None)
            if oldest is not None and now - oldest[1] > self._step_seconds:
                behind = ", ".join(follower.name for follower in self._followers if follower.last_step < oldest[0])
                end_process(f"step {oldest[0]} has taken {self._step_seconds:.0f} s in {behind}: it is stuck")
