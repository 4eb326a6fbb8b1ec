"""Time that passes only when it is told to.

Integer nanoseconds, so that sums are exact and equal times are equal; it never falls.
"""


class VirtualClock:
    """A clock of the simulation (the Clock role of core/engine.py): it starts at `now_ns` and moves when told."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the simulation's start."""
        return self._now_ns

    def now(self) -> float:
        """Seconds since the simulation's start."""
        return self._now_ns / 1e9

    def advance(self, duration_ns: int) -> None:
        """Let `duration_ns` nanoseconds pass. Raises ValueError if that is less than none."""
        if duration_ns < 0:
            raise ValueError(f"duration_ns={duration_ns}: a clock never falls; give 0 or more")
        self._now_ns += duration_ns

    def restart(self) -> None:
        """Begin again at 0, for a run after some preparation. Whoever keeps earlier times is to forget them."""
        self._now_ns = 0

    def advance_to(self, time_ns: int) -> None:
        """Let time pass until `time_ns`; none passes if it is that late already."""
        self._now_ns = max(self._now_ns, time_ns)
