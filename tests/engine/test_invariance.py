"""What an engine answers does not depend on pages, company, chunks, preemption or cached prefixes (tiny model)."""

import pytest

from jpaged import SamplingParams
from tests.engine.tiny import GREEDY, generate, random_prompts, tiny_llm

PROMPTS = random_prompts(8, 3, 24)
SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=7, max_tokens=10, ignore_eos=True)
PENALISED = SamplingParams(
    temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, seed=3,
    max_tokens=10, min_tokens=3, logit_bias={5: 2.0, 9: -100.0},
)  # fmt: skip
THREE = SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=9, ignore_eos=True)
MIXED = [GREEDY, SAMPLED, PENALISED, THREE, GREEDY, THREE, SAMPLED, PENALISED]


@pytest.fixture(scope="module")
def ample():
    """What an engine with more pages than it needs, and no prefix cache, answers."""
    llm = tiny_llm(num_pages=128, page_size=4, enable_prefix_caching=False)
    answers = {"greedy": generate(llm, PROMPTS), "mixed": generate(llm, PROMPTS, MIXED)}
    assert llm.stats()["num_preemptions_recompute"] == 0
    return answers


@pytest.mark.parametrize("page_size", [1, 2, 8, 16, 32, 64, 128])
def test_the_page_size_changes_no_token(ample, page_size):
    llm = tiny_llm(page_size=page_size, num_pages=1024 // page_size + 16)
    assert generate(llm, PROMPTS) == ample["greedy"]
    assert generate(llm, PROMPTS, MIXED) == ample["mixed"]


def test_company_changes_no_token(ample):
    llm = tiny_llm(num_pages=128, page_size=4)
    assert [generate(llm, [prompt])[0] for prompt in PROMPTS] == ample["greedy"]
    alone = [generate(llm, [prompt], [params])[0] for prompt, params in zip(PROMPTS, MIXED, strict=True)]
    assert alone == ample["mixed"]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 16])
def test_chunked_prefill_changes_no_token(ample, chunk):
    llm = tiny_llm(num_pages=128, page_size=4, long_prefill_token_threshold=chunk)
    assert generate(llm, PROMPTS) == ample["greedy"]
    assert generate(llm, PROMPTS, MIXED) == ample["mixed"]


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_changes_no_token(ample, caching):
    llm = tiny_llm(num_pages=16, page_size=4, enable_prefix_caching=caching, watermark=0.0)
    assert generate(llm, PROMPTS) == ample["greedy"]
    assert generate(llm, PROMPTS, MIXED) == ample["mixed"]
    stats = llm.stats()
    assert stats["num_preemptions_recompute"] >= 3
    assert stats["num_page_copies"] > 0
    assert (stats["num_evictions"] > 0) == caching


def test_cached_prefixes_change_no_token(ample):
    llm = tiny_llm(num_pages=128, page_size=4)
    for _ in range(2):
        assert generate(llm, PROMPTS, MIXED) == ample["mixed"]
    assert llm.stats()["prefix_hit_tokens"] > 0


def test_samples_of_one_request_differ_and_repeat(ample):
    first, second, third = ample["mixed"][3]
    assert first != second != third != first
    llm = tiny_llm(num_pages=128, page_size=4)
    assert generate(llm, [PROMPTS[3]], [THREE])[0] == [first, second, third]
    # Choice i does not depend on n.
    two = SamplingParams(n=2, temperature=1.0, seed=11, max_tokens=9, ignore_eos=True)
    assert generate(llm, [PROMPTS[3]], [two])[0] == [first, second]


def test_unseeded_requests_differ_but_a_run_repeats():
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    runs = [generate(tiny_llm(num_pages=64, seed=seed), [PROMPTS[0]] * 3, params) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(ids[0]) for ids in runs[0]}) == 3
