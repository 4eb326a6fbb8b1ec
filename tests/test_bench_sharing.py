"""`jpaged bench host | prefix`: what they count, and that sharing shows in it."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from jpaged.bench.host import allocator_ops, decode_steps
from jpaged.bench.measure import shared_prefix
from jpaged.cli.main import main
from tests.engine.tiny import tiny_llm


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["bench", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_host_times_schedule_and_update_for_each_number_of_rows():
    text = run("host", "--rows", "4", "--rows", "8", "--num-steps", "12")
    assert "    4 rows: " in text
    assert "    8 rows: " in text
    assert "million pages taken or freed per second" in text
    document: dict[str, Any] = json.loads(run("host", "--rows", "4", "--num-steps", "12", "--json"))
    [steps] = document["steps"]
    assert 0 < steps["schedule_ms"] < steps["total_ms"]
    assert document["allocator_ops_per_second"] > 0


@pytest.mark.slow
def test_the_host_core_takes_milliseconds_for_256_sequences_not_tens_of_them():
    assert decode_steps(256, 60)["total_ms"] < 20
    assert allocator_ops(1000, 3) > 100_000


def test_a_shared_prefix_takes_fewer_pages_and_gives_the_same_tokens():
    sizes: dict[str, Any] = {
        "prefix_tokens": 30, "num_requests": 4, "own_tokens": (3, 8), "output_tokens": (4, 9)
    }  # fmt: skip
    shared, separate = (
        shared_prefix(tiny_llm(num_pages=80, page_size=4, enable_prefix_caching=shares), pinned=shares, **sizes)
        for shares in (True, False)
    )
    assert shared["token_ids"] == separate["token_ids"]
    assert shared["prefix_tokens_held"] == 28
    assert shared["prefix_hit_tokens"] == 4 * 28
    assert shared["pages_used_peak"] < separate["pages_used_peak"]
    assert shared["num_tokens_computed"] == separate["num_tokens_computed"] - 4 * 28
    assert separate["pages_saved_peak"] == 0


def test_mistakes_of_these_benchmarks_are_one_line():
    for args, message in (
        (["host", "--rows", "0"], "'--rows': 0 is not in the range x>=1"),
        (["host", "--num-steps", "1"], "num_steps=1: must be at least 2"),
        (["prefix", "--num-prompts", "0"], "'--num-prompts': 0 is not in the range x>=1"),
    ):
        result = CliRunner().invoke(main, ["bench", *args])
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
