"""The names, keywords and defaults that scripts rely on, and what importing them costs."""

import dataclasses
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jpaged
from jpaged import LLM, BeamSearchParams, CompletionOutput, Logprob, RequestOutput, SamplingParams
from jpaged.config.declaration import options_of
from jpaged.config.options import EngineOptions
from jpaged.core.requests.request import RequestMetrics
from jpaged.core.requests.response import CompletionDelta
from tests.engine.tiny import GREEDY, TINY_LLAMA, tiny_llm

ENGINE = {
    "model": "smollm2-135m",
    "tokenizer": None,
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "page_size": 16,
    "num_pages": None,
    "kv_memory": None,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "max_model_len": None,
    "enable_prefix_caching": True,
    "tensor_parallel_size": 1,
    "seed": 0,
    "attention_implementation": None,
    "load_format": "auto",
}
SAMPLING = {
    "n": 1,
    "best_of": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
    "logit_bias": None,
}
BEAM = {
    "beam_width": dataclasses.MISSING,
    "max_tokens": dataclasses.MISSING,
    "ignore_eos": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "include_stop_str_in_output": False,
}
STATS = {
    "num_steps", "num_preemptions_recompute", "num_preemptions_swap", "pages_total", "pages_free", "pages_used_peak",
    "tail_waste_mean", "prefix_hit_tokens", "num_page_copies", "compiled_programs", "host_ms_per_step",
}  # fmt: skip


def defaults(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("kind", "wanted"), [(EngineOptions, ENGINE), (SamplingParams, SAMPLING), (BeamSearchParams, BEAM)]
)
def test_keywords_and_their_defaults(kind: Any, wanted: dict[str, Any]):
    found = defaults(kind)
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    with pytest.raises(TypeError):
        kind(1, 2)  # the first of LLM aside, all are keywords


def test_fields_of_what_comes_back():
    assert {"prompt_token_ids", "prompt", "outputs", "finished", "prompt_logprobs", "metrics", "request_id"} <= set(
        defaults(RequestOutput)
    )
    assert "num_cached_tokens" in defaults(RequestOutput)
    assert set(defaults(CompletionOutput)) == {
        "index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
    }  # fmt: skip
    assert set(defaults(Logprob)) == {"logprob", "rank", "decoded_token"}
    assert {"prompt_index", "index", "text", "token_ids", "finish_reason", "stop_reason"} <= set(
        CompletionDelta._fields
    )
    assert {"arrival", "first_scheduled", "first_token", "finished"} <= set(defaults(RequestMetrics))


def test_the_model_is_the_only_positional_argument_and_has_a_default():
    model, *options = inspect.signature(LLM).parameters.values()
    assert (model.name, model.default) == ("model", "smollm2-135m")
    assert model.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}


def test_help_shows_every_keyword_of_the_engine_with_its_type_and_a_line_on_it():
    parameters = inspect.signature(LLM).parameters
    options = options_of(EngineOptions)
    assert list(parameters) == [option.name for option in options]
    assert parameters["page_size"].annotation is int
    text = pydoc.plain(pydoc.render_doc(LLM))
    assert "page_size: int = 16" in text
    assert all(option.help and f"{option.name}: {option.help}" in text for option in options)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (LLM.generate, ["prompts", "sampling_params", "priority", "use_tqdm"]),
        (LLM.beam_search, ["prompts", "params", "priority", "use_tqdm"]),
        (LLM.chat, ["messages", "sampling_params", "use_tqdm", "add_generation_prompt"]),
        (LLM.stream, ["prompts", "sampling_params"]),
        (LLM.stats, []),
        (LLM.get_tokenizer, []),
        (LLM.reset_prefix_cache, []),
    ],
)
def test_methods_and_their_arguments(method: Any, names: list[str]):
    assert [name for name in inspect.signature(method).parameters if name != "self"][: len(names)] == names


def test_every_public_name_is_there_and_nothing_else_is():
    assert {"LLM", "SamplingParams", "BeamSearchParams", "RequestOutput", "CompletionOutput"} <= set(jpaged.__all__)
    for name in jpaged.__all__:
        assert getattr(jpaged, name).__name__ == name
        assert name in dir(jpaged)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = jpaged.nonsense  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="module")
def shared_llm() -> LLM:
    """An engine that nothing has run on when the first test asks."""
    return tiny_llm(num_pages=40, page_size=4)


@pytest.mark.usefixtures("programs_are_its_own")
def test_stats_have_every_key_before_the_first_step_and_after_it():
    llm = tiny_llm(num_pages=24)
    before = llm.stats()
    assert set(before) >= STATS
    assert before["num_steps"] == before["compiled_programs"] == before["pages_used_peak"] == 0
    assert before["pages_total"] == before["pages_free"] == 24  # the null page is not counted
    assert llm.runner.kv_pages.k.shape[1] == 25
    llm.generate([5, 6, 7], GREEDY, use_tqdm=False)
    after = llm.stats()
    assert set(after) == set(before)
    assert after["num_steps"] == 12
    assert all(isinstance(value, int | float | str) for value in after.values())


def test_prompts_come_in_every_shape_and_results_in_their_order(text_model: Path):
    llm = tiny_llm(str(text_model), num_pages=40, page_size=4)
    ids = llm.get_tokenizer().encode("hello and")
    shapes: list[Any] = ["hello and", ids, [ids], tuple(ids), {"prompt": "hello and"}, {"prompt_token_ids": ids}]
    answers = [llm.generate(shape, GREEDY, use_tqdm=False) for shape in shapes]
    mixed = llm.generate(["hello and", ids, {"prompt_token_ids": ids}, {"prompt": "hello and"}], GREEDY, use_tqdm=False)
    for output in [*(answer[0] for answer in answers), *mixed]:
        assert output.prompt_token_ids == ids
        assert output.outputs[0].token_ids == answers[0][0].outputs[0].token_ids
        assert type(output.prompt_token_ids) is type(output.outputs[0].token_ids) is list
        assert all(type(token) is int for token in output.outputs[0].token_ids)
    assert [output.prompt for output in mixed] == ["hello and", None, None, "hello and"]
    lengths = [7, 1, 9, 3, 12, 2]
    each = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate([[token] for token in range(6)], each, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [[token] for token in range(6)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_numpy_integers_are_ids(llm: LLM):
    import numpy as np

    ids = np.array([5, 6, 7])
    [output] = llm.generate(list(ids), GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [5, 6, 7]
    assert type(output.prompt_token_ids[0]) is int


def test_metrics_tell_when_things_happened_and_what_was_cached(llm: LLM):
    prompt = list(range(10, 23))
    llm.reset_prefix_cache()
    first, second = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 12)
    metrics = first.metrics
    assert metrics is not None
    times = [metrics.arrival, metrics.first_scheduled, metrics.first_token, metrics.finished]
    assert None not in times
    assert times == sorted(times)


def test_a_folder_may_be_given_as_a_path_and_the_defaults_are_the_documented_ones():
    llm = LLM(Path(TINY_LLAMA))
    assert llm.config.model_name == TINY_LLAMA
    assert llm.config.cache.page_size == 16
    assert llm.config.scheduler.max_model_len == 64  # the model's own
    assert llm.stats()["pages_total"] == 16 * 64 // 16
    assert llm.get_tokenizer() is None


FRESH = """
import sys
before = len(sys.modules)
import {module}
new = len(sys.modules) - before
heavy = {{"jax", "jaxlib", "flax", "numpy", "transformers", "tokenizers"}} & set(sys.modules)
print(new, *heavy)
"""


# Modules, not seconds: how long an import takes depends on what else the machine does.
@pytest.mark.parametrize(("module", "limit"), [("jpaged", 60), ("jpaged.cli.main", 250)])
def test_importing_loads_few_modules_and_none_that_is_heavy(module: str, limit: int):
    code = FRESH.format(module=module)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new, *heavy = result.stdout.split()
    assert heavy == []
    assert int(new) < limit
