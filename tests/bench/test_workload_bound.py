"""`jpaged bench roofline --dataset-path`: the least that a workload needs, and what part of it a run reached."""

import json

import jax
import pytest
from click.testing import CliRunner

from jpaged.bench import roofline as bench
from jpaged.bench.roofline import Rates
from jpaged.bench.workload_bound import workload_bound, workload_work
from jpaged.cli.main import main
from jpaged.workloads import Workload
from tests.engine.tiny import TINY_LLAMA, tiny_llm

FLAGS = ["--model", TINY_LLAMA, "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "48"]
STEP = ["--batch", "2", "--context", "20", "--prompt-tokens", "24", "--repeats", "3"]


@pytest.fixture(scope="module")
def llm():
    return tiny_llm(num_pages=40, page_size=4)


def requests(*lengths: tuple[int, int]) -> Workload:
    prompts, outputs = zip(*lengths, strict=True)
    return Workload(arrival_ns=(0,) * len(lengths), prompt_tokens=prompts, output_tokens=outputs)


def test_the_work_of_one_request_is_that_of_its_tokens_one_by_one(llm):
    model = llm.config.model
    layers = sum(leaf.size for leaf in jax.tree.leaves(llm.runner.params["layers"]))
    head = model.vocab_size * model.hidden_size
    width = model.num_layers * model.num_heads * model.head_dim
    # A prompt of 5 and 3 outputs: tokens 1 to 7 are computed, the sixth and seventh each in a step of their own.
    work, num_steps = workload_work(llm, requests((5, 3)))
    assert num_steps == 3
    assert work.operations == 2 * layers * 7 + 4 * width * sum(range(1, 8)) + 2 * head * 3
    kv = model.kv_bytes_per_token(4) * (7 + 6 + 7)
    assert work.bytes == pytest.approx(3 * 4 * (layers + head) + kv + 4 * model.vocab_size * 3)


def test_no_schedule_takes_fewer_steps_than_rows_and_lengths_allow(llm):
    assert llm.config.scheduler.max_num_seqs == 8
    assert workload_work(llm, requests(*[(4, 2)] * 8))[1] == 2
    assert workload_work(llm, requests(*[(4, 2)] * 9))[1] == 3
    assert workload_work(llm, requests((4, 2), (4, 10)))[1] == 10


def test_the_bound_is_that_of_the_scarcer_thing_and_a_share_is_of_it(llm):
    load = requests((5, 3), (9, 4))
    work, _ = workload_work(llm, load)
    bound = workload_bound(llm, load, Rates(operations=work.operations / 2, bytes=work.bytes / 5))
    assert (bound["operations_seconds"], bound["bytes_seconds"]) == (pytest.approx(2), pytest.approx(5))
    assert bound["least_seconds"] == pytest.approx(5)
    assert bound["tokens_per_second_at_most"] == pytest.approx(21 / 5)
    assert bound["share"] is None
    shared = workload_bound(llm, load, Rates(work.operations / 2, work.bytes / 5), share_of=2.1)
    assert shared["share"] == pytest.approx(0.5)


def test_the_command_bounds_the_requests_of_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "_MATRIX", 64)
    monkeypatch.setattr(bench, "_STREAM_BYTES", 2**16)
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n5,3\n9,4\n30,9\n")
    file = ["--dataset-path", str(path), "--num-prompts", "2", "--share-of", "10", "--output-json", str(tmp_path / "x")]
    result = CliRunner().invoke(main, ["bench", "roofline", *STEP, *FLAGS, *file])
    assert result.exit_code == 0, result.output
    bound = json.loads((tmp_path / "x").read_text())["workload"]
    assert (bound["num_requests"], bound["total_num_tokens"]) == (2, 21)
    assert bound["share"] == pytest.approx(10 / bound["tokens_per_second_at_most"])
    assert "The workload, 2 requests of 21 tokens, in at least 4 steps:" in result.stdout
    assert result.stdout.splitlines()[-1] == f"  the run reached {bound['share']:.1%} of that"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--share-of", "100"], "give --dataset-path too"),
        (["--dataset-path", "x", "--share-of", "0"], "share_of=0.0: give the total tokens per second of a run"),
        (["--dataset-path", "x", "--share-of", "nan"], "share_of=nan: give the total tokens per second of a run"),
        (["--dataset-path", "/no/such"], "/no/such: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(args: list[str], said: str):
    result = CliRunner().invoke(main, ["bench", "roofline", *FLAGS, *args])
    assert result.exit_code == 2
    assert said in result.stderr and result.stderr.count("\n") == 1
