"""Logprobs are the model's own, before any rule; one entry a token, whatever the chunks and the cached prefixes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jpaged import LLM, Logprob, SamplingParams
from tests.engine.tiny import TINY_LLAMA, random_prompts, tiny_llm

LOGITS_TOLERANCE = 1e-4
NEAR = 1e-5
PROMPT = random_prompts(1, 21, 21, seed=8)[0]
Entries = list[dict[int, Logprob] | None] | list[dict[int, Logprob]]


@pytest.fixture(scope="module")
def golden() -> tuple[list[list[int]], np.ndarray]:
    """Two prompts, and the log probabilities after each of their tokens by Hugging Face transformers."""
    with np.load(Path(TINY_LLAMA) / "logits.npz") as file:
        logits = file["logits"].astype(np.float64)
        return file["ids"].tolist(), logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def same(left: Entries, right: Entries) -> None:
    """Equal ids, ranks and texts in equal order; numbers as near as other chunk shapes leave them."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert [(token, e.rank, e.decoded_token) for token, e in one.items()] == [
                (token, e.rank, e.decoded_token) for token, e in other.items()
            ]
            assert [e.logprob for e in one.values()] == pytest.approx([e.logprob for e in other.values()], abs=NEAR)


def check_entry(entry: dict[int, Logprob], token: int, row: np.ndarray, count: int) -> None:
    """The chosen token first, then the `count` most likely ones, all by the logits of transformers."""
    assert next(iter(entry)) == token
    top = np.argsort(-row)[:count].tolist()
    assert set(entry) == {token, *top}
    assert [candidate for candidate in entry if candidate in top and candidate != token] == [
        candidate for candidate in top if candidate != token
    ]
    for candidate, logprob in entry.items():
        assert logprob.logprob == pytest.approx(row[candidate], abs=LOGITS_TOLERANCE)
        assert logprob.rank == 1 + int((row > row[candidate]).sum())


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_prompt_logprobs_are_those_of_transformers(llm: LLM, golden: Any, count: int):
    prompts, rows = golden
    params = SamplingParams(max_tokens=1, prompt_logprobs=count, temperature=0.0)
    for i, output in enumerate(llm.generate(prompts, params, use_tqdm=False)):
        entries = output.prompt_logprobs
        assert entries is not None
        assert len(entries) == len(prompts[i])
        assert entries[0] is None
        for position, entry in enumerate(entries[1:], start=1):
            assert entry is not None
            check_entry(entry, prompts[i][position], rows[i][position - 1], count)


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_the_logprobs_of_the_first_token_are_those_of_transformers(llm: LLM, golden: Any, count: int):
    prompts, rows = golden
    for prompt, by_position in zip(prompts, rows, strict=True):
        for length in (1, 4, 5, 16, 40):
            params = SamplingParams(max_tokens=1, logprobs=count, temperature=2.0, top_k=3, seed=length)
            [output] = llm.generate(prompt[:length], params, use_tqdm=False)
            completion = output.outputs[0]
            assert completion.logprobs is not None
            check_entry(completion.logprobs[0], completion.token_ids[0], by_position[length - 1], count)


def test_logprobs_have_one_entry_a_token_and_add_up(llm: LLM):
    params = SamplingParams(n=3, temperature=1.5, seed=1, max_tokens=15, logprobs=4, ignore_eos=True)
    [output] = llm.generate(PROMPT, params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    for completion in output.outputs:
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids) == 15
        chosen = [entry[token] for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)]
        assert completion.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in chosen), abs=1e-9)
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert entry[token].decoded_token == tokenizer.decode([token], skip_special_tokens=False)
            assert len(entry) == (4 if entry[token].rank <= 4 else 5)
            assert all(math.isfinite(logprob.logprob) and logprob.logprob <= 0 for logprob in entry.values())


def test_the_logprobs_of_a_sequence_are_the_prompt_logprobs_of_the_same_tokens(llm: LLM):
    drawn = SamplingParams(temperature=1.5, seed=1, max_tokens=15, logprobs=5, ignore_eos=True)
    completion = llm.generate(PROMPT, drawn, use_tqdm=False)[0].outputs[0]
    again = SamplingParams(max_tokens=1, prompt_logprobs=5)
    [whole] = llm.generate(PROMPT + completion.token_ids, again, use_tqdm=False)
    assert completion.logprobs is not None
    assert whole.prompt_logprobs is not None
    same(whole.prompt_logprobs[len(PROMPT) :], completion.logprobs)


def test_rules_and_truncation_do_not_change_what_is_reported(llm: LLM):
    plain = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1, logprobs=5), use_tqdm=False)
    [entry] = plain[0].outputs[0].logprobs or []
    ruled = SamplingParams(
        temperature=0.7, top_k=1, top_p=0.3, max_tokens=1, logprobs=5, repetition_penalty=2.0, min_tokens=1,
        logit_bias=dict.fromkeys(list(entry)[:2], -100.0), presence_penalty=1.0,
    )  # fmt: skip
    [other] = llm.generate(PROMPT, ruled, use_tqdm=False)[0].outputs[0].logprobs or []
    for token, logprob in entry.items():
        assert other[token].logprob == pytest.approx(logprob.logprob, abs=NEAR)
        assert other[token].rank == logprob.rank


@pytest.mark.parametrize("length", [3, 9, 21])
def test_d2_prompt_logprobs_are_whole_when_the_prompt_is_cached(llm: LLM, length: int):
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=1, logprobs=1)
    llm.reset_prefix_cache()
    first, second = (llm.generate(PROMPT[:length], params, use_tqdm=False)[0] for _ in range(2))
    assert first.prompt_logprobs is not None
    assert second.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == length
    same(first.prompt_logprobs, second.prompt_logprobs)
    same(first.outputs[0].logprobs or [], second.outputs[0].logprobs or [])


def test_d2_logprobs_alone_do_use_the_cache_and_stay_the_same(llm: LLM):
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=5)
    llm.reset_prefix_cache()
    first, second = (llm.generate(PROMPT, params, use_tqdm=False)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 20)
    same(first.outputs[0].logprobs or [], second.outputs[0].logprobs or [])


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_e2_chunks_change_no_logprob(llm: LLM, chunk: int):
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=5, prompt_logprobs=5, ignore_eos=True)
    [whole] = llm.generate(PROMPT, params, use_tqdm=False)
    chunked = tiny_llm(num_pages=40, page_size=4, long_prefill_token_threshold=chunk, tokenizer=llm.options.model)
    [pieces] = chunked.generate(PROMPT, params, use_tqdm=False)
    assert chunked.stats()["num_steps"] >= len(PROMPT) // chunk
    same(whole.prompt_logprobs or [], pieces.prompt_logprobs or [])
    same(whole.outputs[0].logprobs or [], pieces.outputs[0].logprobs or [])
    assert whole.outputs[0].cumulative_logprob == pytest.approx(pieces.outputs[0].cumulative_logprob, abs=1e-4)


def test_company_that_wants_other_numbers_of_logprobs_changes_none(llm: LLM):
    prompts = random_prompts(4, 5, 20, seed=4)
    wants = [(5, None), (None, 3), (0, 0), (20, 1)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=5, logprobs=logprobs, prompt_logprobs=prompt)
        for logprobs, prompt in wants
    ]
    together = llm.generate(prompts, params, use_tqdm=False)
    for prompt, own, output, (logprobs, prompt_logprobs) in zip(prompts, params, together, wants, strict=True):
        [alone] = llm.generate(prompt, own, use_tqdm=False)
        assert (output.prompt_logprobs is None) == (prompt_logprobs is None)
        assert (output.outputs[0].logprobs is None) == (logprobs is None)
        assert (output.outputs[0].cumulative_logprob is None) == (logprobs is None)
        same(output.prompt_logprobs or [], alone.prompt_logprobs or [])
        same(output.outputs[0].logprobs or [], alone.outputs[0].logprobs or [])


def test_prompt_logprobs_of_one_token_are_a_single_none(llm: LLM):
    [output] = llm.generate([5], SamplingParams(max_tokens=1, prompt_logprobs=2), use_tqdm=False)
    assert output.prompt_logprobs == [None]


def test_a_stop_string_leaves_a_logprob_for_every_token_that_was_made(llm: LLM):
    params = {"seed": 4, "max_tokens": 20, "logit_bias": dict.fromkeys(range(3, 29), 60.0), "logprobs": 2}
    whole = llm.generate("hello", SamplingParams(**params), use_tqdm=False)[0].outputs[0]
    ended = llm.generate("hello", SamplingParams(stop=whole.text[5:9], **params), use_tqdm=False)[0].outputs[0]
    assert ended.finish_reason == "stop"
    assert len(ended.logprobs or []) == len(ended.token_ids)
    same(ended.logprobs or [], (whole.logprobs or [])[: len(ended.token_ids)])
