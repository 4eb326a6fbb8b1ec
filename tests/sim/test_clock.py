"""The virtual clock: exact, and never back."""

import pytest

from jpaged.sim.clock import VirtualClock


def test_time_passes_only_when_told_and_in_whole_nanoseconds():
    clock = VirtualClock()
    assert clock.now() == 0.0
    for _ in range(1000):
        clock.advance(1_000_001)
    assert clock.now_ns == 1_000_001_000
    assert clock.now() == pytest.approx(1.000001, abs=0)


def test_the_clock_never_falls():
    clock = VirtualClock(500)
    clock.advance_to(400)
    assert clock.now_ns == 500
    clock.advance_to(700)
    clock.advance(0)
    assert clock.now_ns == 700
    with pytest.raises(ValueError, match="duration_ns=-1: a clock never falls"):
        clock.advance(-1)
    with pytest.raises(AttributeError):
        clock.now_ns = 3  # pyright: ignore[reportAttributeAccessIssue]
