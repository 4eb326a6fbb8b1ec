"""Two processes with two devices each are one engine: the same tokens, a clear end when one is lost, clear refusals.

The processes talk over Gloo; everything is on this machine.
"""

import json
import signal

import pytest

from jpaged.runtime.multi_process.driver import EXIT_LOST, SILENT_SECONDS
from tests.sharding.job import job

pytestmark = pytest.mark.slow
BOTH = ({}, {})
START = 150  # seconds for two processes to start and to compile, on a machine that has other work too


def test_two_processes_of_two_devices_give_the_tokens_of_one_device(checkpoints, of_one_device):
    with job("answer", *BOTH, model=str(checkpoints["llama"]), modes=["swap"]) as (driver, follower):
        assert driver.ends(240) == 0, driver.err
        assert follower.ends(START) == 0, follower.err
        assert follower.out == "", "a follower says nothing: the driver answers"
        assert json.loads(driver.out.splitlines()[-1])["ids"] == of_one_device("llama")[:1]


def test_a_lost_follower_ends_the_job_within_30_seconds_and_a_restart_serves_again(checkpoints, monkeypatch):
    model = str(checkpoints["llama"])
    with job("serve", *BOTH, model=model) as (driver, follower):
        driver.says('"round": 2', START)
        follower.process.kill()
        # The promise is 30 s: a closed connection is noticed at once, silence after SILENT_SECONDS.
        assert driver.ends(START) == EXIT_LOST
        assert SILENT_SECONDS < 30
        assert "jpaged: lost process 1 (127.0.0.1)" in driver.err
        before = json.loads(driver.out.splitlines()[0])
    monkeypatch.setenv("ROUNDS", "1")
    with job("serve", *BOTH, model=model) as (driver, follower):
        assert driver.ends(START) == 0 and follower.ends(START) == 0, driver.err + follower.err
        assert json.loads(driver.out) == before


def test_a_follower_that_stands_still_and_one_whose_driver_is_lost_are_noticed(checkpoints):
    with job("serve", *BOTH, model=str(checkpoints["llama"])) as (driver, follower):
        driver.says('"round": 1', START)
        follower.process.send_signal(signal.SIGSTOP)
        assert driver.ends(START) == EXIT_LOST
        assert "process 1 (127.0.0.1) has been silent for 20 s" in driver.err
        follower.process.send_signal(signal.SIGCONT)
        assert follower.ends(START) == EXIT_LOST
        assert "lost process 0, the driver: this process ends with it" in follower.err


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            {"num_processes": 4},
            "process 1 has num_processes 4 and process 0 has 2; start all processes with the same",
        ),
        ({"max_num_seqs": 4}, "process 1 has config digest "),
        ({"dtype": "bfloat16"}, "start all processes with the same versions, the same model and the same options"),
    ],
)
def test_processes_that_do_not_fit_together_are_refused_at_the_start(checkpoints, own, said):
    with job("serve", {}, own, model=str(checkpoints["llama"])) as members:
        for member in members:
            assert member.ends(START) not in (0, EXIT_LOST)
            assert "ValueError: " in member.err and said in member.err, member.err
            assert member.out == ""


def test_sizes_that_the_processes_cannot_share_are_refused(checkpoints):
    with job("serve", *BOTH, model=str(checkpoints["llama"]), tensor_parallel_size=2) as members:
        for member in members:
            assert member.ends(START) != 0
        assert "the processes have 4 devices together, and all of them are used; use tensor_parallel_size=4" in (
            members[0].err + members[1].err
        )
