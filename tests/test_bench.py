"""`jpaged bench`: the fields of vLLM's results, the lengths that were asked for, and files that are not as hoped."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jpaged import LLM
from jpaged.bench import measure
from jpaged.cli.main import main
from tests.engine.tiny import TINY_LLAMA, tiny_llm

FLAGS = ["--model", TINY_LLAMA, "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "48"]
SHORT = ["--input-len", "6", "--output-len", "4"]
THROUGHPUT = {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"}
LATENCY = {"avg_latency", "latencies", "percentiles"}
SETUP = {"model", "dtype", "page_size", "attention_implementation", "device", "jax", "config_digest"}


@pytest.fixture(scope="module")
def llm() -> LLM:
    """An engine whose end-of-sequence id is easily sampled, so that stopping at it would show."""
    return tiny_llm(num_pages=40, page_size=4)


def run(*args: str) -> Any:
    result = CliRunner().invoke(main, ["bench", *args, *FLAGS])
    assert result.exit_code == 0, result.output
    return result


def mistake(*args: str) -> str:
    result = CliRunner().invoke(main, ["bench", *args, *FLAGS])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_throughput_has_the_fields_of_vllm_and_they_agree(tmp_path: Path):
    path = tmp_path / "result.json"
    result = run("throughput", *SHORT, "--num-prompts", "5", "--json", "--output-json", str(path))
    found = json.loads(result.stdout)
    assert json.loads(path.read_text()) == found
    assert set(found) >= THROUGHPUT | SETUP
    assert found["num_requests"] == 5
    assert (found["num_prompt_tokens"], found["num_output_tokens"], found["total_num_tokens"]) == (30, 20, 50)
    assert found["requests_per_second"] == pytest.approx(5 / found["elapsed_time"])
    assert found["tokens_per_second"] == pytest.approx(50 / found["elapsed_time"])
    assert found["output_tokens_per_second"] == pytest.approx(20 / found["elapsed_time"])
    assert found["peak_memory_bytes"]["host"] > 2**20
    assert result.stderr == ""


def test_throughput_runs_the_lengths_of_a_file(tmp_path: Path):
    path = tmp_path / "lengths.csv"
    path.write_text("\ufeffoutput_tokens,prompt_tokens\r\n3,5\r\n\r\n 4 ,7\r\n100000,1\r\n", "utf-8")
    found = json.loads(run("throughput", "--dataset-path", str(path), "--num-prompts", "2", "--json").stdout)
    assert (found["num_requests"], found["num_prompt_tokens"], found["num_output_tokens"]) == (2, 12, 7)
    # The third request, which was not asked for, does not fit.
    assert "request 2: 1 prompt and 100000 output tokens" in mistake("throughput", "--dataset-path", str(path))
    path.write_text("prompt_tokens,output_tokens\n4,4\n")
    assert "has 1 requests; ask for fewer" in mistake("throughput", "--dataset-path", str(path), "--num-prompts", "9")


def test_latency_has_the_fields_of_vllm_and_they_agree(tmp_path: Path):
    path = tmp_path / "result.json"
    flags = ["--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "5", "--output-json", str(path)]
    text = run("latency", *SHORT, *flags).stdout
    found = json.loads(path.read_text())
    assert set(found) >= LATENCY | SETUP
    assert len(found["latencies"]) == 5
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 5)
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert found["percentiles"]["50"] == pytest.approx(sorted(found["latencies"])[2])
    assert text.startswith(f"Avg latency: {found['avg_latency']:.4f} seconds\n10% percentile latency: ")


def test_results_for_people_say_what_was_measured():
    text = run("throughput", *SHORT, "--num-prompts", "2", "--n", "2", "--temperature", "1").stdout
    assert text.startswith("Throughput: ")
    assert "2 requests, 12 prompt and 16 output tokens" in text


def test_a_bad_file_is_refused_by_its_line(tmp_path: Path):
    path = tmp_path / "lengths.csv"
    path.write_bytes(b"prompt_tokens,output_tokens\n\n\n1,0\n")
    said = f"{path}, line 4: output_tokens=0: must be an integer in [1, "
    assert said in mistake("throughput", "--dataset-path", str(path))
    assert "/no/such: No such file or directory" in mistake("throughput", "--dataset-path", "/no/such")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["throughput", "--num-prompts", "0"], "'--num-prompts': 0 is not in the range x>=1"),
        (["throughput", "--num-warmups", "-1"], "'--num-warmups': -1 is not in the range x>=0"),
        (["throughput", "--input-len", "0"], "'--input-len': 0 is not in the range x>=1"),
        (["throughput", "--input-len", "40", "--output-len", "9"], "request 0: 40 prompt and 9"),
        (["throughput", *SHORT, "--n", "2"], "n=2 with temperature=0.0"),
        (["throughput", *SHORT, "--output-json", "/no/such/folder/x.json"], "--output-json /no/such/folder/x.json"),
        (["throughput", *SHORT, "--output-json", "/tmp"], "--output-json /tmp: no file can be written there"),
        (["latency", "--batch-size", "0"], "'--batch-size': 0 is not in the range x>=1"),
        (["latency", "--num-iters", "0"], "'--num-iters': 0 is not in the range x>=1"),
        (["latency", "--num-iters-warmup", "-1"], "'--num-iters-warmup': -1 is not in the range x>=0"),
        (["latency", *SHORT, "--page-size", "0"], "page_size=0"),
        (["latency", "--dataset-path", "x"], "No such option '--dataset-path'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(args: list[str], said: str):
    assert said in mistake(*args)


def test_prompts_are_the_same_each_time_and_share_no_first_token():
    first, again = (measure.fixed_requests(3, 8, 2) for _ in range(2))
    prompts = [first.token_ids(i, 97) for i in range(3)]
    assert prompts == [again.token_ids(i, 97) for i in range(3)]
    assert len({prompt[0] for prompt in prompts}) == 3
    assert all(0 <= token < 97 for prompt in prompts for token in prompt)


def test_sequences_run_to_their_full_length_and_nothing_compiles_while_the_clock_runs(llm: LLM):
    requests = measure.fixed_requests(6, 9, 20)
    first = measure.throughput(llm, requests)
    assert first["num_output_tokens"] == 120
    second = measure.throughput(llm, requests, num_warmups=0)
    assert second["compile_seconds"] == first["compile_seconds"]
    assert second["num_steps"] == first["num_steps"]
    assert llm.stats()["pages_free"] == llm.stats()["pages_total"]


def test_a_request_beyond_the_model_is_refused_not_cut_short(llm: LLM):
    requests = measure.fixed_requests(2, 9, 60)
    before = llm.stats()["num_steps"]
    with pytest.raises(ValueError, match="request 0: 9 prompt and 60 output tokens are more than max_model_len=64"):
        measure.throughput(llm, requests)
    with pytest.raises(ValueError, match="request 0: "):
        measure.latency(llm, requests, num_iters_warmup=0, num_iters=1)
    assert llm.stats()["num_steps"] == before
