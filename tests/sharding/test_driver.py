"""The driver keeps followers in step, and ends the process, by name of the follower, where they are not."""

import queue
import socket
import threading
from typing import Any

import pytest

from jpaged.core.plan import SchedulerOutput
from jpaged.runtime.multi_process import driver as driving
from jpaged.runtime.multi_process.driver import Driver, digest_of
from jpaged.runtime.multi_process.wire import Channel

PLAN = SchedulerOutput(step=1)


class Rig:
    """A driver with one follower, which is this test; what would end the process is put into `ends` instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_seconds: float) -> None:
        self.ends: queue.Queue[str] = queue.Queue()
        monkeypatch.setattr(driving, "end_process", self.ends.put)
        one, other = socket.socketpair()
        self.driver = Driver([Channel(one)], step_seconds)
        self.follower = Channel(other)

    def heard(self) -> list[Any] | None:
        """The next word of the driver that is no sign of life."""
        while (message := self.follower.receive(10.0)) == ["beat"]:
            pass
        return message


@pytest.fixture
def rig(monkeypatch, request):
    monkeypatch.setattr(Channel, "peer", "here")  # these sockets have no address
    rig = Rig(monkeypatch, getattr(request, "param", 600.0))
    yield rig
    rig.follower.close()
    rig.driver.close()


def test_a_third_plan_waits_for_the_first_one_s_answer(rig):
    assert [rig.driver.send_plan(PLAN) for _ in range(2)] == [1, 2]
    third = threading.Thread(target=rig.driver.send_plan, args=(PLAN,))
    third.start()
    third.join(0.3)
    assert third.is_alive()
    rig.follower.send(["result", 1, digest_of([5])])
    third.join(10.0)
    assert not third.is_alive()
    assert [rig.heard()[1] for _ in range(3)] == [1, 2, 3]


def test_equal_ids_are_no_news_and_other_ids_end_the_job(rig):
    for number in (1, 2):
        assert rig.driver.send_plan(PLAN) == number
    rig.driver.record_result(1, [5, 6])
    rig.follower.send(["result", 1, digest_of([5, 6])])
    rig.follower.send(["result", 2, digest_of([7])])
    rig.driver.send_plan(PLAN)
    assert rig.ends.empty()
    rig.driver.record_result(2, [8])
    assert (
        "process 1 " in (said := rig.ends.get(timeout=10.0)) and "sampled other tokens than process 0 in step 2" in said
    )


@pytest.mark.parametrize("rig", [1.0], indirect=True)
def test_a_step_that_takes_too_long_is_stuck(rig):
    rig.driver.send_plan(PLAN)
    assert "step 1 has taken 1 s in process 1" in rig.ends.get(timeout=10.0)


def test_a_step_that_fails_in_a_follower_ends_the_job(rig):
    rig.follower.send(["failed", "RuntimeError: the device is on fire"])
    assert "failed: RuntimeError: the device is on fire" in rig.ends.get(timeout=10.0)


def test_a_follower_that_exits_ends_the_job(rig):
    rig.follower.close()
    assert "lost process 1 " in rig.ends.get(timeout=10.0)


def test_after_a_failure_here_no_plan_is_accepted(rig, monkeypatch):
    monkeypatch.setattr(driving.atexit, "register", lambda *_: None)
    rig.driver.fail("ValueError: no")
    assert rig.heard() == ["end", "ValueError: no"]
    with pytest.raises(RuntimeError, match=r"has failed \(ValueError: no\); restart all of its processes"):
        rig.driver.send_plan(PLAN)
