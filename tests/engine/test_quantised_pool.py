"""Engines with int8 and fp8 pools (tiny model): the same answers under pressure, and no page without its scales."""

import jax.numpy as jnp
import numpy as np
import pytest

from jpaged import SamplingParams
from jpaged.runtime.memory import bytes_of_page, pool_dtype
from models import PRESETS
from tests.engine.tiny import GREEDY, generate, random_prompts, tiny_llm

PROMPTS = random_prompts(8, 3, 24)
THREE = SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=9, ignore_eos=True)
MIXED = [GREEDY, THREE] * 4


@pytest.fixture(scope="module")
def ample():
    """What an int8 engine with more pages than it needs answers."""
    llm = tiny_llm(num_pages=128, page_size=4, kv_cache_dtype="int8", enable_prefix_caching=False)
    answers = generate(llm, PROMPTS, MIXED)
    assert llm.stats()["num_preemptions_recompute"] == 0
    return answers


@pytest.mark.parametrize("caching", [True, False])
def test_preemptions_forks_and_evictions_change_no_token_of_an_int8_pool(ample, caching):
    """F10: a copied page has its scales, a page recomputed has the same bytes."""
    llm = tiny_llm(num_pages=16, page_size=4, kv_cache_dtype="int8", enable_prefix_caching=caching, watermark=0.0)
    assert generate(llm, PROMPTS, MIXED) == ample
    stats = llm.stats()
    assert stats["num_preemptions_recompute"] >= 3
    assert stats["num_page_copies"] > 0


def test_a_swapped_page_has_its_scales_when_it_comes_back(ample):
    llm = tiny_llm(
        num_pages=16, page_size=4, kv_cache_dtype="int8", watermark=0.0, num_host_pages=64, preemption_mode="swap"
    )
    assert generate(llm, PROMPTS, MIXED) == ample
    assert llm.stats()["num_preemptions_swap"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16])
def test_neither_page_size_nor_chunks_change_a_token_of_an_int8_pool(ample, page_size):
    llm = tiny_llm(
        num_pages=512 // page_size, page_size=page_size, kv_cache_dtype="int8", long_prefill_token_threshold=5
    )
    assert generate(llm, PROMPTS, MIXED) == ample


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_pools_serve_too(dtype):
    llm = tiny_llm(num_pages=16, page_size=4, kv_cache_dtype=dtype, watermark=0.0)
    small = generate(llm, PROMPTS[:4], MIXED[:4])
    assert small == generate(tiny_llm(num_pages=64, page_size=4, kv_cache_dtype=dtype), PROMPTS[:4], MIXED[:4])
    assert llm.runner.kv_pages.k.dtype == pool_dtype(dtype, "float32")


def test_garbage_in_unfilled_slots_and_their_scales_reaches_no_output(ample):
    llm = tiny_llm(num_pages=16, page_size=4, kv_cache_dtype="int8", watermark=0.0)
    pool = llm.runner.kv_pages
    garbage = jnp.full(pool.k_scale.shape, np.nan, jnp.float32)
    llm.runner.kv_pages = pool._replace(k=pool.k.at[:].set(99), k_scale=garbage, v_scale=garbage * 1)
    assert generate(llm, PROMPTS, MIXED) == ample


def test_the_scales_are_part_of_the_memory_that_a_pool_takes():
    model = PRESETS["smollm2-135m"]
    assert bytes_of_page(model, 16, pool_dtype("auto", "float32")) == 16 * 46_080
    int8 = bytes_of_page(model, 16, pool_dtype("int8", "float32"))
    assert int8 == bytes_of_page(model, 16, pool_dtype("fp8_e5m2", "bfloat16")) == 16 * 2 * 30 * 3 * (64 + 4)
    memory = 1 << 20
    llms = {dtype: tiny_llm(kv_memory=memory, page_size=4, kv_cache_dtype=dtype) for dtype in ("auto", "int8")}
    for llm in llms.values():
        pages = llm.stats()["pages_total"] + 1
        assert pages == memory // bytes_of_page(llm.config.model, 4, llm.runner.kv_pages.k.dtype)
        assert llm.runner.kv_pages.nbytes <= memory
    assert llms["int8"].stats()["pages_total"] > 2 * llms["auto"].stats()["pages_total"]
