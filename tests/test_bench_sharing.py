"""`jpaged bench host | sharing | prefix`: what they count, and that sharing shows in it."""

import json
from statistics import mean
from typing import Any

import pytest
from click.testing import CliRunner

from jpaged.bench.host import allocator_ops, decode_steps
from jpaged.bench.scripted import ScriptedExecutor
from jpaged.bench.sharing import memory_saved, shared_prefix
from jpaged.bench.workload import shaped
from jpaged.cli.main import main
from tests.engine.tiny import tiny_llm


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["bench", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(("shape", "prompt", "output"), [("alpaca", 19.31, 58.45), ("sharegpt", 161.31, 337.99)])
def test_shaped_requests_have_the_means_of_the_papers_data_sets(shape: str, prompt: float, output: float):
    requests = shaped(shape, 4000, 50272, seed=1)
    # Three standard errors: the deviations are about 13, 57 and 297, 287.
    assert mean(len(r.prompt_token_ids) for r in requests) == pytest.approx(prompt, rel=0.1)
    assert mean(r.output_tokens for r in requests) == pytest.approx(output, rel=0.05)
    assert max(len(r.prompt_token_ids) + r.output_tokens for r in requests) < 2048
    assert requests == shaped(shape, 4000, 50272, seed=1)


def test_scripted_likelihoods_are_a_distribution_and_fall():
    executor = ScriptedExecutor(seed=3)
    for _ in range(100):
        entry = executor._logprobs(12)
        assert list(entry.top_logprobs) == sorted(entry.top_logprobs, reverse=True)
        assert sum(2.718281828**logprob for logprob in entry.top_logprobs) <= 1.0
    assert len(set(entry.top_ids)) == 12


def test_more_samples_share_more_and_beams_share_most():
    parallel = [memory_saved("alpaca", "parallel", width, num_requests=160, num_pages=140) for width in (2, 4)]
    beam = memory_saved("alpaca", "beam", 2, num_requests=160, num_pages=140)
    assert 0.02 < parallel[0]["saved"] < parallel[1]["saved"] < beam["saved"] < 0.5
    assert memory_saved("alpaca", "beam", 2, num_requests=160, num_pages=140) == beam
    assert memory_saved("alpaca", "parallel", 1, num_requests=160, num_pages=140)["saved"] == 0.0


def test_sharing_is_shown_beside_what_the_paper_saw():
    text = run(
        "sharing", "--num-requests", "160", "--num-pages", "140", "--method", "parallel", "--width", "2", "--width", "3"
    )
    assert "alpaca, parallel, 2: " in text
    assert "(paper 6.1%)" in text
    assert text.count("paper") == 1
    document = json.loads(
        run("sharing", "--num-requests", "160", "--num-pages", "140", "--method", "beam", "--width", "2", "--json")
    )
    [found] = document["runs"]
    assert found["paper"] == pytest.approx(0.3756)


def test_host_times_schedule_and_update_for_each_number_of_rows():
    text = run("host", "--rows", "4", "--rows", "8", "--num-steps", "12")
    assert "    4 rows: " in text
    assert "    8 rows: " in text
    assert "million pages allocated or freed per second" in text
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
        (["host", "--rows", "0"], "rows=0: must be at least 1"),
        (["host", "--num-steps", "1"], "num_steps=1: must be at least 2"),
        (["sharing", "--num-requests", "0"], "num_requests=0: must be at least 1"),
        (["sharing", "--num-requests", "9"], "num_requests=9: the pool holds nearly all of them at once"),
        (["sharing", "--width", "11", "--method", "beam"], "beam_width=11: must be between 1 and 10"),
        (["prefix", "--num-prompts", "0"], "num_prompts=0: must be at least 1"),
    ):
        result = CliRunner().invoke(main, ["bench", *args])
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
