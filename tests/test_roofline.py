"""`jpaged bench roofline`: what a step has to do, and shares that follow from it."""

import json
from types import SimpleNamespace

import jax
import pytest
from click.testing import CliRunner

from jpaged.bench import roofline as bench
from jpaged.bench.roofline import Rates, StepParts, Work, roofline
from jpaged.cli.main import main
from tests.engine.tiny import TINY_LLAMA, tiny_llm

FLAGS = ["--model", TINY_LLAMA, "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "48"]
STEP = ["--batch", "3", "--context", "20", "--prompt-tokens", "24", "--repeats", "3"]


@pytest.fixture(scope="module")
def llm():
    return tiny_llm(num_pages=40, page_size=4)


def test_the_least_time_is_that_of_the_scarcer_thing():
    rates = Rates(operations=100.0, bytes=10.0)
    assert rates.least_seconds(Work(operations=300, bytes=10)) == 3.0
    assert rates.least_seconds(Work(operations=300, bytes=50)) == 5.0


def test_what_a_step_has_to_do_leaves_padding_out(llm):
    model = llm.config.model
    weights = sum(leaf.size for leaf in jax.tree.leaves(llm.runner.params["layers"]))
    width = model.num_layers * model.num_heads * model.head_dim
    works = StepParts(llm, [20] * 3, [1] * 3).works()
    assert works["layers"] == Work(2 * weights * 3, 4 * weights)
    assert works["attention"] == Work(4 * width * 60, 60 * model.kv_bytes_per_token(4))
    assert works["head"].operations == 2 * model.vocab_size * model.hidden_size * 3
    # Of 24 new tokens the first sees itself, the last all of them.
    assert StepParts(llm, [24], [24]).works()["attention"].operations == 4 * width * 24 * 25 // 2
    assert StepParts(llm, [24], [4]).works()["attention"].operations == 4 * width * (21 + 22 + 23 + 24)


def test_shares_are_the_least_time_over_the_time_taken(llm):
    parts = StepParts(llm, [20] * 3, [1] * 3)
    rates = Rates(operations=1e9, bytes=1e9)
    seconds = {"layers": 2.0, "attention": 0.0, "head": 1.0, "sampling": 1.0, "whole": 4.0}
    report = parts.report(rates, seconds)
    least = rates.least_seconds(parts.works()["layers"])
    assert report["layers"]["share_of_bound"] == pytest.approx(least / 2.0)
    assert report["layers"]["least_ms"] == pytest.approx(1e3 * least)
    assert report["attention"]["share_of_bound"] is None
    assert report["whole"]["least_ms"] == pytest.approx(
        sum(report[name]["least_ms"] for name in ("layers", "attention", "head", "sampling"))
    )


def test_the_command_reports_every_part_of_both_steps(monkeypatch):
    monkeypatch.setattr(bench, "_MATRIX", 64)
    monkeypatch.setattr(bench, "_STREAM_BYTES", 2**16)
    result = CliRunner().invoke(main, ["bench", "roofline", *STEP, *FLAGS, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["rates"]) == {"float32", "bfloat16"}
    for step in ("decode", "prefill"):
        assert list(found[step]) == ["layers", "products", "attention", "head", "sampling", "whole"]
        parts = sum(found[step][name]["ms"] for name in ("layers", "attention", "head", "sampling"))
        assert found[step]["whole"]["ms"] == pytest.approx(parts), "products are part of the layers"


def test_the_products_are_every_linear_map_of_a_layer_for_every_row_of_the_step(llm):
    parts = StepParts(llm, [20] * 3, [1] * 3)
    layers = llm.runner.params["layers"]
    kernels = [leaf for path, leaf in jax.tree.leaves_with_path(layers) if path[-1].key == "kernel"]
    counted = jax.jit(parts._products).lower(layers).compile().cost_analysis()["flops"]
    rows = parts.shape.num_tokens
    products = 2 * rows * sum(kernel[0].size for kernel in kernels)
    outputs = rows * sum(kernel[0].size // kernel.shape[-1] for kernel in kernels)
    # XLA counts the body of a loop once; what is not a product is the maximum, and a few operations on the inputs.
    assert products < counted < products + 4 * outputs


def test_a_step_that_the_engine_never_runs_is_refused(llm):
    with pytest.raises(ValueError, match="batch=9: this engine's steps have 1 to 8; change it, or the engine's limits"):
        roofline(llm, batch=9, context=20, prompt_tokens=20)
    with pytest.raises(ValueError, match="prompt_tokens=65"):
        roofline(llm, batch=2, context=20, prompt_tokens=65)


def test_a_model_in_several_parts_is_refused(monkeypatch, llm):
    monkeypatch.setattr(llm.runner, "mesh", SimpleNamespace(shards=2))
    with pytest.raises(ValueError, match="tensor_parallel_size=2: the roofline is of one device; leave it at 1"):
        roofline(llm, batch=2, context=20, prompt_tokens=20)
