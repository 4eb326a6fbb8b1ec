"""The process that plans: what it tells the others, and how it notices that one is lost.

Lives here: Driver, end_process.
Promises: at most two steps are on their way; a follower that is gone, silent, stuck or has drawn other ids ends this
process, with a message that names it: a collective that waits for a lost process never returns.
Must not know: how plans are made or run.
"""

import atexit
import os
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any, Never

from jpaged.core.scheduling.plan import SchedulerOutput
from jpaged.runtime.multi_process.plan_message import to_message
from jpaged.runtime.multi_process.wire import Channel, Link

MOST_STEPS_AHEAD = 2
SILENT_SECONDS = 20.0
STEP_SECONDS = 600.0
EXIT_LOST = 70


def digest_of(token_ids: Sequence[int]) -> int:
    """A number that names the ids a step has drawn."""
    return zlib.crc32(",".join(map(str, token_ids)).encode())


def end_process(message: str) -> Never:
    """Say why, and end this process at once: its main thread may wait in a collective that never returns."""
    sys.stderr.write(f"jpaged: {message}\n")
    sys.stderr.flush()
    os._exit(EXIT_LOST)


class _Seat:
    """What is known of one follower."""

    def __init__(self, process_id: int, channel: Channel) -> None:
        self.name = f"process {process_id} ({channel.peer})"
        self.answered = 0
        self.left = threading.Event()
        self.link: Link


class Driver:
    """Tells followers what to run. `step_seconds`: how long a step may take, compilation included."""

    def __init__(self, channels: list[Channel], step_seconds: float = STEP_SECONDS) -> None:
        self._step_seconds = step_seconds
        self._number = 0
        self._sent_at: dict[int, float] = {}
        self._own: dict[int, int] = {}
        self._theirs: dict[int, dict[str, int]] = {}
        self._changed = threading.Condition()
        self._parted: str | None = None
        self._closing = threading.Event()
        self._seats = [_Seat(i + 1, channel) for i, channel in enumerate(channels)]
        for seat, channel in zip(self._seats, channels, strict=True):
            seat.link = Link(channel, lambda message, seat=seat: self._take(seat, message))
        self._watching = threading.Thread(target=self._watch, daemon=True, name="jpaged watch")
        self._watching.start()
        atexit.register(self.close)

    def tell(self, word: str, *values: Any) -> None:
        """Send a word to all followers."""
        for seat in self._seats:
            seat.link.send([word, *values])

    def tell_plan(self, plan: SchedulerOutput) -> int:
        """Have the followers run a plan; returns its number. Waits while they are two steps behind."""
        with self._changed:
            if self._parted is not None:
                raise RuntimeError(f"the processes of this engine have parted ({self._parted}); start them again")
            self._changed.wait_for(lambda: self._number - self._slowest < MOST_STEPS_AHEAD)
            self._number += 1
            self._sent_at[self._number] = time.monotonic()
        self.tell("plan", self._number, to_message(plan))
        return self._number

    def drawn(self, number: int, token_ids: Sequence[int]) -> None:
        """What a step has drawn here; ends the process if it was something else elsewhere."""
        with self._changed:
            self._own[number] = digest_of(token_ids)
            self._compare(number)

    def part(self, reason: str) -> None:
        """A step has failed here, so the processes are no longer in step: followers end, and no plan is taken."""
        with self._changed:
            if self._parted is not None:
                return
            self._parted = reason
        self._closing.set()
        self.tell("end", reason)
        # At its end JAX waits for all processes, and the followers have ended.
        atexit.register(end_process, f"a step failed ({reason}), and the other processes have ended")

    def close(self) -> None:
        """Let the followers go, and wait until they have gone."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._watching.join()
        self.tell("bye")
        for seat in self._seats:
            seat.left.wait(SILENT_SECONDS)
            seat.link.close()

    @property
    def _slowest(self) -> int:
        return min(seat.answered for seat in self._seats)

    def _take(self, seat: _Seat, message: list[Any] | None) -> None:
        """One message of a follower; called by its thread."""
        if message is None:
            seat.left.set()
            if not self._closing.is_set():
                end_process(f"{seat.name} has gone; this engine cannot go on without it. Start all processes again")
            return
        if message[0] == "failed":
            end_process(f"{seat.name} failed: {message[1]}")
        if message[0] == "drawn":
            number, digest = message[1:]
            with self._changed:
                seat.answered = max(seat.answered, number)
                self._theirs.setdefault(number, {})[seat.name] = digest
                self._compare(number)
                for old in [n for n in self._sent_at if n <= self._slowest]:
                    del self._sent_at[old]
                self._changed.notify_all()

    def _compare(self, number: int) -> None:
        own, theirs = self._own.get(number), self._theirs.get(number, {})
        if own is None:
            return
        for name, digest in theirs.items():
            if digest != own:
                end_process(f"{name} drew other tokens in step {number} than process 0; the processes are out of step")
        if len(theirs) == len(self._seats):
            # Steps whose ids nobody fetched, after an abort, go with them.
            self._own = {n: digest for n, digest in self._own.items() if n > number}
            self._theirs = {n: digests for n, digests in self._theirs.items() if n > number}

    def _watch(self) -> None:
        while not self._closing.wait(0.5):
            now = time.monotonic()
            for seat in self._seats:
                if now - seat.link.heard > SILENT_SECONDS:
                    end_process(f"{seat.name} has given no sign of life for {SILENT_SECONDS:.0f} s. Start again")
            with self._changed:
                oldest = min(self._sent_at.items(), default=None)
            if oldest is not None and now - oldest[1] > self._step_seconds:
                behind = ", ".join(seat.name for seat in self._seats if seat.answered < oldest[0])
                end_process(f"step {oldest[0]} has taken {self._step_seconds:.0f} s in {behind}: it is stuck")
