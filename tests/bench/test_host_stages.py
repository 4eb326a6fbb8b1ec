"""`jpaged bench host --stages`: the stages of a real step, which add up to no more than the step."""

import json
import sys
import time

import pytest
from click.testing import CliRunner

from jpaged.bench.host_stages import STAGES, host_stages
from jpaged.cli.main import main


@pytest.fixture(scope="module")
def runs():
    """Of 1 and 16 rows, by a clock that ticks at every call of a function: it tells work, whatever the machine does."""
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "thread_time", lambda: 1e-6 * calls)
        sys.setprofile(count)
        try:
            return host_stages((1, 16), num_steps=16)
        finally:
            sys.setprofile(None)


def test_every_stage_of_a_step_takes_time_and_together_at_most_the_step(runs):
    assert [run["rows"] for run in runs] == [1, 16]
    for run in runs:
        assert list(run["stages_ms"]) == list(STAGES)
        assert all(ms > 0 for ms in run["stages_ms"].values())
        assert sum(run["stages_ms"].values()) <= run["host_ms"] * (1 + 1e-9)
        # What is between the stages is little.
        assert sum(run["stages_ms"].values()) > 0.6 * run["host_ms"]


def test_more_rows_take_the_host_longer_where_it_looks_at_each(runs):
    one, many = (run["stages_ms"] for run in runs)
    for name in ("schedule", "update", "detokenise"):
        assert many[name] > one[name]


def test_a_target_stands_beside_the_rows_that_have_one(runs):
    assert [run["target_ms"] for run in runs] == [None, 1.5]


def test_the_table_has_a_line_for_each_number_of_rows_and_what_a_row_adds():
    args = ["bench", "host", "--stages", "--rows", "2", "--rows", "16", "--num-steps", "8"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    header, two, sixteen, growth = result.stdout.splitlines()[-4:]
    assert header.split() == ["rows", *STAGES, "step", "target"]
    assert two.split()[0] == "2" and len(two.split()) == 2 + len(STAGES)
    assert sixteen.split()[0] == "16" and sixteen.endswith("< 1.5")
    assert growth.endswith("us for each row from 2 to 16")


def test_the_stages_are_part_of_the_document():
    args = ["bench", "host", "--stages", "--rows", "2", "--num-steps", "4", "--json"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["stages"]
    assert run["rows"] == 2 and set(run) == {"rows", "stages_ms", "host_ms", "wall_ms", "target_ms"}


def test_steps_beyond_the_table_are_refused():
    with pytest.raises(ValueError, match="num_steps=5000: sequences would have 5044 of 2048 tokens; ask for fewer"):
        host_stages((1,), num_steps=5000)
